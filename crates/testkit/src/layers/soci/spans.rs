//! Checkpoints of a gzip layer, placed as by zlib's `zran.c`: at the first block boundary after each span's bytes.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

const WINDOW: usize = 32 << 10;

/// The start of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanStart {
    /// First whole byte in the blob.
    pub offset: u64,
    /// First byte in the tar.
    pub decoded: u64,
    /// Number of high bits of the byte before that belong to it.
    pub bits: u8,
    /// The 32 KiB of the tar before it, padded with zeros in front.
    pub window: Vec<u8>,
}

impl SpanStart {
    pub(super) fn write(&self, checkpoints: &mut Vec<u8>) {
        checkpoints.extend_from_slice(&self.offset.to_le_bytes());
        checkpoints.extend_from_slice(&self.decoded.to_le_bytes());
        checkpoints.push(self.bits);
        checkpoints.extend_from_slice(&self.window);
    }
}

/// The tar, and the starts of its spans.
pub(super) fn decode(blob: &[u8], span_bytes: u64) -> (Vec<u8>, Vec<SpanStart>) {
    let mut inflate = DecompressorOxide::new();
    let (mut tar, mut starts) = (vec![0; 64 << 10], Vec::<SpanStart>::new());
    let mut taken = header(blob);
    let (mut filled, mut member) = (0, 0);
    let mut note = |taken: usize, bits: u8, tar: &[u8]| {
        let due = starts.last().is_none_or(|last| tar.len() as u64 - last.decoded > span_bytes);
        if due {
            let mut window = vec![0; WINDOW.saturating_sub(tar.len())];
            window.extend_from_slice(&tar[tar.len().saturating_sub(WINDOW)..]);
            starts.push(SpanStart { offset: taken as u64, decoded: tar.len() as u64, bits, window });
        }
    };
    note(taken, 0, &[]);
    loop {
        if tar.len() - filled < 64 << 10 {
            tar.resize(2 * tar.len(), 0);
        }
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
        let place = filled - member;
        let (status, read, given) = decompress(&mut inflate, &blob[taken..], &mut tar[member..], place, flags);
        (taken, filled) = (taken + read, filled + given);
        match status {
            TINFLStatus::BlockBoundary => {
                let state = inflate.block_boundary_state().expect("it stopped at one");
                note(taken, state.num_bits, &tar[..filled]);
            }
            TINFLStatus::HasMoreOutput => {}
            TINFLStatus::Done if taken + 8 < blob.len() => {
                taken += 8 + header(&blob[taken + 8..]);
                member = filled;
                inflate.init();
            }
            TINFLStatus::Done => break,
            other => panic!("a sound layer, not {other:?}"),
        }
    }
    tar.truncate(filled);
    (tar, starts)
}

/// Length of a gzip header, which may contain a name.
fn header(member: &[u8]) -> usize {
    assert_eq!(member[..3], [0x1f, 0x8b, 8]);
    match member[3] {
        0 => 10,
        8 => 11 + member[10..].iter().position(|byte| *byte == 0).expect("a name ends"),
        flags => panic!("flags {flags}"),
    }
}
