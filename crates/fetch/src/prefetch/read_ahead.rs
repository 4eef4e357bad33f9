//! Detects that an object is read from front to back, and decides how far ahead to fetch.
//!
//! The kernel reads ahead by itself and sends neighbouring requests at once, which arrive in any order. So a *run* may have holes for a
//! moment: it is a set of reads near each other, and counts as a sequence while nearly all of it was read.
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
    /// Bytes of the run that were read. Bytes that are read again count as those of a hole.
    seen: u64,
    /// End of the bytes that were requested ahead.
    ahead: u64,
    /// Number of reads in the run.
    reads: u32,
    /// Number of the last reads after which the run had holes.
    holey: u32,
    /// Bytes that the kernel has without a read of them, those that were put there last.
    paged_in: Range<u64>,
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
/// A read that begins so far behind the expected place, or ends so far before it, still belongs to the run: two others of the largest
/// size that the kernel requests (1 MiB) may be under way beside it. A reader that jumped back further begins a new run, so that a
/// second pass over the object is read ahead like the first one.
const OUT_OF_ORDER: u64 = 2 << 20;
/// A run counts as a sequence while its holes are at most this part of it. Reads that jump within a few megabytes leave larger ones.
const HOLES: u64 = 4;
/// A hole that is not filled within so many reads was skipped: a program that reads the header of a file and then a part further on. The
/// kernel has fewer requests of one reader under way.
const SKIPPED: u32 = 8;

impl Sequence {
    /// Records bytes that were put into the kernel's page cache, and of which no read is seen.
    pub(crate) fn note_paged_in(&mut self, bytes: Range<u64>) {
        let follow = bytes.start <= self.paged_in.end && bytes.end >= self.paged_in.end;
        self.paged_in = if follow { self.paged_in.start.min(bytes.start)..bytes.end } else { bytes };
    }

    /// Records a read and returns what to fetch ahead, if anything.
    pub(crate) fn note(&mut self, read: Range<u64>, size: u64, window: Window) -> Option<Ahead> {
        let read = self.with_paged_in(read);
        let length = read.end.saturating_sub(read.start);
        if self.reads == 0 || !self.belongs(&read) {
            self.begin(&read, read.end);
            return None;
        }
        self.reads = self.reads.saturating_add(1);
        self.start = self.start.min(read.start);
        self.next = self.next.max(read.end);
        self.ahead = self.ahead.max(self.next);
        let run = self.next - self.start;
        self.seen = self.seen.saturating_add(length).min(run);
        let wide = (self.seen / 2).min(window.max);
        let until = self.next.saturating_add(wide).min(size);
        // Only when half of the window is used up: fewer and longer requests.
        let used_up = self.ahead - self.next <= wide / 2;
        let has_holes = run - self.seen > run / HOLES;
        self.holey = if has_holes { self.holey + 1 } else { 0 };
        if self.holey >= SKIPPED {
            self.begin(&read, self.ahead.max(read.end));
            return None;
        }
        if self.reads < SEQUENTIAL || has_holes || wide < window.min || until <= self.ahead || !used_up {
            return None;
        }
        let range = self.ahead..until;
        self.ahead = until;
        Some(Ahead { range, largest_chunk: self.seen })
    }

    /// Begins a run with this read.
    fn begin(&mut self, read: &Range<u64>, ahead: u64) {
        let (seen, paged_in) = (read.end.saturating_sub(read.start), self.paged_in.clone());
        *self = Self { start: read.start, next: read.end, seen, ahead, reads: 1, holey: 0, paged_in };
    }

    /// The read, with the bytes before it that the reader got from the page cache: it goes on where these end.
    fn with_paged_in(&self, read: Range<u64>) -> Range<u64> {
        let Range { start, end } = self.paged_in;
        if read.start == end && start <= self.next && self.next < end { self.next..read.end } else { read }
    }

