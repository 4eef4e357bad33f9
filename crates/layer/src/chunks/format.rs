//! The bytes of a chunk table. All numbers are little-endian; all parts follow each other without gaps:
//!
//! | part | bytes | |
//! |---|---|---|
//! | header | 64 | magic, layers, objects, chunks, placed chunks, checkpoints, bytes of windows, reserved zeros |
//! | layers | 48 each | digest 32, size 8, compression 1, zeros 7 |
//! | object ids | 32 each | ascending |
//! | numbers | 4 each | of the objects, in the order of their ids |
//! | objects | 16 each | size 8, first chunk 4, place of its id 4; its chunks end where the next one's begin |
//! | chunks | 48 each | place in object 8, size 8, offset 8, length 8, skip 8, object 4, layer 2, codec 1, zero 1 |
//! | digests | 32 each | of the chunks |
//! | by place | 4 each | numbers of the chunks that are in a blob, by layer, offset, skip, number |
//! | checkpoints | 24 each | offset 8, start of its window 8, bytes of its window 4, layer 2, used bits 1, zero 1; by layer, offset |
//! | windows | | as [`Checkpoint`](crate::spans::Checkpoint) holds them |
//!
//! Objects and their chunks are in the order of the first chunk's place (holes first): objects that are fetched together are looked
//! up together, and the check on opening, which memory bounds, is sequential. Digests are separate because that check never reads them.

use std::ops::Range;

/// Changes with the format. A table of another version is not read but rebuilt.
pub(super) const MAGIC: &[u8; 16] = b"tarpon-chunks\0\0\x02";
pub(super) const HEADER: usize = 64;
pub(super) const LAYER: usize = 48;
pub(super) const ID: usize = 32;
pub(super) const OBJECT: usize = 16;
pub(super) const CHUNK: usize = 48;
pub(super) const NUMBER: usize = 4;
pub(super) const CHECKPOINT: usize = 24;

pub(super) const ZEROS: u8 = 0;

/// Number of records of each part. For windows, number of bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    pub(super) layers: usize,
    pub(super) objects: usize,
    pub(super) chunks: usize,
    pub(super) placed: usize,
    pub(super) checkpoints: usize,
    pub(super) windows: usize,
}

/// The ranges of the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) layers: Range<usize>,
    pub(super) ids: Range<usize>,
    pub(super) numbers: Range<usize>,
    pub(super) objects: Range<usize>,
    pub(super) chunks: Range<usize>,
    pub(super) digests: Range<usize>,
    pub(super) places: Range<usize>,
    pub(super) checkpoints: Range<usize>,
    pub(super) windows: Range<usize>,
}

impl Layout {
    /// `None` if the parts are longer than the address space.
    pub(super) fn new(counts: Counts) -> Option<Self> {
        let Counts { layers, objects, chunks, placed, checkpoints, windows } = counts;
        let mut end = HEADER;
        let mut part = |count: usize, size: usize| {
            let start = end;
            end = start.checked_add(count.checked_mul(size)?)?;
            Some(start..end)
        };
        Some(Self {
            layers: part(layers, LAYER)?,
            ids: part(objects, ID)?,
            numbers: part(objects, NUMBER)?,
            objects: part(objects, OBJECT)?,
            chunks: part(chunks, CHUNK)?,
            digests: part(chunks, ID)?,
            places: part(placed, NUMBER)?,
            checkpoints: part(checkpoints, CHECKPOINT)?,
            windows: part(windows, 1)?,
        })
    }
}
