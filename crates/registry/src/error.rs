//! Why an image could not be opened or resolved.

use tarpon_fetch::{Fault, SourceError};
use tarpon_oci::{InvalidManifest, NoPlatform};

/// Why an image could not be opened or resolved. The text is one line; the caller puts the image in front.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes could not be had.
    #[error(transparent)]
    Source(SourceError),
    /// The manifest, index or config is not one that is used.
    #[error("{what}: {error}")]
    Manifest {
        /// Which document.
        what: &'static str,
        /// What is wrong with it.
        error: InvalidManifest,
    },
    /// The index has nothing for the platform.
    #[error(transparent)]
    Platform(NoPlatform),
    /// Certificates or addresses that cannot be used.
    #[error("{0}")]
    Options(String),
}

impl Error {
    /// The class, for exit codes.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Source(error) => error.fault,
            Self::Manifest { .. } | Self::Options(_) => Fault::Refused,
            Self::Platform(_) => Fault::NotFound,
        }
    }
}
