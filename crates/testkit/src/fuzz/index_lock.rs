//! Invariant: any bytes are refused or are a lock that is written and read again as the same, within its bounds.

use tarpon_oci::{IndexLock, limits};

/// Reads `data` as a lock.
pub fn index_lock(data: &[u8]) {
    let Ok(lock) = IndexLock::parse(data) else { return };
    // Written, it has line breaks and what JSON must escape, so what barely fitted may be too large now, and nothing else.
    let Ok(written) = lock.to_json() else { return assert!(data.len() as u64 * 8 > limits::LOCK_BYTES) };
    assert_eq!(IndexLock::parse(&written).expect("what is written is read"), lock);
}
