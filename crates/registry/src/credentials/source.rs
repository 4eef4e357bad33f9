//! [`CredentialSource`]: where the credentials for a registry are looked up.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_oci::Reference;

use super::UNREADABLE;
use super::authfile::AuthFile;
use super::secret::Credentials;
use super::token_services::TokenServices;
use crate::registries::{Address, Endpoint, EndpointCredentials};

/// Looks up credentials for a process that may not read files or run helpers itself.
pub trait CredentialLookup: Debug + Send + Sync {
    /// As [`CredentialSource::find`], for the endpoint with this number.
    fn find(&self, endpoint: usize) -> BoxFuture<'_, Option<Credentials>>;

    /// As [`CredentialSource::may_have`], for the endpoint with this number.
    fn may_have<'a>(&'a self, endpoint: usize, host: &'a str) -> BoxFuture<'a, bool>;
}

/// Sources of credentials, in the order of look-up.
#[derive(Debug, Clone, Default)]
pub struct CredentialSource {
    /// Shared by all clones.
    given: Arc<Mutex<Option<Credentials>>>,
    files: Vec<PathBuf>,
    token_services: TokenServices,
    /// Instead of all others.
    lookup: Option<Lookup>,
    /// The image at the registry whose credentials are used, for a host that stands for it.
    registry: Option<Reference>,
}

/// Another process looks up the credentials of an endpoint.
#[derive(Debug, Clone)]
struct Lookup {
    by: Arc<dyn CredentialLookup>,
    endpoint: usize,
}

impl CredentialSource {
    /// These credentials, or else the first of `files` that has some for a registry.
    pub fn new(given: Option<Credentials>, files: Vec<PathBuf>) -> Self {
        Self { given: Arc::new(Mutex::new(given)), files, ..Self::default() }
    }

    /// Uses these credentials from now on instead of those that were given, in all clones. Whether they differ.
    pub fn replace(&self, credentials: Credentials) -> bool {
        let mut given = self.given.lock();
        let is_new = given.as_ref() != Some(&credentials);
        *given = Some(credentials);
        is_new
    }

    /// Another process looks them up.
    pub fn elsewhere(lookup: Arc<dyn CredentialLookup>) -> Self {
        // The files are named in messages only.
        let lookup = Some(Lookup { by: lookup, endpoint: 0 });
        Self { lookup, token_services: TokenServices::from_environment(), ..Self::default() }
    }

    /// Files that name the token services of registries, where these are other hosts: lines of `REGISTRY HOST...`.
    pub fn with_token_services(self, files: Vec<PathBuf>) -> Self {
        Self { token_services: TokenServices::new(files), ..self }
    }

    /// Whether the credentials of `registry` (as written in references, perhaps with a port) may be sent to the token service at
    /// `host`.
    pub async fn may_have(&self, registry: &str, host: &str) -> bool {
        if let Some(Lookup { by, endpoint }) = &self.lookup {
            return by.may_have(*endpoint, host).await;
        }
        // One that stands for the registry passes the challenges of that on, or has a token service of its own.
        let names = [Some(registry), self.registry.as_ref().map(Reference::registry)];
        for name in names.into_iter().flatten() {
            if self.token_services.may_have(name, host).await {
                return true;
            }
        }
        false
    }

    /// The file that names token services on other hosts than their registry, for messages.
    pub(crate) fn token_services_file(&self) -> String {
        self.token_services.file()
    }

    /// Whether its credentials are those of a registry, for another host.
    pub(crate) fn stands_for_registry(&self) -> bool {
        self.registry.is_some()
    }

    /// The sources for the endpoint with this number of those that serve `image`. Credentials that the user gave are for the registry
    /// that the image's name states, and for no mirror elsewhere, unless the configuration states that it may see them.
    pub fn at(&self, number: usize, endpoints: &[Endpoint], image: &Reference) -> Self {
        let (Some(endpoint), Some(registry)) = (endpoints.get(number), endpoints.last()) else {
            return Self::default();
        };
        let address = endpoint.address.as_ref();
        let source = match address.map(|address| address.credentials).unwrap_or_default() {
            EndpointCredentials::None => return Self::default(),
            EndpointCredentials::Own => self.of_name(&endpoint.reference, image),
            EndpointCredentials::Registry if address.is_some_and(Address::is_exposed) => return Self::default(),
            EndpointCredentials::Registry => {
                Self { registry: Some(registry.reference.clone()), ..self.of_name(&registry.reference, image) }
            }
        };
        let lookup = source.lookup.map(|lookup| Lookup { endpoint: number, ..lookup });
        Self { lookup, ..source }
    }

    fn of_name(&self, name: &Reference, image: &Reference) -> Self {
        match name.registry() == image.registry() {
            true => self.clone(),
            false => Self { given: Arc::default(), ..self.clone() },
        }
    }

    /// `authfiles`, if there are any. Else the files that Podman and Docker use, in Podman's order: `$REGISTRY_AUTH_FILE` alone if it
    /// is set, else those of the runtime folder, the user and Docker.
    pub fn from_environment(given: Option<Credentials>, authfiles: &[PathBuf]) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let (given, token_services) = (Arc::new(Mutex::new(given)), TokenServices::from_environment());
        if !authfiles.is_empty() {
            return Self { given, files: authfiles.to_vec(), token_services, ..Self::default() };
        }
        if let Some(only) = variable("REGISTRY_AUTH_FILE") {
            return Self { given, files: vec![only], token_services, ..Self::default() };
        }
        let home = variable("HOME");
        let runtime = match variable("XDG_RUNTIME_DIR") {
            Some(folder) => folder.join("containers/auth.json"),
            None => PathBuf::from("/run/containers/0/auth.json"),
        };
        let config = variable("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        let docker = variable("DOCKER_CONFIG").or_else(|| home.as_ref().map(|home| home.join(".docker")));
        let files = [
            Some(runtime),
            config.map(|folder| folder.join("containers/auth.json")),
            docker.map(|folder| folder.join("config.json")),
        ];
        Self { given, files: files.into_iter().flatten().collect(), token_services, ..Self::default() }
    }

    /// The credentials for `repository` of `registry` (as written in references). A file or helper that cannot be read is skipped
    /// with a warning: the image may be public.
    pub async fn find(&self, registry: &str, repository: &str) -> Option<Credentials> {
        if let Some(Lookup { by, endpoint }) = &self.lookup {
            return by.find(*endpoint).await;
        }
        let own = (registry, repository);
        let (registry, repository) = self.registry.as_ref().map_or(own, |at| (at.registry(), at.repository()));
        let given = self.given.lock().clone();
        if given.is_some() {
            return given;
        }
        for path in &self.files {
            let file = match AuthFile::read(path).await {
                Ok(Some(file)) => file,
                Ok(None) => continue,
                Err(error) => {
                    if let Some(left_out) = UNREADABLE.admit() {
                        tracing::warn!("credentials of {registry}: {}: {error}{left_out}", path.display());
                    }
                    continue;
                }
            };
            if let Some(found) = file.find(registry, repository).await {
                return Some(found);
            }
        }
        None
    }
}
