//! Why an image could not be opened, resolved or pushed.

use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{InvalidManifest, NoPlatform};

/// Why an image could not be opened, resolved or pushed. The text is one line; the caller puts the image in front.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes could not be had.
    #[error(transparent)]
    Source(SourceError),
    /// The bytes could not be put.
    #[error("pushing: {0}")]
    Push(SourceError),
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
    /// An archive, where a destination must be.
    #[error("{0} cannot be written to: use a registry reference or oci:DIR[:TAG]")]
    ReadOnly(String),
    /// Certificates or addresses that cannot be used.
    #[error("{0}")]
    Options(String),
}

/// Whose fault it is that an upload failed.
pub(crate) enum UploadError {
    /// The bytes could not be had.
    Source(SourceError),
    /// They could not be put.
    Push(SourceError),
}

impl From<UploadError> for Error {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Source(error) => Self::Source(error),
            UploadError::Push(error) => Self::Push(error),
        }
    }
}

impl Error {
    /// The class, for exit codes.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Source(error) | Self::Push(error) => error.fault,
            Self::Manifest { .. } | Self::Options(_) | Self::ReadOnly(_) => Fault::Refused,
            Self::Platform(_) => Fault::NotFound,
        }
    }
}
