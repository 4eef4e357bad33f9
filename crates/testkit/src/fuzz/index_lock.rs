//! Invariant: any bytes are refused or are a lock within its bounds that is written and read back unchanged.

use tarpon_oci::{IndexLock, limits};

/// Parses `data` as a lock.
pub fn index_lock(data: &[u8]) {
    let Ok(lock) = IndexLock::parse(data) else { return };
    // The written form has line breaks and JSON escapes, so an input close to the limit may be too large now; no other
    // error is allowed.
    let Ok(written) = lock.to_json() else { return assert!(data.len() as u64 * 8 > limits::LOCK_BYTES) };
    assert_eq!(IndexLock::parse(&written).expect("what is written is read"), lock);
}
