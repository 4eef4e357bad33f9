//! [`ReadObserver`]: sees the reads of an image that this process answers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tarpon_layer::ObjectId;

/// Sees the bytes of an image that readers got. In mode `native` the kernel reads complete objects without requests: then it sees those
/// that a reader waited for, and those that were fetched along with them.
pub trait ReadObserver: Send + Sync {
    /// A reader got these bytes of an object of `size` bytes, after it had waited. Called on the path of each read: must not block.
    fn was_read(&self, object: &ObjectId, size: u64, range: Range<u64>, waited: Duration);
}

/// The observer of an image.
#[derive(Default)]
pub(crate) struct Observed {
    observer: RwLock<Option<Arc<dyn ReadObserver>>>,
    /// Number of observers of all images.
    in_all: Arc<AtomicUsize>,
}

impl Observed {
    pub(crate) fn new(in_all: Arc<AtomicUsize>) -> Self {
        Self { observer: RwLock::default(), in_all }
    }

    /// The observer, if there is one.
    pub(crate) fn get(&self) -> Option<Arc<dyn ReadObserver>> {
        self.observer.read().clone()
    }

    /// Replaces the observer.
    pub(crate) fn set(&self, observer: Option<Arc<dyn ReadObserver>>) {
        let mut current = self.observer.write();
        match (current.is_some(), observer.is_some()) {
            (false, true) => drop(self.in_all.fetch_add(1, Relaxed)),
            (true, false) => drop(self.in_all.fetch_sub(1, Relaxed)),
            (true, true) | (false, false) => {}
        }
        *current = observer;
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.set(None);
    }
}
