//! Invariant: any bytes are refused or give an index that keeps its promises and survives being packed and unpacked.

use tarpon_layer::packed::{pack, unpack};
use tarpon_oci::{Blob, Digest};

use crate::layers::check_index;

/// The layer that the index supposedly describes.
const BLOB: Blob = Blob { digest: Digest::from_bytes([7; 32]), size: 1 << 30 };

/// Parses `data` as a packed index.
pub fn packed_index(data: &[u8]) {
    let Ok(index) = unpack(data, BLOB) else { return };
    check_index(&index, u64::MAX);
    assert_eq!(unpack(&pack(&index), BLOB).as_ref(), Ok(&index));
}
