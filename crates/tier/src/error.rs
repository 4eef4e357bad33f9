//! Errors of a tier.

use std::io;
use std::sync::Arc;

/// The result of an operation on a tier.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a tier failed. Its text has no secret.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot {step}: {cause}")]
pub struct Error {
    kind: ErrorKind,
    step: &'static str,
    cause: Arc<str>,
}

/// Classes of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The bucket, the folder or the object does not exist.
    Missing,
    /// The credentials are not accepted, or permit less than is needed.
    Denied,
    /// It does not answer, or answers with an error or with wrong bytes.
    Unavailable,
}

impl Error {
    pub(crate) fn new(step: &'static str, cause: impl Into<Arc<str>>) -> Self {
        Self { kind: ErrorKind::Unavailable, step, cause: cause.into() }
    }

    pub(crate) fn late(step: &'static str) -> Self {
        Self::new(step, "it does not answer in time")
    }

    pub(crate) fn missing(step: &'static str, cause: &'static str) -> Self {
        Self { kind: ErrorKind::Missing, ..Self::new(step, cause) }
    }

    pub(crate) fn of(step: &'static str, error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let cause = innermost(error);
        let is_denied = cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        let cause = one_line(&cause.to_string());
        let kind = match (error, status(&cause)) {
            (E::NotFound { .. }, _) | (_, Some(404)) => ErrorKind::Missing,
            (E::PermissionDenied { .. } | E::Unauthenticated { .. }, _) | (_, Some(401 | 403)) => ErrorKind::Denied,
            _ if is_denied => ErrorKind::Denied,
            _ => ErrorKind::Unavailable,
        };
        Self { kind, ..Self::new(step, cause) }
    }

    pub(crate) fn of_file(step: &'static str, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::Missing,
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Unavailable,
        };
        Self { kind, ..Self::new(step, error.to_string()) }
    }

    /// The class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What failed: "list the tier".
    pub fn step(&self) -> &'static str {
        self.step
    }

    /// Why, in one line.
    pub fn cause(&self) -> &str {
        &self.cause
    }
}

/// The informative cause.
fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}

/// The status in the text of a failed request. The library returns that of a listing in no other way.
fn status(cause: &str) -> Option<u16> {
    cause.strip_prefix("Server returned non-2xx status code: ")?.get(..3)?.parse().ok()
}

/// A store may answer with a page of text.
fn one_line(text: &str) -> String {
    const CHARS: usize = 300;
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(CHARS).collect()
}