    /// Whether the read goes on with the run.
    fn belongs(&self, read: &Range<u64>) -> bool {
        let is_near = |one: u64, other: u64| one <= other.saturating_add(OUT_OF_ORDER);
        is_near(read.start, self.next) && is_near(self.next, read.end)
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

    /// The kernel's read-ahead at work: three requests of the largest size are under way and arrive in reverse.
    #[test]
    fn large_reads_in_any_order_get_windows_that_grow_to_the_maximum() {
        for length in [256 * KIB, 1024 * KIB] {
            let reversed = (0..256).map(|i| (i / 3 * 3 + 2 - i % 3) * length);
            let ranges = reads(reversed, length);
            assert!(ranges.last().is_some_and(|range| range.end - range.start >= 4 << 20), "{ranges:?}");
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
        }
    }

    /// The pages of 256 KiB around each read are in the page cache before the next one.
    fn reads_of_pages(offsets: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let mut sequence = Sequence::default();
        let read = |at: u64| {
            let ahead = sequence.note(at..at + 4 * KIB, 1 << 30, WINDOW);
            let block = at / (256 * KIB) * 256 * KIB;
            sequence.note_paged_in(block..block + 128 * KIB);
            sequence.note_paged_in(block + 128 * KIB..block + 256 * KIB);
            ahead.map(|ahead| ahead.range)
        };
        offsets.into_iter().filter_map(read).collect()
    }

    #[test]
    fn a_reader_that_gets_most_pages_from_the_page_cache_is_read_ahead_like_others() {
        let ranges = reads_of_pages((0..512).map(|block| block * 256 * KIB));
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
        assert!(ranges.last().is_some_and(|range| range.end - range.start >= 4 << 20), "{ranges:?}");
    }

    #[test]
    fn page_faults_in_any_block_cause_no_read_ahead() {
        assert!(reads_of_pages((0..64).map(|i| (i * 7 % 64) * 256 * KIB + 16 * KIB)).is_empty());
    }

    #[test]
    fn a_part_that_was_skipped_does_not_prevent_read_ahead_behind_it() {
        let file = [0].into_iter().chain((15..39).map(|i| i * 128 * KIB));
        assert!(!reads(file, 128 * KIB).is_empty(), "3 MiB in sequence, behind the header and a hole of 1.75 MiB");
    }

    #[test]
    fn reads_that_jump_within_a_few_megabytes_cause_no_read_ahead() {
        // Page faults in a library of 4 MiB, half of which are for the kernel's 128 KiB around them.
        let faults = (0..16).map(|i| (i * 7 % 16) * 256 * KIB);
        assert!(reads(faults, 128 * KIB).is_empty());
    }

    #[test]
    fn a_second_pass_is_read_ahead_like_the_first() {
        let pass = (0..64).map(|i| i * 128 * KIB);
        let (once, twice) = (reads(pass.clone(), 128 * KIB), reads(pass.clone().chain(pass), 128 * KIB));
        assert_eq!(twice, [once.clone(), once].concat());
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
        fn any_reads_keep_the_bounds(
            reads in prop::collection::vec((0_u64..4 << 20, 1_u64..1 << 20, any::<bool>(), 0_u64..1 << 19), 1..80),
        ) {
            let size = 4 << 20;
            let window = Window { min: 64 << 10, max: 512 << 10 };
            let mut sequence = Sequence::default();
            let mut end = 0;
            for (at, length, follows, paged_in) in reads {
                let start = if follows { end } else { at };
                let read = start.min(size)..(start + length).min(size);
                end = (read.end + paged_in).min(size);
                if let Some(ahead) = sequence.note(read.clone(), size, window) {
                    prop_assert!(ahead.range.start >= read.end && ahead.range.end <= size);
                    prop_assert!(ahead.range.end - sequence.next <= window.max);
                    prop_assert!(ahead.range.end - sequence.next <= sequence.seen / 2);
                    prop_assert!(sequence.seen <= sequence.next - sequence.start);
                }
                sequence.note_paged_in(read.start..end);
            }
        }
    }
}
