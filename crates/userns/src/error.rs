//! Why a process could not enter a user namespace.

use std::io;

/// Why a process could not enter a user namespace.
#[derive(Debug, thiserror::Error)]
pub enum UsernsError {
    /// The process has more than one thread, and namespaces would be those of one of them.
    #[error("this process has {0} threads already")]
    Threads(usize),
    /// The kernel does not let this user make user namespaces.
    #[error("the kernel refuses a user namespace: {0}")]
    Refused(io::Error),
    /// `newuidmap` or `newgidmap` failed.
    #[error("the IDs of the user cannot be mapped: {0}")]
    Map(String),
    /// A step failed.
    #[error("{step}: {cause}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
}

/// An error of a step.
pub(crate) fn failed<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> UsernsError {
    move |cause| UsernsError::Step { step, cause: cause.into() }
}
