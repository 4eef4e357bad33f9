//! [`Allowance`]: the number of bytes that may be fetched along with the pieces that readers wait for.

use parking_lot::Mutex;

/// The neighbours (`neighbours.rs`) that one image may fetch: at most as many bytes as readers' own pieces.
#[derive(Default)]
pub(crate) struct Allowance(Mutex<Balance>);

#[derive(Default)]
struct Balance {
    demanded: u64,
    given: u64,
}

impl Balance {
    fn left(&self) -> u64 {
        self.demanded.saturating_sub(self.given)
    }
}

impl Allowance {
    /// Adds to the allowance: a piece arrived that a reader requested.
    pub(crate) fn earn(&self, bytes: usize) {
        self.0.lock().demanded += bytes as u64;
    }

    /// Returns the bytes of a neighbour that was paid for and did not arrive.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut account = self.0.lock();
        account.given = account.given.saturating_sub(bytes);
    }

    pub(crate) fn left(&self) -> u64 {
        self.0.lock().left()
    }

    /// Pays for pieces that follow `end` in their layer and end at `ends`, with the bytes between them: for as many of the first as the
    /// allowance covers. Returns how many these are.
    pub(crate) fn spend(&self, mut end: u64, ends: impl Iterator<Item = u64>) -> usize {
        let mut account = self.0.lock();
        let all = account.left();
        let mut left = all;
        let paid = ends.take_while(|next| {
            let cost = next.saturating_sub(end);
            end = *next;
            left.checked_sub(cost).map(|rest| left = rest).is_some()
        });
        let paid = paid.count();
        account.given += all - left;
        paid
    }
}
