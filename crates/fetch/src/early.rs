//! What was brought before anybody asked for it, and whether somebody did in the end.
//!
//! Each chunk of an image that a boot pack or read-ahead brought is on a ledger until somebody reads it. Chunks, not bytes: of a
//! chunk that is read in part nobody could have brought less. The kernel reads some files by itself: an object that it opened as a plain local
//! file through us counts as read, and in mode `native`, where it does not ask us at all, what became of complete objects is not known.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tarpon_layer::ObjectId;
use tarpon_layer::chunks::ObjectEntry;

use crate::image::{Image, Images};
use crate::lanes::Lane;
use crate::plan::PieceChunk;
use crate::stats::Counter;

/// Chunks whose bytes of memory are allocated together, at the first of them that is brought early. An image costs at most one byte for each
/// chunk of its table, and none if nothing is brought early.
const PAGE_CHUNKS: u32 = 4096;

/// What was brought early in one lane, in decoded bytes: `used + unused + unknown = brought`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Early {
    /// Bytes of the chunks that were brought and were not here before.
    pub brought: u64,
    /// Bytes of those of them that a reader got: from the store later, or by joining while they were on their way.
    pub used: u64,
    /// Bytes of those that nobody has read so far.
    pub unused: u64,
    /// Bytes of complete objects that the kernel may read without asking us (mode `native`), and that nobody had read through us before.
    pub unknown: u64,
}

/// Bytes of one lane.
#[derive(Default)]
pub(crate) struct EarlyCounters {
    brought: Counter,
    used: Counter,
    unknown: Counter,
}

impl EarlyCounters {
    pub(crate) fn snapshot(&self) -> Early {
        // In this order: what is counted in between does not make less brought than used.
        let (used, unknown) = (self.used.get(), self.unknown.get());
        let brought = self.brought.get().max(used.saturating_add(unknown));
        Early { brought, used, unused: brought - used - unknown, unknown }
    }
}

/// State of a chunk that is not on the ledger.
const OFF: u8 = 0;
/// Added to the state of a chunk whose object is complete.
const COMPLETE: u8 = 0x80;

/// The state of a chunk that came in this lane; none if a reader had asked for it.
fn on(lane: Lane) -> Option<u8> {
    match lane {
        // What a whole download brings is not a guess at what will be read.
        Lane::Demand | Lane::Whole => None,
        Lane::Trace => Some(1),
        Lane::Ahead => Some(2),
    }
}

fn lane_of(state: u8) -> Option<Lane> {
    [Lane::Trace, Lane::Ahead].into_iter().find(|lane| on(*lane) == Some(state & !COMPLETE))
}

/// The chunks of one image that were brought early and that nobody has read.
pub(crate) struct Ledger {
    pages: Box<[OnceLock<Box<[AtomicU8]>>]>,
    /// Chunks of this image and of the host.
    open: AtomicU64,
    open_in_all: Arc<AtomicU64>,
    /// The kernel reads complete objects by itself: those are not kept on the ledger, where every read would be looked up for ever.
    kernel_reads: Mutex<bool>,
}

impl Ledger {
    /// For a table of so many chunks.
    pub(crate) fn new(chunks: u32, open_in_all: Arc<AtomicU64>) -> Self {
        let pages = (0..chunks.div_ceil(PAGE_CHUNKS)).map(|_| OnceLock::new()).collect();
        Self { pages, open: AtomicU64::new(0), open_in_all, kernel_reads: Mutex::new(false) }
    }

    fn is_empty(&self) -> bool {
        self.open.load(Relaxed) == 0
    }

    fn find(&self, chunk: u32) -> Option<&AtomicU8> {
        self.pages.get((chunk / PAGE_CHUNKS) as usize)?.get()?.get((chunk % PAGE_CHUNKS) as usize)
    }

    /// Puts the chunk on the ledger, and says what it was before.
    fn enter(&self, chunk: u32, state: u8) -> u8 {
        let Some(page) = self.pages.get((chunk / PAGE_CHUNKS) as usize) else { return OFF };
        let page = page.get_or_init(|| (0..PAGE_CHUNKS).map(|_| AtomicU8::new(OFF)).collect());
        let before = page[(chunk % PAGE_CHUNKS) as usize].swap(state, Relaxed);
        if before == OFF {
            self.open.fetch_add(1, Relaxed);
            self.open_in_all.fetch_add(1, Relaxed);
        }
        before
    }

    /// Takes the chunk off the ledger, and says what it was.
    fn strike(&self, chunk: u32) -> u8 {
        let Some(state) = self.find(chunk).filter(|state| state.load(Relaxed) != OFF) else { return OFF };
        let before = state.swap(OFF, Relaxed);
        if before != OFF {
            self.open.fetch_sub(1, Relaxed);
            self.open_in_all.fetch_sub(1, Relaxed);
        }
        before
    }

    /// The object of the chunk is complete.
    fn complete(&self, chunk: u32) {
        let complete = |state| (state != OFF).then_some(state | COMPLETE);
        let _off = self.find(chunk).map(|state| state.fetch_update(Relaxed, Relaxed, complete));
    }

