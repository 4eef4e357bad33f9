//! Cuts the files of zstd:chunked so that equal parts of different files become equal chunks.
//!
//! The cuts are those of containers/storage, because its partial pulls look for chunks that are already local: a rolling checksum
//! over 64 bytes whose low 16 bits are ones ends a chunk (64 KiB on average), and so does a run of zeros of at least
//! [`HOLE_BYTES`], which is a chunk of its own.

/// Zeros in a row that form a hole.
pub(super) const HOLE_BYTES: u64 = 1 << 10;
/// Longest chunk of data. Repetitive files have long parts without any cut, and readers decode a chunk at once.
pub(super) const CHUNK_BYTES: u64 = 4 << 20;

const WINDOW: usize = 64;
/// Added to every byte, so that zeros count.
const BYTE_OFFSET: u32 = 31;
const MASK: u32 = (1 << 16) - 1;

/// The end of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// End of the chunk in the file.
    pub(super) end: u64,
    /// Whether it is all zeros.
    pub(super) is_hole: bool,
}

/// Cuts one file.
pub(super) struct Cutter {
    sum: RollingSum,
    /// Bytes that were processed: all but `zeros`.
    place: u64,
    /// Start of the current chunk.
    start: u64,
    /// Zeros in a row at the current end.
    zeros: u64,
}

impl Cutter {
    pub(super) fn new() -> Self {
        Self { sum: RollingSum::new(), place: 0, start: 0, zeros: 0 }
    }

    /// Adds the next bytes of the file. Cuts may be before them, by less than [`HOLE_BYTES`].
    pub(super) fn push(&mut self, bytes: &[u8], cuts: &mut Vec<Cut>) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let zeros = rest.iter().take_while(|byte| **byte == 0).count();
            if zeros > 0 {
                self.push_zeros(zeros as u64, cuts);
                rest = &rest[zeros..];
            }
            if !rest.is_empty() {
                self.end_zeros(cuts);
                let data = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
                rest[..data].iter().for_each(|byte| self.push_byte(*byte, cuts));
                rest = &rest[data..];
            }
        }
    }

    /// Whether the last bytes are part of a hole that has not ended.
    pub(super) fn is_in_hole(&self) -> bool {
        self.zeros >= HOLE_BYTES
    }

    /// Ends the file.
    pub(super) fn finish(mut self, cuts: &mut Vec<Cut>) {
        self.end_zeros(cuts);
        self.cut(false, cuts);
    }

    fn push_zeros(&mut self, count: u64, cuts: &mut Vec<Cut>) {
        let was_in_hole = self.is_in_hole();
        self.zeros += count;
        if self.is_in_hole() && !was_in_hole {
            self.cut(false, cuts);
        }
    }

    /// Ends the current run of zeros.
    fn end_zeros(&mut self, cuts: &mut Vec<Cut>) {
        if self.is_in_hole() {
            // More zeros than the window holds change nothing.
            (0..WINDOW).for_each(|_| self.sum.roll(0));
            self.place += self.zeros;
            self.zeros = 0;
            self.cut(true, cuts);
        }
        for _ in 0..std::mem::take(&mut self.zeros) {
            self.push_byte(0, cuts);
        }
    }

    fn push_byte(&mut self, byte: u8, cuts: &mut Vec<Cut>) {
        self.sum.roll(byte);
        self.place += 1;
        if self.sum.is_cut() || self.place - self.start == CHUNK_BYTES {
            self.cut(false, cuts);
        }
    }

    fn cut(&mut self, is_hole: bool, cuts: &mut Vec<Cut>) {
        if self.place > self.start {
            cuts.push(Cut { end: self.place, is_hole });
            self.start = self.place;
        }
    }
}

/// The rolling checksum of bup and librsync.
struct RollingSum {
    first: u32,
    second: u32,
    window: [u8; WINDOW],
    at: usize,
}

impl RollingSum {
    fn new() -> Self {
        const SIZE: u32 = 64;
        Self { first: SIZE * BYTE_OFFSET, second: SIZE * (SIZE - 1) * BYTE_OFFSET, window: [0; WINDOW], at: 0 }
    }

    fn roll(&mut self, byte: u8) {
        let dropped = u32::from(std::mem::replace(&mut self.window[self.at], byte));
        self.at = (self.at + 1) % WINDOW;
        self.first = self.first.wrapping_add(byte.into()).wrapping_sub(dropped);
        self.second = self.second.wrapping_add(self.first).wrapping_sub(64 * (dropped + BYTE_OFFSET));
    }

    fn is_cut(&self) -> bool {
        self.second & MASK == MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(bytes: &[u8], piece: usize) -> Vec<(u64, bool)> {
        let mut cutter = Cutter::new();
        let mut cuts = Vec::new();
        bytes.chunks(piece).for_each(|piece| cutter.push(piece, &mut cuts));
        cutter.finish(&mut cuts);
        cuts.iter().map(|cut| (cut.end, cut.is_hole)).collect()
    }

    /// Bytes without pattern, none of them 0.
    fn noise(count: u32) -> Vec<u8> {
        let mut state = 2_463_534_242_u32;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[1].max(1)
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn runs_of_zeros_become_holes_from_1024_on() {
        let data = |zeros: usize| [vec![1; 10], vec![0; zeros], vec![2; 10]].concat();
        assert_eq!(cuts(&data(1023), 4096), [(1043, false)]);
        assert_eq!(cuts(&data(1024), 4096), [(10, false), (1034, true), (1044, false)]);
        assert_eq!(cuts(&[0; 5000], 7), [(5000, true)]);
        assert_eq!(cuts(&[0; 100], 7), [(100, false)]);
        assert_eq!(cuts(&[], 1), []);
        assert_eq!(cuts(&[vec![1; 3], vec![0; 2000]].concat(), 1), [(3, false), (2003, true)]);
    }

    #[test]
    fn the_pieces_that_arrive_make_no_difference() {
        let bytes = [noise(300_000), vec![0; 3000], noise(300_000), vec![0; 900], noise(100)].concat();
        let expected = cuts(&bytes, bytes.len());
        assert!(expected.len() > 5);
        for piece in [1, 63, 1024, 4096, 65_537] {
            assert_eq!(cuts(&bytes, piece), expected);
        }
    }

    #[test]
    fn equal_stretches_are_cut_alike_wherever_they_lie() {
        let common = noise(600_000);
        let here = cuts(&common, 4096);
        let there = cuts(&[b"a prefix".to_vec(), common].concat(), 4096);
        assert!(here.len() > 5);
        assert_eq!(here.len(), there.len());
        assert!(here[1..].iter().zip(&there[1..]).all(|(here, there)| here.0 + 8 == there.0));
    }

    #[test]
    fn data_without_cuts_ends_at_the_limit() {
        let bytes = vec![0xff; 9 << 20];
        assert_eq!(cuts(&bytes, 1 << 20), [(4 << 20, false), (8 << 20, false), (9 << 20, false)]);
    }
}
