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

/// Looks up credentials for a process that may not read files or run helpers itself.
pub trait CredentialLookup: Debug + Send + Sync {
    /// As [`CredentialSource::find`].
    fn find<'a>(&'a self, registry: &'a str, repository: &'a str) -> BoxFuture<'a, Option<Credentials>>;

    /// As [`CredentialSource::may_have`].
    fn may_have<'a>(&'a self, registry: &'a str, host: &'a str) -> BoxFuture<'a, bool>;
}

/// Sources of credentials, in the order of look-up.
#[derive(Debug, Clone, Default)]
pub struct CredentialSource {
    /// Shared by all clones.
    given: Arc<Mutex<Option<Credentials>>>,
    files: Vec<PathBuf>,
    token_services: TokenServices,
    /// Instead of all others.
    lookup: Option<Arc<dyn CredentialLookup>>,
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
        Self { lookup: Some(lookup), token_services: TokenServices::from_environment(), ..Self::default() }
    }

    /// Files that name the token services of registries, where these are other hosts: lines of `REGISTRY HOST...`.
    pub fn with_token_services(self, files: Vec<PathBuf>) -> Self {
        Self { token_services: TokenServices::new(files), ..self }
    }

    /// Whether the credentials of `registry` (as written in references, perhaps with a port) may be sent to the token service at
    /// `host`.
    pub async fn may_have(&self, registry: &str, host: &str) -> bool {
        match &self.lookup {
            Some(lookup) => lookup.may_have(registry, host).await,
            None => self.token_services.may_have(registry, host).await,
        }
    }

    /// The file that names token services on other hosts than their registry, for messages.
    pub(crate) fn token_services_file(&self) -> String {
        self.token_services.file()
    }

    /// The sources for one of the hosts that serve `image`. Credentials that the user gave are for the registry that the image's name
    /// states, and for no mirror elsewhere.
    pub fn at(&self, endpoint: &Reference, image: &Reference) -> Self {
        match endpoint.registry() == image.registry() {
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
            return Self { given, files: authfiles.to_vec(), token_services, lookup: None };
        }
        if let Some(only) = variable("REGISTRY_AUTH_FILE") {
            return Self { given, files: vec![only], token_services, lookup: None };
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
        Self { given, files: files.into_iter().flatten().collect(), token_services, lookup: None }
    }

    /// The credentials for `repository` of `registry` (as written in references). A file or helper that cannot be read is skipped
    /// with a warning: the image may be public.
    pub async fn find(&self, registry: &str, repository: &str) -> Option<Credentials> {
        if let Some(lookup) = &self.lookup {
            return lookup.find(registry, repository).await;
        }
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
