//! Detects that an object is read from front to back, and decides how far ahead to fetch.
//!
//! Invariant: read-ahead never exceeds half of what was read in sequence. A reader that stops anywhere has cost at most half as
//! much again, which keeps short and jumping reads (a Python import, a page fault in a library) close to the bytes that they use.

use std::ops::Range;

/// The position of one reader in an object, as inferred from its reads.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// First byte of the run of reads that follow each other.
    start: u64,
    /// Where the next read of the run would begin.
    next: u64,
    /// End of the bytes that were requested ahead.
    ahead: u64,
    /// Number of reads in the run.
    reads: u32,
}

/// Bounds of the window of a [`Sequence`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Nothing is requested ahead while the window is smaller.
    pub(crate) min: u64,
    /// Largest window.
    pub(crate) max: u64,
}

/// A range to fetch ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Chunks that begin in this range of the object.
    pub(crate) range: Range<u64>,
    /// Larger chunks are omitted: no more than was read.
    pub(crate) largest_chunk: u64,
}

/// Reads that follow each other before they count as a sequence.
const SEQUENTIAL: u32 = 3;

impl Sequence {
    /// Records a read and returns what to fetch ahead, if anything.
    pub(crate) fn note(&mut self, read: Range<u64>, size: u64, window: Window) -> Option<Ahead> {
        // The kernel's own readahead sends neighbouring requests at once, so they arrive in any order: a read that
        // begins a little before or after the expected place goes on with the run.
        let slack = window.min;
        let follows = read.start <= self.next.saturating_add(slack) && read.end.saturating_add(slack) >= self.next;
        if self.reads == 0 || !follows {
            *self = Self { start: read.start, next: read.end, ahead: read.end, reads: 1 };
            return None;
        }
        self.reads = self.reads.saturating_add(1);
        self.start = self.start.min(read.start);
        self.next = self.next.max(read.end);
        self.ahead = self.ahead.max(self.next);
        let run = self.next - self.start;
        let wide = (run / 2).min(window.max);
        let until = self.next.saturating_add(wide).min(size);
        // Only when half of the window is used up: fewer and longer requests.
        let used_up = self.ahead - self.next <= wide / 2;
        if self.reads < SEQUENTIAL || wide < window.min || until <= self.ahead || !used_up {
            return None;
        }
        let range = self.ahead..until;
        self.ahead = until;
        Some(Ahead { range, largest_chunk: run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const WINDOW: Window = Window { min: 128 * KIB, max: 8 << 20 };

    fn reads(offsets: impl IntoIterator<Item = u64>, length: u64) -> Vec<Range<u64>> {
        let mut sequence = Sequence::default();
        offsets
            .into_iter()
            .filter_map(|at| sequence.note(at..at + length, 1 << 30, WINDOW))
            .map(|ahead| ahead.range)
            .collect()
    }

    #[test]
    fn distant_reads_cause_no_read_ahead() {
        assert!(reads((0..50).map(|i| (i * 7919 % 50) * 4 * 1024 * KIB), 128 * KIB).is_empty());
    }

    #[test]
    fn one_read_causes_no_read_ahead() {
        assert!(reads([0], 128 * KIB).is_empty());
    }

    #[test]
    fn a_sequential_reader_gets_ranges_that_follow_each_other_and_grow_to_the_maximum() {
        let ranges = reads((0..1024).map(|i| i * 128 * KIB), 128 * KIB);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        assert!(ranges.last().is_some_and(|range| range.end - range.start >= 4 << 20), "{ranges:?}");
    }

    #[test]
    fn read_ahead_is_at_most_half_of_the_sequence() {
        let mut sequence = Sequence::default();
        for i in 0..4096 {
            let end = (i + 1) * 32 * KIB;
            if let Some(ahead) = sequence.note(i * 32 * KIB..end, 1 << 30, WINDOW) {
                assert!(ahead.range.end - end <= end / 2);
            }
        }
    }

    #[test]
    fn neighbouring_reads_in_the_wrong_order_are_still_a_sequence() {
        let swapped = (0..64).map(|i| (i ^ 1) * 128 * KIB);
        assert!(!reads(swapped, 128 * KIB).is_empty());
    }

    #[test]
    fn nothing_is_requested_past_the_end() {
        let mut sequence = Sequence::default();
        let size = 1024 * KIB;
        for i in 0..8 {
            if let Some(ahead) = sequence.note(i * 128 * KIB..(i + 1) * 128 * KIB, size, WINDOW) {
                assert!(ahead.range.end <= size);
            }
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the reads are: nothing is requested twice in a row, behind the reader, past the end, or further ahead than half
        /// of the run.
        #[test]
        fn any_reads_keep_the_bounds(reads in prop::collection::vec((0_u64..4 << 20, 1_u64..1 << 20, any::<bool>()), 1..80)) {
            let size = 4 << 20;
            let window = Window { min: 64 << 10, max: 512 << 10 };
            let mut sequence = Sequence::default();
            let mut end = 0;
            for (at, length, follows) in reads {
                let start = if follows { end } else { at };
                let read = start.min(size)..(start + length).min(size);
                end = read.end;
                if let Some(ahead) = sequence.note(read.clone(), size, window) {
                    prop_assert!(ahead.range.start >= read.end && ahead.range.end <= size);
                    prop_assert!(ahead.range.end - sequence.next <= window.max);
                    prop_assert!(ahead.range.end - sequence.next <= (sequence.next - sequence.start) / 2);
                }
            }
        }
    }
}
