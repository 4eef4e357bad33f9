//! [`ReadObserver`]: sees the reads of an image that this process answers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tarpon_layer::ObjectId;

/// Sees the bytes of an image that readers got. In mode `native` the kernel reads complete objects without requests: then it sees those
/// that a reader waited for, and those that were fetched along with them.
pub trait ReadObserver: Send + Sync {
    /// A reader got these bytes of an object of `size` bytes, after it had waited, or the kernel got them with those of a reader
    /// ([`Fetcher::page_in`](crate::Fetcher::page_in)). Must not block. Until it returns `true`, it sees only reads that waited; from then on
    /// all.
    fn was_read(&self, object: &ObjectId, size: u64, range: Range<u64>, waited: Duration) -> bool;
}

/// Numbers of observers of all images, so that a read without an observer costs one atomic load.
#[derive(Default)]
pub(crate) struct Observers {
    all: AtomicUsize,
    /// Those that see all reads.
    of_all_reads: AtomicUsize,
}

impl Observers {
    /// Whether there may be an observer of a read that waited so long.
    pub(crate) fn may_see(&self, waited: Duration) -> bool {
        let count = if waited.is_zero() { &self.of_all_reads } else { &self.all };
        count.load(Relaxed) > 0
    }
}

/// The observer of an image.
pub(crate) struct Observed {
    observer: RwLock<Option<Arc<dyn ReadObserver>>>,
    sees_all_reads: AtomicBool,
    observers: Arc<Observers>,
}

impl Observed {
    pub(crate) fn new(observers: Arc<Observers>) -> Self {
        Self { observer: RwLock::default(), sees_all_reads: AtomicBool::new(false), observers }
    }

    /// The observer of a read that waited so long, if there is one.
    pub(crate) fn by(&self, waited: Duration) -> Option<Arc<dyn ReadObserver>> {
        if waited.is_zero() && !self.sees_all_reads.load(Relaxed) {
            return None;
        }
        self.observer.read().clone()
    }

    /// Shows the observer all reads from now on.
    pub(crate) fn show_all_reads(&self) {
        let observer = self.observer.read();
        if observer.is_some() && !self.sees_all_reads.swap(true, Relaxed) {
            self.observers.of_all_reads.fetch_add(1, Relaxed);
        }
    }

    /// Replaces the observer.
    pub(crate) fn set(&self, observer: Option<Arc<dyn ReadObserver>>) {
        let mut current = self.observer.write();
        if self.sees_all_reads.swap(false, Relaxed) {
            self.observers.of_all_reads.fetch_sub(1, Relaxed);
        }
        match (current.is_some(), observer.is_some()) {
            (false, true) => drop(self.observers.all.fetch_add(1, Relaxed)),
            (true, false) => drop(self.observers.all.fetch_sub(1, Relaxed)),
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Anybody;

    impl ReadObserver for Anybody {
        fn was_read(&self, _: &ObjectId, _: u64, _: Range<u64>, _: Duration) -> bool {
            true
        }
    }

    #[test]
    fn an_observer_sees_reads_that_did_not_wait_only_once_it_wants_them() {
        let observers = Arc::<Observers>::default();
        let (one, other) = (Observed::new(observers.clone()), Observed::new(observers.clone()));
        let waits = [Duration::ZERO, Duration::from_millis(1)];
        let sees = |observed: &Observed| waits.map(|waited| observed.by(waited).is_some());
        let may_see = || waits.map(|waited| observers.may_see(waited));
        one.show_all_reads();
        assert_eq!((sees(&one), may_see()), ([false, false], [false, false]), "there is none");
        one.set(Some(Arc::new(Anybody)));
        assert_eq!((sees(&one), sees(&other), may_see()), ([false, true], [false, false], [false, true]));
        one.show_all_reads();
        one.show_all_reads();
        assert_eq!((sees(&one), sees(&other), may_see()), ([true, true], [false, false], [true, true]));
        one.set(Some(Arc::new(Anybody)));
        assert_eq!((sees(&one), may_see()), ([false, true], [false, true]), "another one");
        one.show_all_reads();
        drop(one);
        assert_eq!(may_see(), [false, false]);
    }
}
