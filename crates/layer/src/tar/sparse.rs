//! Sparse files in a tar: the segments of the file that the archive contains. Old GNU type `S`, and GNU's PAX formats 0.0, 0.1 and 1.0.

use std::io::Read;

use tarpon_oci::limits;

use super::error::TarProblem;
use super::input::{Block, Input};
use super::number::decimal;
use super::{BLOCK, number};

/// PAX records of sparse files.
pub(crate) const PREFIX: &[u8] = b"GNU.sparse.";
const MALFORMED: TarProblem = TarProblem::Sparse("a number of the map is malformed");

/// A segment of data. Holes are between segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The segments of one sparse file, ascending, none of them empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SparseMap {
    pub(super) segments: Vec<Segment>,
    pub(super) size: u64,
}

impl SparseMap {
    /// Adds the next segment of the map. Empty ones mark the end of the file and are dropped.
    fn push(&mut self, offset: u64, length: u64) -> Result<(), TarProblem> {
        if self.segments.len() == limits::SPARSE_SEGMENTS {
            return Err(TarProblem::Sparse("too many segments"));
        }
        let end = offset.checked_add(length).ok_or(TarProblem::Sparse("a segment wraps around"))?;
        let before = self.segments.last().map_or(0, |last| last.offset + last.length);
        if offset < before {
            return Err(TarProblem::Sparse("segments overlap or are out of order"));
        }
        if end > self.size {
            return Err(TarProblem::Sparse("a segment lies beyond the end of the file"));
        }
        if length > 0 {
            self.segments.push(Segment { offset, length });
        }
        Ok(())
    }

    /// Checks that the map has exactly the bytes that the archive stores.
    pub(super) fn check_stored(&self, stored: u64) -> Result<(), TarProblem> {
        // No overflow: segments do not overlap and end within `size`.
        let held: u64 = self.segments.iter().map(|segment| segment.length).sum();
        if held == stored { Ok(()) } else { Err(TarProblem::Sparse("the map and the stored data differ in length")) }
    }

    /// Bytes outside of all segments.
    pub(super) fn hole_bytes(&self) -> u64 {
        self.size - self.segments.iter().map(|segment| segment.length).sum::<u64>()
    }
}

/// Old GNU: four segments in the header, 21 in each extension block.
pub(super) fn read_gnu<R: Read>(
    input: &mut Input<R>,
    (first, mut more, size): (&[u8], bool, u64),
) -> Result<SparseMap, TarProblem> {
    let mut map = SparseMap { segments: Vec::new(), size };
    push_gnu(&mut map, first)?;
    let mut block = [0; BLOCK];
    let mut blocks = 0;
    while more {
        blocks += 1;
        if blocks > limits::SPARSE_SEGMENTS / 21 {
            return Err(TarProblem::Sparse("too many segments"));
        }
        match input.block(&mut block)? {
            Block::Full => {}
            Block::End | Block::Partial => return Err(TarProblem::Truncated),
        }
        push_gnu(&mut map, &block[..504])?;
        more = block[504] != 0;
    }
    Ok(map)
}

fn push_gnu(map: &mut SparseMap, table: &[u8]) -> Result<(), TarProblem> {
    for record in table.chunks_exact(24) {
        if record[0] == 0 {
            break;
        }
        let field = |field: &[u8]| number::parse_unsigned(field).ok_or(MALFORMED);
        map.push(field(&record[..12])?, field(&record[12..])?)?;
    }
    Ok(())
}

/// PAX 1.0: the map precedes the data, as decimal lines padded to a block. Returns the map and its length.
pub(super) fn read_pax_1_0<R: Read>(
    input: &mut Input<R>,
    size: u64,
    stored: u64,
) -> Result<(SparseMap, u64), TarProblem> {
    let mut lines = Lines { input, block: [0; BLOCK], at: BLOCK, taken: 0, stored };
    let count = lines.number()?;
    if count > limits::SPARSE_SEGMENTS as u64 {
        return Err(TarProblem::Sparse("too many segments"));
    }
    let mut map = SparseMap { segments: Vec::new(), size };
    for _ in 0..count {
        let (offset, length) = (lines.number()?, lines.number()?);
        map.push(offset, length)?;
    }
    Ok((map, lines.taken))
}

struct Lines<'a, R> {
    input: &'a mut Input<R>,
    block: [u8; BLOCK],
    at: usize,
    taken: u64,
    stored: u64,
}

