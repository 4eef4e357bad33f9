//! Invariant: any bytes are refused or are the index of a boot pack within its limits, which is written back unchanged.

use tarpon_fetch::{BOOT_FRAMES, BOOT_PIECES, BootIndex};
use tarpon_oci::limits;

/// Parses `data` as the index of a boot pack.
pub fn boot_index(data: &[u8]) {
    let Ok(index) = BootIndex::read(data) else { return };
    assert_eq!(index.write(), data);
    assert!(index.frames.len() <= BOOT_FRAMES);
    assert!(index.frames.iter().map(|frame| frame.pieces.len()).sum::<usize>() <= BOOT_PIECES);
    assert_eq!(index.frames.iter().map(|frame| u64::from(frame.length)).sum::<u64>(), index.blob.size);
    for frame in &index.frames {
        let decoded: u64 = frame.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        assert!(
            decoded > 0 && decoded <= limits::CHUNK_BYTES && u64::from(frame.length) <= limits::CHUNK_ENCODED_BYTES
        );
    }
}
