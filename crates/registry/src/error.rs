//! Why an image could not be opened, resolved or pushed.

use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{InvalidManifest, NoPlatform};

/// Why an image could not be opened, resolved or pushed. The text is one line; the caller puts the image in front.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes could not be read.
    #[error(transparent)]
    Source(SourceError),
    /// The bytes could not be written.
    #[error("pushing: {0}")]
    Push(SourceError),
    /// The manifest, index or config is not supported.
    #[error("{what}: {error}")]
    Manifest {
        /// The document.
        what: &'static str,
        /// Its defect.
        error: InvalidManifest,
    },
    /// The index has no manifest for the platform.
    #[error(transparent)]
    Platform(NoPlatform),
    /// The registry does not accept the credentials.
    #[error("{0} does not accept this user name and password")]
    Login(String),
    /// An archive, which cannot be a destination.
    #[error("{0} cannot be a destination: use a registry reference or oci:DIR[:TAG]")]
    ReadOnly(String),
    /// Certificates or addresses are invalid.
    #[error("{0}")]
    Options(String),
}

/// The side that caused the failure of an upload.
pub(crate) enum UploadError {
    /// The bytes could not be read.
    Source(SourceError),
    /// The bytes could not be written.
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
            Self::Login(_) => Fault::Denied,
        }
    }
}
