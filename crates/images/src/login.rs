//! Logs in to registries, and out: changes the user's auth files.

use std::io;
use std::path::{Path, PathBuf};

use tarpon_registry::{AccessOptions, Credentials, StoredIn};

use crate::access;
use crate::auth_files;
use crate::error::{Error, ErrorKind, Result};

/// A login to a registry.
#[derive(Debug, Clone)]
pub struct Login {
    /// The registry, as in references: `HOST[:PORT]`.
    pub registry: String,
    /// User and password, which are checked at the registry first.
    pub credentials: Credentials,
    /// The auth file. `None`: the one that Podman writes to.
    pub authfile: Option<PathBuf>,
    /// As [`crate::Access::cert_dir`].
    pub cert_dir: Option<PathBuf>,
    /// Whether certificates are checked.
    pub tls_verify: bool,
}

impl Login {
    /// Checks the credentials at the registry, and stores them. Returns the file and where it keeps them.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the registry does not accept them; it cannot be reached, or they cannot be stored. Then nothing changed.
    pub async fn log_in(&self) -> Result<(PathBuf, StoredIn)> {
        let options = AccessOptions {
            credentials: Some(self.credentials.clone()),
            tls_verify: Some(self.tls_verify),
            cert_dir: self.cert_dir.clone(),
            ..AccessOptions::default()
        };
        let step = "check the credentials";
        tarpon_registry::check_login(&self.registry, &options).await.map_err(|error| match error {
            tarpon_registry::Error::Login(_) => Error::new(ErrorKind::Denied, step, error),
            error => access::registry(step, error),
        })?;
        let file = file(self.authfile.as_deref())?;
        let stored = tarpon_registry::store_login(&file, &self.registry, &self.credentials).await;
        let stored = stored.map_err(|error| unwritable("store the login", &file, &error))?;
        Ok((file, stored))
    }
}

/// Removes the credentials of a registry. `None`: there were none in the file that Podman writes to, or in `authfile`.
///
/// # Errors
/// The file or its helper cannot be changed.
pub async fn log_out(registry: &str, authfile: Option<&Path>) -> Result<Option<PathBuf>> {
    let file = file(authfile)?;
    let removed = tarpon_registry::remove_login(&file, registry).await;
    let is_removed = removed.map_err(|error| unwritable("remove the login", &file, &error))?;
    Ok(is_removed.then_some(file))
}

/// Removes the credentials of all registries.
///
/// # Errors
/// As [`log_out`].
pub async fn log_out_of_all(authfile: Option<&Path>) -> Result<PathBuf> {
    let file = file(authfile)?;
    let removed = tarpon_registry::remove_all_logins(&file).await;
    removed.map_err(|error| unwritable("remove the logins", &file, &error))?;
    Ok(file)
}

/// The user that is logged in to a registry, and the first of the usual files, or `authfile`, that has a password for it.
///
/// # Errors
/// A file cannot be read.
pub async fn logged_in(registry: &str, authfile: Option<&Path>) -> Result<Option<(String, PathBuf)>> {
    let files = authfile.map_or_else(auth_files, |file| vec![file.to_owned()]);
    for file in files {
        let found = tarpon_registry::logged_in(&file, registry).await;
        if let Some(user) = found.map_err(|error| unwritable("read the login", &file, &error))? {
            return Ok(Some((user, file)));
        }
    }
    Ok(None)
}

/// The file that a login changes.
fn file(authfile: Option<&Path>) -> Result<PathBuf> {
    let usual = || auth_files().into_iter().next();
    authfile.map(Path::to_owned).or_else(usual).ok_or_else(|| {
        let error = Error::new(ErrorKind::Other, "choose the auth file", "neither $XDG_RUNTIME_DIR nor $HOME is set");
        error.hint("name a file with --authfile")
    })
}

fn unwritable(step: &str, file: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Other, step, format!("{}: {error}", file.display()))
}
