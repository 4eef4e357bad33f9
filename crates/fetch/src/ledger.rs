//! [`Ledger`]: the chunks of an image that were fetched before a reader requested them and have not been read since.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::lanes::Lane;

/// Chunks per allocation, which is made with the first of them that is fetched early. An image costs at most one byte for each chunk
/// of its table, and none if nothing is fetched early.
const PAGE_CHUNKS: u32 = 4096;

/// State of a chunk that is not on the ledger.
const OFF: u8 = 0;
/// Added to the state of a chunk whose object is complete.
const COMPLETE: u8 = 0x80;

/// The state of a chunk that arrived in this lane. `None` if a reader requested it.
pub(crate) fn state_in(lane: Lane) -> Option<u8> {
    match lane {
        // A whole download does not predict what will be read, so its use is not counted.
        Lane::Demand | Lane::Whole => None,
        Lane::Trace => Some(1),
        Lane::Ahead => Some(2),
    }
}

pub(crate) fn lane_of(state: u8) -> Option<Lane> {
    [Lane::Trace, Lane::Ahead].into_iter().find(|lane| state_in(*lane) == Some(state & !COMPLETE))
}

/// The chunks of one image that were fetched early and not read since.
pub(crate) struct Ledger {
    pages: Box<[OnceLock<Box<[AtomicU8]>>]>,
    /// Entries of this image, and of all images of the host.
    open: AtomicU64,
    open_in_all: Arc<AtomicU64>,
    /// Whether the kernel reads complete objects itself. These get no entry, because every read would have to look it up for ever.
    pub(crate) kernel_reads: Mutex<bool>,
}

impl Ledger {
    /// A ledger for a table of `chunks` chunks.
    pub(crate) fn new(chunks: u32, open_in_all: Arc<AtomicU64>) -> Self {
        let pages = (0..chunks.div_ceil(PAGE_CHUNKS)).map(|_| OnceLock::new()).collect();
        Self { pages, open: AtomicU64::new(0), open_in_all, kernel_reads: Mutex::new(false) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.load(Relaxed) == 0
    }

    fn find(&self, chunk: u32) -> Option<&AtomicU8> {
        self.pages.get((chunk / PAGE_CHUNKS) as usize)?.get()?.get((chunk % PAGE_CHUNKS) as usize)
    }

    /// Enters the chunk; returns its previous state.
    pub(crate) fn enter(&self, chunk: u32, state: u8) -> u8 {
        let Some(page) = self.pages.get((chunk / PAGE_CHUNKS) as usize) else { return OFF };
        let page = page.get_or_init(|| (0..PAGE_CHUNKS).map(|_| AtomicU8::new(OFF)).collect());
        let before = page[(chunk % PAGE_CHUNKS) as usize].swap(state, Relaxed);
        if before == OFF {
            self.open.fetch_add(1, Relaxed);
            self.open_in_all.fetch_add(1, Relaxed);
        }
        before
    }

    /// Removes the chunk; returns its previous state.
    pub(crate) fn remove(&self, chunk: u32) -> u8 {
        let Some(state) = self.find(chunk).filter(|state| state.load(Relaxed) != OFF) else { return OFF };
        let before = state.swap(OFF, Relaxed);
        if before != OFF {
            self.open.fetch_sub(1, Relaxed);
            self.open_in_all.fetch_sub(1, Relaxed);
        }
        before
    }

    /// Marks the object of the chunk as complete.
    pub(crate) fn complete(&self, chunk: u32) {
        let complete = |state| (state != OFF).then_some(state | COMPLETE);
        let _off = self.find(chunk).map(|state| state.fetch_update(Relaxed, Relaxed, complete));
    }

    /// The entered chunks whose objects are complete.
    pub(crate) fn all_complete(&self) -> impl Iterator<Item = u32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_takes_memory_only_for_entries_and_subtracts_them_when_dropped() {
        let all = Arc::new(AtomicU64::new(0));
        let ledger = Ledger::new(3 * PAGE_CHUNKS + 1, all.clone());
        assert_eq!(ledger.remove(5), OFF);
        assert_eq!(ledger.enter(2 * PAGE_CHUNKS, 1), OFF);
        assert_eq!(ledger.enter(2 * PAGE_CHUNKS, 2), 1, "once more, and still one chunk");
        assert_eq!(ledger.enter(4 * PAGE_CHUNKS, 1), OFF, "no such chunk");
        assert_eq!(ledger.pages.iter().filter(|page| page.get().is_some()).count(), 1);
        assert_eq!(ledger.enter(3 * PAGE_CHUNKS, 1), OFF);
        assert_eq!(all.load(Relaxed), 2);
        ledger.complete(3 * PAGE_CHUNKS);
        ledger.complete(7);
        assert_eq!(ledger.all_complete().collect::<Vec<_>>(), [3 * PAGE_CHUNKS]);
        assert_eq!((ledger.remove(3 * PAGE_CHUNKS), ledger.remove(3 * PAGE_CHUNKS)), (1 | COMPLETE, OFF));
        drop(ledger);
        assert_eq!(all.load(Relaxed), 0, "nothing of an image that is gone is waited for");
    }
}