impl<R: Read> Lines<'_, R> {
    fn byte(&mut self) -> Result<u8, TarProblem> {
        if self.at == BLOCK {
            if self.stored - self.taken < BLOCK as u64 {
                return Err(TarProblem::Sparse("the map does not fit into the stored data"));
            }
            match self.input.block(&mut self.block)? {
                Block::Full => {}
                Block::End | Block::Partial => return Err(TarProblem::Truncated),
            }
            self.taken += BLOCK as u64;
            self.at = 0;
        }
        self.at += 1;
        Ok(self.block[self.at - 1])
    }

    fn number(&mut self) -> Result<u64, TarProblem> {
        let mut digits = [0; 20];
        for length in 0..=digits.len() {
            match self.byte()? {
                b'\n' => return decimal(&digits[..length]).ok_or(MALFORMED),
                byte if length < digits.len() => digits[length] = byte,
                _ => break,
            }
        }
        Err(MALFORMED)
    }
}

/// The `GNU.sparse.*` records of one extended header.
#[derive(Debug, Default)]
pub(super) struct PaxSparse {
    pub(super) name: Option<Vec<u8>>,
    major: Option<u64>,
    minor: Option<u64>,
    size: Option<u64>,
    real_size: Option<u64>,
    count: Option<u64>,
    /// Offsets and lengths in turn.
    map: Vec<u64>,
}

/// Where a PAX sparse file keeps its map.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PaxLayout {
    /// Not sparse.
    Dense,
    /// 0.0 and 0.1: in the records.
    Records(SparseMap),
    /// 1.0: before the data. The file has this size.
    BeforeData(u64),
}

impl PaxSparse {
    /// Adds the record `GNU.sparse.{name}`.
    pub(super) fn record(&mut self, name: &[u8], value: &[u8]) -> Result<(), TarProblem> {
        let number = || decimal(value).ok_or(MALFORMED);
        match name {
            b"name" if value.contains(&0) => return Err(TarProblem::Pax("a NUL byte in a name")),
            b"name" => self.name = (!value.is_empty()).then(|| value.to_vec()),
            b"major" => self.major = Some(number()?),
            b"minor" => self.minor = Some(number()?),
            b"size" => self.size = Some(number()?),
            b"realsize" => self.real_size = Some(number()?),
            b"numblocks" => self.count = Some(number()?),
            b"offset" if self.map.len().is_multiple_of(2) => self.push(number()?)?,
            b"numbytes" if !self.map.len().is_multiple_of(2) => self.push(number()?)?,
            b"offset" | b"numbytes" => return Err(TarProblem::Sparse("offsets and lengths do not alternate")),
            b"map" => {
                self.map.clear();
                for text in value.split(|byte| *byte == b',').filter(|_| !value.is_empty()) {
                    self.push(decimal(text).ok_or(MALFORMED)?)?;
                }
            }
            _ => return Err(TarProblem::Sparse("an unknown kind of record")),
        }
        Ok(())
    }

    fn push(&mut self, number: u64) -> Result<(), TarProblem> {
        if self.map.len() == 2 * limits::SPARSE_SEGMENTS {
            return Err(TarProblem::Sparse("too many segments"));
        }
        self.map.push(number);
        Ok(())
    }

    /// Checks that all records are consistent.
    pub(super) fn finish(&self) -> Result<(), TarProblem> {
        let pairs = self.map.len() / 2;
        if !self.map.len().is_multiple_of(2) || self.count.is_some_and(|count| count != pairs as u64) {
            return Err(TarProblem::Sparse("the number of segments is wrong"));
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> Result<PaxLayout, TarProblem> {
        let size = match (self.size, self.real_size) {
            (Some(size), Some(real)) if size != real => return Err(TarProblem::Sparse("two different sizes")),
            (size, real) => size.or(real),
        };
        match (self.major, self.minor) {
            (Some(1), Some(0)) if self.map.is_empty() => {
                size.map(PaxLayout::BeforeData).ok_or(TarProblem::Sparse("no size is given"))
            }
            (None, None) | (Some(0), Some(0 | 1)) => {
                let Some(size) = size else {
                    return if self.map.is_empty() && self.name.is_none() && self.major.is_none() {
                        Ok(PaxLayout::Dense)
                    } else {
                        Err(TarProblem::Sparse("no size is given"))
                    };
                };
                let mut map = SparseMap { segments: Vec::new(), size };
                for pair in self.map.chunks_exact(2) {
                    map.push(pair[0], pair[1])?;
                }
                Ok(PaxLayout::Records(map))
            }
            _ => Err(TarProblem::Sparse("an unknown version")),
        }
    }
}
