//! Errors of a tier.

use std::sync::Arc;

/// The result of an operation on a tier.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a tier failed. Its text has no secret.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot {step}: {cause}")]
pub struct Error {
    step: &'static str,
    cause: Arc<str>,
    is_refusal: bool,
}

impl Error {
    pub(crate) fn new(step: &'static str, cause: impl Into<Arc<str>>) -> Self {
        Self { step, cause: cause.into(), is_refusal: false }
    }

    pub(crate) fn late(step: &'static str) -> Self {
        Self::new(step, "it does not answer in time")
    }

    /// Whether another attempt fails in the same way: the credentials are refused, or the location is invalid.
    pub fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    pub(crate) fn of(step: &'static str, error: &object_store::Error) -> Self {
        let is_refusal = matches!(
            error,
            object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. }
                | object_store::Error::NotSupported { .. }
                | object_store::Error::InvalidPath { .. }
        );
        Self { step, cause: innermost(error).into(), is_refusal }
    }
}

/// The innermost cause is the informative one. It is shortened to one line.
fn innermost(error: &object_store::Error) -> String {
    const CHARS: usize = 300;
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(CHARS).collect()
}
