//! [`ImageLog`]: bounds the log lines that readers of one image can trigger.

use tarpon_blob::LogLimit;

use crate::error::PieceError;

/// The limits of the lines that readers of one image can trigger, by cause.
#[derive(Debug, Default)]
pub(crate) struct ImageLog {
    /// The source did not answer.
    pub(crate) silent: LogLimit,
    /// The source answered, but without bytes.
    pub(crate) refused: LogLimit,
    /// Bytes did not match their digest.
    pub(crate) corrupt: LogLimit,
    /// An object differs from what the index states.
    pub(crate) refuted: LogLimit,
}

impl ImageLog {
    /// The limit of lines about this failure.
    pub(crate) fn of(&self, error: &PieceError) -> &LogLimit {
        match error {
            PieceError::Corrupt { .. } => &self.corrupt,
            error if error.is_outage() => &self.silent,
            _ => &self.refused,
        }
    }
}
