//! [`RegistriesChoice`]: which hosts serve an image, by the configuration of the host.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tarpon_oci::{Reference, Source, is_short_name};
use tarpon_registry::{ContainerdHosts, Endpoint, Registries, RegistriesError, RegistriesPaths, StatedEndpoints};

use crate::error::{Error, ErrorKind, Result};

/// The configuration of registries that applies to an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RegistriesChoice {
    /// These files, as they are when the image is opened.
    Files(RegistriesPaths),
    /// The folder in which containerd finds the hosts of registries, as it is when the image is opened.
    Containerd(ContainerdHosts),
    /// What another process read from them for the image: its mirrors, then the registry.
    #[serde(skip)]
    Settled(Vec<Endpoint>),
}

impl Default for RegistriesChoice {
    /// No files: an image is requested from the registry that its name states.
    fn default() -> Self {
        Self::Files(RegistriesPaths::none())
    }
}

impl RegistriesChoice {
    /// The files that the environment of this process leads to.
    pub fn of_environment() -> Self {
        Self::Files(RegistriesPaths::of_environment())
    }

    /// The hosts that serve the image, in the order in which they are asked.
    pub(crate) fn endpoints(&self, reference: &Reference) -> Result<Vec<Endpoint>> {
        match self {
            Self::Files(files) => files_of(files)?.endpoints(reference).map_err(refused),
            Self::Containerd(hosts) => hosts.endpoints(reference).map_err(refused),
            Self::Settled(endpoints) => Ok(endpoints.clone()),
        }
    }

    /// The mirrors of an image: the host of each, and the choice to request the image from that one alone.
    ///
    /// # Errors
    /// The configuration cannot be read, or the registry is blocked.
    pub fn mirrors(&self, reference: &Reference) -> Result<Vec<(String, Self)>> {
        let mut endpoints = self.endpoints(reference)?;
        // The last one is the registry.
        endpoints.pop();
        let alone = |mirror: Endpoint| (mirror.host(), Self::Settled(vec![mirror]));
        Ok(endpoints.into_iter().map(alone).collect())
    }

    /// The files of tarpon's own configuration of endpoints, and what each of them configures.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn endpoint_files(&self) -> Result<Vec<(PathBuf, Result<StatedEndpoints>)>> {
        let Self::Files(files) = self else { return Ok(Vec::new()) };
        let files = files.endpoint_files().map_err(refused)?;
        let checked = files.into_iter().map(|file| {
            let found = Registries::check_endpoints(&file).map_err(refused);
            (file, found)
        });
        Ok(checked.collect())
    }

    /// The full name of the image that the user means by `name`, which may be a short one, and its source.
    ///
    /// # Errors
    /// The configuration cannot be read, or leaves several choices.
    pub fn full_name(&self, name: &str) -> Result<String> {
        let candidates = match (self, name.parse::<Source>()) {
            // `docker://alpine` is at Docker Hub. For a full name no file is read: parsing them takes a millisecond of a start.
            (Self::Files(files), Ok(Source::Registry(_))) if !name.starts_with("docker://") && is_short_name(name) => {
                files_of(files)?.full_names(name).map_err(refused)?
            }
            _ => return Ok(name.to_owned()),
        };
        match <[String; 1]>::try_from(candidates) {
            Ok([full]) => Ok(full),
            Err(candidates) => Err(refused(RegistriesError::Ambiguous { name: name.to_owned(), candidates })),
        }
    }
}

fn files_of(paths: &RegistriesPaths) -> Result<Registries> {
    Registries::load(paths).map_err(refused)
}

fn refused(error: RegistriesError) -> Error {
    let kind = match error {
        RegistriesError::Blocked { .. } => ErrorKind::Forbidden,
        RegistriesError::Ambiguous { .. } => ErrorKind::NotFound,
        _ => ErrorKind::Refused,
    };
    let hint = match error {
        RegistriesError::Blocked { .. } => None,
        RegistriesError::Ambiguous { .. } => {
            Some("write the full name, or add an alias to a file in /etc/containers/registries.conf.d")
        }
        RegistriesError::InvalidEndpoints { .. } => Some("docs/registries.md describes the file"),
        _ => Some("containers-registries.conf(5) describes the file"),
    };
    let refused = Error::new(kind, "read the configuration of registries", error);
    match hint {
        Some(hint) => refused.hint(hint),
        None => refused,
    }
}
