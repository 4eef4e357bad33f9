//! Errors of calls, by the codes that containerd distinguishes.

use std::io;

use tonic::Status;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The snapshot does not exist.
    #[error("snapshot {0}: not found")]
    NotFound(String),
    /// A snapshot of this name exists.
    #[error("snapshot {0}: already exists")]
    Exists(String),
    /// The snapshot is not in the state that the call needs.
    #[error("{0}")]
    Precondition(String),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The image could not be mounted, perhaps only for now.
    #[error("{0}")]
    Image(String),
    /// A disk operation failed.
    #[error("{step}: {error}")]
    Disk {
        /// The operation.
        step: String,
        /// The cause.
        error: io::Error,
    },
}

/// Shorthand for results of this crate.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A disk error in `step`.
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
