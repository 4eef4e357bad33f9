//! Who the user is to a registry: `--creds`, the auth files of Podman and Docker, and credential helpers.
//!
//! Looked up anew for each token, never kept: a mount outlives passwords, and another login must take effect without
//! a new mount.

mod authfile;
mod helper;
mod secret;

use std::path::PathBuf;

use tarpon_fetch::LogLimit;
use tarpon_oci::DOCKER_HUB;

pub(crate) use authfile::AuthFile;
pub use secret::{Credentials, Secret};

/// The limit of lines about files and helpers that cannot be read: they are asked for each token.
static UNREADABLE: LogLimit = LogLimit::new();

/// Where credentials may be, in the order of asking.
#[derive(Debug, Clone, Default)]
pub struct CredentialSource {
    given: Option<Credentials>,
    files: Vec<PathBuf>,
}

impl CredentialSource {
    /// These credentials, or else the first of `files` that has some for a registry.
    pub fn new(given: Option<Credentials>, files: Vec<PathBuf>) -> Self {
        Self { given, files }
    }

    /// The files that Podman and Docker use, in Podman's order: `authfile` or `$REGISTRY_AUTH_FILE` alone if there
    /// is one of them, else the runtime folder's, the user's, Docker's.
    pub fn from_environment(given: Option<Credentials>, authfile: Option<PathBuf>) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(only) = authfile.or_else(|| variable("REGISTRY_AUTH_FILE")) {
            return Self::new(given, vec![only]);
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
        Self::new(given, files.into_iter().flatten().collect())
    }

    /// The credentials for `repository` of `registry` (as written in references). A file or helper that cannot be
    /// read is passed over with a warning: the image may be public.
    pub(crate) async fn find(&self, registry: &str, repository: &str) -> Option<Credentials> {
        if self.given.is_some() {
            return self.given.clone();
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

/// The names under which a registry may be kept in auth files and helpers.
fn aliases(registry: &str) -> Vec<&str> {
    match registry {
        DOCKER_HUB => vec!["docker.io", "index.docker.io", "registry-1.docker.io"],
        other => vec![other],
    }
}
