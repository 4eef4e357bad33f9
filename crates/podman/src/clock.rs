//! The current time, for file timestamps.

use tarpon_layer::Timestamp;

/// The current time.
pub(super) fn now() -> Timestamp {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp { seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX), nanoseconds: now.subsec_nanos() }
}
