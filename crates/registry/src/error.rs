//! Why an image could not be opened or resolved.

use tarpon_fetch::{Fault, SourceError};
use tarpon_oci::{InvalidManifest, NoPlatform};

/// Why an image could not be opened or resolved. The text is one line that names the image and the step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes could not be had.
    #[error("{image}: {error}")]
    Source {
        /// The image, as the user named it.
        image: String,
        /// How asking failed.
        error: SourceError,
    },
    /// The manifest, index or config is not one that is used.
    #[error("{image}: {what}: {error}")]
    Manifest {
        /// The image, as the user named it.
        image: String,
        /// Which document.
        what: &'static str,
        /// What is wrong with it.
        error: InvalidManifest,
    },
    /// The index has nothing for the platform.
    #[error("{image}: {error}")]
    Platform {
        /// The image, as the user named it.
        image: String,
        /// What was wanted, and what there is.
        error: NoPlatform,
    },
    /// Certificates or addresses that cannot be used.
    #[error("{image}: {message}")]
    Options {
        /// The image, as the user named it.
        image: String,
        /// Which, and why.
        message: String,
    },
}

impl Error {
    /// The class, for exit codes.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Source { error, .. } => error.fault,
            Self::Manifest { .. } | Self::Options { .. } => Fault::Refused,
            Self::Platform { .. } => Fault::NotFound,
        }
    }
}
