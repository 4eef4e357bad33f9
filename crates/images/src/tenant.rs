//! Whose content an image may use: in an isolated store, that of its own repository and no other.
//!
//! A tenant is a repository of a registry, because a registry grants access by repository. Every caller has to prove access for each
//! request: the manifest is requested from the registry with the caller's credentials before anything of the tenant is looked at
//! (`prepare`). Content that is already in the store proves nothing.
//!
//! How the registry is authenticated belongs to the tenant as well. Otherwise an impostor, serving a caller that does not check
//! certificates or supplies its own, would grant access to content that others fetched from the real registry.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tarpon_oci::Source;
use tarpon_store::{Isolation, IsolationError, Store};

use crate::access::Access;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::images::Images;

impl Images {
    /// The isolation of the store.
    pub fn isolation(&self) -> Result<Isolation> {
        isolation(self.store())
    }

    /// Whether containerd may be given images of the store.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if it is isolated.
    pub fn may_serve_containerd(&self) -> Result<()> {
        if !self.is_isolated()? {
            return Ok(());
        }
        let cause = "the store is of isolation \"tenant\", and containerd shares layers among all images without asking a registry";
        Err(Error::new(ErrorKind::Refused, "show images to containerd", cause)
            .hint("name a store of isolation \"shared\" with --store DIR"))
    }

    /// Whether a service may act for callers with their own credentials. A store that is shared only by default becomes isolated if it is
    /// new; otherwise such callers are refused: content fetched with one caller's credentials would be readable by all others without any.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the isolation of the store is undecided, and the store is in use.
    pub fn admit_credentials(&self) -> Result<()> {
        if self.is_isolated()? || self.store().is_explicitly_shared() {
            return Ok(());
        }
        let step = "use the credentials of the request";
        match self.store().set_isolation(Isolation::Tenant) {
            Ok(()) => {
                tracing::warn!(
                    "a request has its own credentials and the store is new: its isolation is \"tenant\" from now on"
                );
                Ok(())
            }
            Err(IsolationError::Store(error)) => Err(Error::new(ErrorKind::Store, step, error)),
            Err(IsolationError::InUse | IsolationError::Conflict { .. }) => {
                let cause =
                    "the store is shared by default: all callers could read images fetched with these credentials";
                Err(Error::new(ErrorKind::Conflict, step, cause).hint(
                    "start the daemon with --isolation shared if all callers may read all images, \
                     or with --isolation tenant and a new store",
                ))
            }
        }
    }

    /// Whether images share no content across repositories.
    pub fn is_isolated(&self) -> Result<bool> {
        Ok(self.isolation()? == Isolation::Tenant)
    }

    /// The same images, limited to the content that `image` may use: in a shared store all of it. Call it only once the caller has proved
    /// access.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] in an isolated store if the image is in no registry.
    pub fn for_image(&self, image: &str, access: &Access) -> Result<Self> {
        let store = part_of(self.store(), image, access)?;
        Ok(store.map_or_else(|| self.clone(), |store| self.with_store(store)))
    }

    /// The part of the store to which the mount at this path belongs.
    pub fn store_of_mount(&self, mountpoint: &Path) -> Store {
        let isolated = self.is_isolated().unwrap_or_default();
        let mounts = if isolated { self.store().all_mounts().unwrap_or_default() } else { Vec::new() };
        let mount = mounts.iter().find(|mount| mount.record.mountpoint == mountpoint);
        mount.map_or_else(|| self.store().clone(), |mount| self.store().of_mount(&mount.record))
    }

    /// An error in an isolated store, if `what` would expose images to users without access.
    pub fn refuse_isolated(&self, what: &str) -> Result<()> {
        refuse_isolated(self.store(), what)
    }
}

/// As [`Images::refuse_isolated`].
pub fn refuse_isolated(store: &Store, what: &str) -> Result<()> {
    if !is_isolated(store)? {
        return Ok(());
    }
    let cause = "the store is of isolation \"tenant\", and everyone who can read it would see its images";
    Err(Error::new(ErrorKind::Refused, what, cause).hint("name a store of isolation \"shared\" with --store DIR"))
}

/// Whether the images of a store share no content with those of other tenants.
pub fn is_isolated(store: &Store) -> Result<bool> {
    Ok(isolation(store)? != Isolation::Shared)
}

fn isolation(store: &Store) -> Result<Isolation> {
    store.isolation().context(ErrorKind::Store, "see how the store is isolated")
}

/// The store with the content that the image may use; `None`: all of a shared store.
pub fn part_of(store: &Store, image: &str, access: &Access) -> Result<Option<Store>> {
    if isolation(store)? == Isolation::Shared {
        return Ok(None);
    }
    store.tenant(&name(image, access)?).map(Some).context(ErrorKind::Store, "open the tenant's part of the store")
}

/// Whether an isolated store accepts the image at all.
pub fn check(image: &str) -> Result<()> {
    repository(image).map(drop)
}

/// The key that distinguishes tenants.
fn name(image: &str, access: &Access) -> Result<String> {
    let mut name = repository(image)?;
    // No repository's name contains a line break.
    if access.tls_verify == Some(false) {
        name.push_str("\nunchecked");
    }
    if let Some(folder) = &access.cert_dir {
        name.push_str(&format!("\n{}", folder.as_os_str().as_bytes().escape_ascii()));
    }
    // The configuration of registries is the host's: no caller of a service can name another one, and a new mirror must not make another
    // tenant of a mount.
    Ok(name)
}

fn repository(image: &str) -> Result<String> {
    match image.parse() {
        Ok(Source::Registry(reference)) => Ok(format!("{}/{}", reference.registry(), reference.repository())),
        Ok(_) => {
            let cause = "the store is of isolation \"tenant\", and access to a file proves no access to a registry";
            Err(Error::new(ErrorKind::Refused, "open the image", cause)
                .hint("push it to a registry, or name a store of isolation \"shared\" with --store DIR"))
        }
        Err(error) => Err(Error::new(ErrorKind::NotFound, "read the image's name", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_one_repository_are_one_tenant_and_those_of_another_are_not() {
        let name = |image: &str| name(image, &Access::default());
        let library = name("docker.io/library/alpine:3.20").unwrap();
        let digest = tarpon_oci::Digest::of(b"m");
        for image in ["alpine", "docker://alpine:latest", &format!("docker.io/library/alpine@{digest}")] {
            assert_eq!(name(image).unwrap(), library);
        }
        for image in ["quay.io/library/alpine", "docker.io/me/alpine", "localhost:5000/library/alpine"] {
            assert_ne!(name(image).unwrap(), library);
        }
        for image in ["oci:/srv/app:v1", "docker-archive:/srv/app.tar"] {
            assert_eq!(name(image).unwrap_err().kind, ErrorKind::Refused);
        }
    }

    #[test]
    fn an_unchecked_registry_grants_no_access_to_a_checked_one() {
        let checked = Access::default();
        let ways = [
            Access { tls_verify: Some(false), ..checked.clone() },
            Access { cert_dir: Some("/home/me/certs".into()), ..checked.clone() },
            Access { cert_dir: Some("/etc/certs".into()), ..checked.clone() },
        ];
        let mut names: Vec<_> = ways.iter().chain([&checked]).map(|way| name("host/app", way).unwrap()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 4);
        let same = Access { creds: Some("a:b".into()), tls_verify: Some(true), ..checked.clone() };
        assert_eq!(name("host/app", &same).unwrap(), name("host/app", &checked).unwrap(), "it is asked each time");
    }
}
