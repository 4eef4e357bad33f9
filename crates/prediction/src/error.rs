//! Why a prediction ends.

/// The layers cannot be merged, or a content cannot be read.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// The result of a step.
pub type Result<T> = std::result::Result<T, Error>;
