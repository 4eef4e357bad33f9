//! What a file system leaves to that of the next server: the node ids that the kernel may use ([`Save`]), and why these cannot be used
//! ([`RestoreError`]).

/// Keeps the saved form of a file system's node ids beyond the death of this process; replaces the earlier one. Called before the kernel
/// can know of a new id.
pub(crate) type Save = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Why saved node ids cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RestoreError {
    /// Nothing was saved.
    #[error("nothing is saved")]
    Missing,
    /// Nothing is to be shown.
    #[error("nothing is shown in it any more")]
    Unwanted,
    /// It is larger than what is ever saved.
    #[error("what is saved is too large")]
    TooLarge,
    /// Another version of this program saved it.
    #[error("what is saved has another format")]
    Format,
    /// It contradicts itself.
    #[error("what is saved is damaged: {0}")]
    Damaged(&'static str),
}
