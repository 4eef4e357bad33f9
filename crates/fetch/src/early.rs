//! Accounts for bytes that were fetched before a reader requested them, and whether they were used; passes reads to observers.
//!
//! A chunk that a boot pack or read-ahead fetched is on the image's [`Ledger`](crate::ledger::Ledger) until it is read. The unit is
//! the chunk: of a chunk that is read in part, no smaller part could have been fetched. The kernel reads some files itself: an
//! object that was opened as a plain local file through FUSE counts as read. In mode `native`, where the kernel sends no requests,
//! the use of complete objects is unknown, and so is that of bytes that were put into the kernel's page cache.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tarpon_layer::ObjectId;
use tarpon_layer::chunks::ObjectEntry;

use crate::chunk::PieceChunk;
use crate::image::{Image, Images};
use crate::lanes::Lane;
use crate::ledger::{lane_of, state_in};

impl Image {
    /// Records a chunk that arrived in this lane. Call it before a reader gets the chunk, so that the read finds it on the ledger.
    pub(crate) fn brought(&self, lane: Lane, chunk: &PieceChunk) {
        let state = state_in(lane);
        if state.is_none() && self.early.is_empty() {
            return;
        }
        let Some(number) = self.number_of(chunk) else { return };
        match state {
            Some(state) => {
                self.tally.add(|counters| &counters.early(lane).brought, chunk.size);
                self.early.enter(number, state);
            }
            // It was fetched early, lost before the first read, and fetched again.
            None => drop(self.early.remove(number)),
        }
    }

    fn number_of(&self, chunk: &PieceChunk) -> Option<u32> {
        self.table.chunk_at(&self.table.find(&chunk.object)?, chunk.object_offset)
    }

    /// Whether the kernel reads complete objects without requests.
    pub(crate) fn is_read_by_kernel(&self) -> bool {
        *self.early.kernel_reads.lock()
    }

    /// Counts the use of complete objects as unknown from now on.
    pub(crate) fn kernel_reads(&self) {
        let mut kernel_reads = self.early.kernel_reads.lock();
        if !std::mem::replace(&mut *kernel_reads, true) {
            self.early.all_complete().for_each(|number| {
                self.becomes_unknown(number, self.table.chunk(number).map_or(0, |entry| entry.chunk.size));
            });
        }
    }

    fn becomes_unknown(&self, number: u32, size: u64) {
        if let Some(lane) = lane_of(self.early.remove(number)) {
            self.tally.add(|counters| &counters.early(lane).unknown, size);
        }
    }

    /// The numbers and sizes of the chunks that hold any of these bytes.
    fn chunks_in(&self, object: &ObjectEntry, range: &Range<u64>) -> impl Iterator<Item = (u32, u64)> {
        let first = if range.is_empty() { None } else { self.table.chunk_at(object, range.start) };
        let numbers = first.map_or(0..0, |first| first..object.chunks.end);
        let end = range.end;
        let chunks = numbers.map_while(|number| Some((number, self.table.chunk(number)?.chunk)));
        chunks.take_while(move |(_, chunk)| chunk.object_offset < end).map(|(number, chunk)| (number, chunk.size))
    }

    fn was_read(&self, object: &ObjectEntry, range: &Range<u64>) {
        for (number, size) in self.chunks_in(object, range) {
            if let Some(lane) = lane_of(self.early.remove(number)) {
                self.tally.add(|counters| &counters.early(lane).used, size);
            }
        }
    }

    fn completed(&self, object: &ObjectEntry) {
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
    /// Records that a reader got these bytes, from any image, after it had waited.
    pub(crate) fn was_read(&self, object: &ObjectId, range: Range<u64>, waited: Duration) {
        self.observe(object, &range, waited);
        self.on_ledgers(object, |image, entry| image.was_read(entry, &range));
    }

    /// Records that these bytes are in the kernel's page cache, where they are read without requests.
    pub(crate) fn paged_in(&self, object: &ObjectId, range: &Range<u64>) {
        self.on_ledgers(object, |image, entry| {
            image.chunks_in(entry, range).for_each(|(number, size)| image.becomes_unknown(number, size));
        });
    }

    /// Passes the read to the observers of all images that have the object: readers name only the object. Costs one atomic load while
    /// there is no observer.
    pub(crate) fn observe(&self, object: &ObjectId, range: &Range<u64>, waited: Duration) {
        if !self.observers.may_see(waited) {
            return;
        }
        // An observer may drop an image, which takes the lock of the list.
        for (image, observer, size) in self.observers_of(object, waited) {
            if observer.was_read(object, size, range.start..range.end.min(size), waited) {
                image.observed.show_all_reads();
            }
        }
    }

    /// Records that the object is a plain local file now.
    pub(crate) fn completed(&self, object: &ObjectId) {
        self.on_ledgers(object, Image::completed);
    }

    /// Costs one atomic load while all ledgers are empty.
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
