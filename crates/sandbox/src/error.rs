//! Why a process could not confine itself.

use std::path::PathBuf;

/// Why a process could not confine itself. The process may be confined in part then and should end.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The process has more than one thread, and capabilities and Landlock would apply to one of them.
    #[error("confining this process: it has {0} threads already, and must do this before it starts one")]
    Threads(usize),
    /// A folder to write to cannot be opened.
    #[error("confining this process: opening {}: {cause}", path.display())]
    Path {
        /// The path as it was given.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A step failed.
    #[error("confining this process: {step}: {cause}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An error of a step.
pub(crate) fn failed<E>(step: &'static str) -> impl FnOnce(E) -> SandboxError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |cause| SandboxError::Step { step, cause: cause.into() }
}
