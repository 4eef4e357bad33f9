//! [`Allowance`]: the number of bytes that may be fetched along with the pieces that readers wait for.

use parking_lot::Mutex;

/// The bytes of neighbours (`neighbours.rs`) that one image may still fetch: in all at most as many as those of readers' own pieces.
#[derive(Default)]
pub(crate) struct Allowance(Mutex<u64>);

impl Allowance {
    /// Adds to the allowance: a piece arrived that a reader requested.
    pub(crate) fn earn(&self, bytes: usize) {
        *self.0.lock() += bytes as u64;
    }

    /// Returns the bytes of a neighbour that was paid for and did not arrive.
    pub(crate) fn give_back(&self, bytes: u64) {
        *self.0.lock() += bytes;
    }

    pub(crate) fn left(&self) -> u64 {
        *self.0.lock()
    }

    /// Pays for pieces that follow `end` in their layer and end at `ends`, with the bytes between them: for as many of the first as the
    /// allowance covers. Returns how many these are.
    pub(crate) fn spend(&self, mut end: u64, ends: impl Iterator<Item = u64>) -> usize {
        let mut left = self.0.lock();
        let paid = ends.take_while(|next| {
            let cost = next.saturating_sub(end);
            end = *next;
            left.checked_sub(cost).map(|rest| *left = rest).is_some()
        });
        paid.count()
    }
}
