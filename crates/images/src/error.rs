//! The public error: which step failed, why, and the kind of failure.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// What an error can be caused by: another error, which stays available by [`Error::cause`], or a message.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// Why an operation on an image failed. Displays as one line: the step and the cause. The caller prepends the image and the operation that
/// the user requested. In another process, which gets it as text, the cause is a message.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(into = "Report", from = "Report")]
pub struct Error {
    /// The kind, which decides the exit code.
    pub kind: ErrorKind,
    /// The failed step: "resolve the tag", "read layer 3 (sha256:…)".
    pub step: String,
    /// What the user can do, if any remedy is known.
    pub hint: Option<String>,
    cause: Arc<dyn StdError + Send + Sync>,
}

/// Classes of failure that scripts distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// No such image, tag, platform, path or mount.
    NotFound,
    /// 401 or 403.
    Denied,
    /// The registry or the network failed or timed out.
    Unavailable,
    /// The image is malformed, unsupported, or contradicts its digest.
    Refused,
    /// This machine or user cannot mount this way.
    CannotMount,
    /// The local store failed: disk, permissions, lock.
    Store,
    /// An existing object conflicts: a name that is taken, a container that has not ended.
    Conflict,
    /// Anything else.
    Other,
    /// The host's policy does not accept the image.
    Forbidden,
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The form of an error that other processes read.
#[derive(serde::Serialize, serde::Deserialize)]
struct Report {
    kind: ErrorKind,
    step: String,
    cause: String,
    hint: Option<String>,
}

impl From<Error> for Report {
    fn from(error: Error) -> Self {
        Self { kind: error.kind, step: error.step, cause: error.cause.to_string(), hint: error.hint }
    }
}

impl From<Report> for Error {
    fn from(Report { kind, step, cause, hint }: Report) -> Self {
        Self { hint, ..Self::new(kind, step, cause) }
    }
}

/// Names the step that failed with another error.
pub trait ResultExt<T> {
    /// Makes the error the cause of one of `kind` while doing `step`.
    fn context(self, kind: ErrorKind, step: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<Cause>> ResultExt<T> for std::result::Result<T, E> {
    fn context(self, kind: ErrorKind, step: impl Into<String>) -> Result<T> {
        self.map_err(|cause| Error::new(kind, step, cause))
    }
}

impl Error {
    /// An error of `kind` while doing `step`.
    pub fn new(kind: ErrorKind, step: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Self { kind, step: step.into(), hint: None, cause: Arc::from(cause.into()) }
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with another cause.
    pub fn because(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Arc::from(cause.into());
        self
    }

    /// Why the step failed.
    pub fn cause(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.cause
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.cause)
    }
}

impl StdError for Error {
    /// The source of the cause: the cause itself is part of the text.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source()
    }
}