    /// The chunks on the ledger whose objects are complete.
    fn all_complete(&self) -> impl Iterator<Item = u32> {
        let pages = (0..).step_by(PAGE_CHUNKS as usize).zip(&self.pages);
        let pages = pages.filter_map(|(first, page)| Some((first, page.get()?)));
        let chunks = pages.flat_map(|(first, page)| (first..).zip(page.iter()));
        chunks.filter(|(_, state)| state.load(Relaxed) & COMPLETE != 0).map(|(chunk, _)| chunk)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.open_in_all.fetch_sub(self.open.load(Relaxed), Relaxed);
    }
}

impl Image {
    /// A chunk came in this lane. Called before anybody gets it: whoever reads it then finds it on the ledger.
    pub(crate) fn brought(&self, lane: Lane, chunk: &PieceChunk) {
        let state = on(lane);
        if state.is_none() && self.early.is_empty() {
            return;
        }
        let Some(number) = self.number_of(chunk) else { return };
        match state {
            Some(state) => {
                self.tally.add(|counters| &counters.early(lane).brought, chunk.size);
                self.early.enter(number, state);
            }
            // It was brought early, was lost before anybody read it, and has come once more.
            None => drop(self.early.strike(number)),
        }
    }

    fn number_of(&self, chunk: &PieceChunk) -> Option<u32> {
        self.table.chunk_at(&self.table.find(&chunk.object)?, chunk.object_offset)
    }

    /// From now on, what becomes of complete objects is not known.
    pub(crate) fn kernel_reads(&self) {
        let mut kernel_reads = self.early.kernel_reads.lock();
        if !std::mem::replace(&mut *kernel_reads, true) {
            self.early.all_complete().for_each(|number| {
                self.becomes_unknown(number, self.table.chunk(number).map_or(0, |entry| entry.chunk.size));
            });
        }
    }

    fn becomes_unknown(&self, number: u32, size: u64) {
        if let Some(lane) = lane_of(self.early.strike(number)) {
            self.tally.add(|counters| &counters.early(lane).unknown, size);
        }
    }

    /// The numbers of the chunks that hold any of these bytes, and their sizes.
    fn chunks_in(&self, object: &ObjectEntry, range: &Range<u64>) -> impl Iterator<Item = (u32, u64)> {
        let first = if range.is_empty() { None } else { self.table.chunk_at(object, range.start) };
        let numbers = first.map_or(0..0, |first| first..object.chunks.end);
        let end = range.end;
        let chunks = numbers.map_while(|number| Some((number, self.table.chunk(number)?.chunk)));
        chunks.take_while(move |(_, chunk)| chunk.object_offset < end).map(|(number, chunk)| (number, chunk.size))
    }

    fn was_read(&self, object: &ObjectEntry, range: &Range<u64>) {
        for (number, size) in self.chunks_in(object, range) {
            if let Some(lane) = lane_of(self.early.strike(number)) {
                self.tally.add(|counters| &counters.early(lane).used, size);
            }
        }
    }

    fn is_complete(&self, object: &ObjectEntry) {
        let kernel_reads = self.early.kernel_reads.lock();
        for (number, size) in self.chunks_in(object, &(0..u64::MAX)) {
            if *kernel_reads {
                self.becomes_unknown(number, size);
            } else {
                self.early.complete(number);
            }
        }
    }
}

impl Images {
    /// A reader got these bytes, whichever image he read them from.
    pub(crate) fn was_read(&self, object: &ObjectId, range: Range<u64>) {
        self.on_ledgers(object, |image, entry| image.was_read(entry, &range));
    }

    /// The object is a plain local file now.
    pub(crate) fn is_complete(&self, object: &ObjectId) {
        self.on_ledgers(object, Image::is_complete);
    }

    /// Costs one look as long as nothing is on any ledger.
    fn on_ledgers(&self, object: &ObjectId, then: impl Fn(&Image, &ObjectEntry)) {
        if self.open_early.load(Relaxed) == 0 {
            return;
        }
        self.each(|image| {
            if !image.early.is_empty()
                && let Some(entry) = image.table.find(object)
            {
                then(image, &entry);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_takes_memory_only_for_what_was_brought_and_takes_back_what_it_counted() {
        let all = Arc::new(AtomicU64::new(0));
        let ledger = Ledger::new(3 * PAGE_CHUNKS + 1, all.clone());
        assert_eq!(ledger.strike(5), OFF);
        assert_eq!(ledger.enter(2 * PAGE_CHUNKS, 1), OFF);
        assert_eq!(ledger.enter(2 * PAGE_CHUNKS, 2), 1, "once more, and still one chunk");
        assert_eq!(ledger.enter(4 * PAGE_CHUNKS, 1), OFF, "no such chunk");
        assert_eq!(ledger.pages.iter().filter(|page| page.get().is_some()).count(), 1);
        assert_eq!(ledger.enter(3 * PAGE_CHUNKS, 1), OFF);
        assert_eq!(all.load(Relaxed), 2);
        ledger.complete(3 * PAGE_CHUNKS);
        ledger.complete(7);
        assert_eq!(ledger.all_complete().collect::<Vec<_>>(), [3 * PAGE_CHUNKS]);
        assert_eq!((ledger.strike(3 * PAGE_CHUNKS), ledger.strike(3 * PAGE_CHUNKS)), (1 | COMPLETE, OFF));
        drop(ledger);
        assert_eq!(all.load(Relaxed), 0, "nothing of an image that is gone is waited for");
    }
}
