//! Why a call failed, in the terms that containerd decides by.

use std::io;

use tonic::Status;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// There is no such snapshot.
    #[error("snapshot {0}: not found")]
    NotFound(String),
    /// There is one of this name.
    #[error("snapshot {0}: already exists")]
    Exists(String),
    /// The snapshot is not in the state that this needs.
    #[error("{0}")]
    Precondition(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The image could not be mounted, or not now.
    #[error("{0}")]
    Image(String),
    /// The disk.
    #[error("{step}: {error}")]
    Disk {
        /// What was being done.
        step: String,
        /// Why it failed.
        error: io::Error,
    },
}

/// Shorthand.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The disk failed while doing `step`.
    pub(crate) fn disk(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |error| Self::Disk { step, error }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::NotFound(_) => Self::not_found(text),
            Error::Exists(_) => Self::already_exists(text),
            Error::Precondition(_) => Self::failed_precondition(text),
            Error::Invalid(_) => Self::invalid_argument(text),
            Error::Image(_) => Self::unavailable(text),
            Error::Disk { .. } => Self::internal(text),
        }
    }
}
