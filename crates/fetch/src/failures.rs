//! [`Failures`]: objects whose reads fail at once for a while.

use std::time::Duration;

use parking_lot::Mutex;
use tarpon_layer::ObjectId;
use tokio::time::Instant;

use crate::config::MEMO_ENTRIES;
use crate::error::ReadError;
use crate::lru::Lru;

/// Errors by object, each until a time.
pub(crate) struct Failures {
    entries: Mutex<Lru<ObjectId, (Instant, ReadError)>>,
    memo: Duration,
}

impl Failures {
    /// Errors are remembered for `memo`.
    pub(crate) fn new(memo: Duration) -> Self {
        Self { entries: Mutex::new(Lru::new(MEMO_ENTRIES)), memo }
    }

    pub(crate) fn remembered(&self, id: &ObjectId) -> Option<ReadError> {
        let mut entries = self.entries.lock();
        entries.get(id).filter(|(until, _)| Instant::now() < *until).map(|(_, error)| error.clone())
    }

    pub(crate) fn remember(&self, id: &ObjectId, error: &ReadError) {
        self.entries.lock().insert(*id, (Instant::now() + self.memo, error.clone()), 1);
    }

    pub(crate) fn forget(&self, id: &ObjectId) {
        self.entries.lock().remove(id);
    }

    pub(crate) fn forget_all(&self) {
        self.entries.lock().retain(|_, _| false);
    }
}
