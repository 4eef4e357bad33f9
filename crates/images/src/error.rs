//! The public error: which step failed, why, and the kind of failure.

use std::fmt;

/// Why an operation on an image failed. Displays as one line: the step and the cause. The caller prepends the image and the operation that
/// the user requested.
#[derive(Debug, Clone)]
pub struct Error {
    /// The kind, which decides the exit code.
    pub kind: ErrorKind,
    /// The failed step: "resolve the tag", "read layer 3 (sha256:…)".
    pub step: String,
    /// Why it failed.
    pub cause: String,
    /// What the user can do, if any remedy is known.
    pub hint: Option<String>,
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
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` while doing `step`.
    pub fn new(kind: ErrorKind, step: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { kind, step: step.into(), cause: cause.to_string(), hint: None }
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.cause)
    }
}

impl std::error::Error for Error {}
