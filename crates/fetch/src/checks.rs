//! [`Checks`]: the local objects that are being hashed.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_layer::ObjectId;
use tokio::sync::{Semaphore, watch};

/// Objects below this size do not queue behind larger ones: they take about 10 ms, a large one many seconds.
const SMALL: u64 = 8 << 20;
/// Objects of either size that are hashed at a time, on as many cores: more would only wait for the disk.
const AT_ONCE: usize = 8;

/// Objects that are being hashed.
pub(crate) struct Checks {
    /// By the digest that the object is kept under. The channel closes when the work is done.
    running: Mutex<HashMap<ObjectId, watch::Receiver<()>>>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Checks {
    fn default() -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, NonZero::get).min(AT_ONCE);
        let turns = || Arc::new(Semaphore::new(at_once));
        Self { running: Mutex::default(), small: turns(), large: turns() }
    }
}

impl Checks {
    /// The turns of objects of this size.
    pub(crate) fn turns(&self, size: u64) -> Arc<Semaphore> {
        if size < SMALL { self.small.clone() } else { self.large.clone() }
    }

    /// Waits for the check of an object: the channel closes when it is done. The caller runs the check if it gets the sender, and then calls
    /// [`Checks::end`].
    pub(crate) fn join(&self, kept_as: ObjectId) -> (watch::Receiver<()>, Option<watch::Sender<()>>) {
        let mut running = self.running.lock();
        if let Some(running) = running.get(&kept_as) {
            return (running.clone(), None);
        }
        let (sender, receiver) = watch::channel(());
        running.insert(kept_as, receiver.clone());
        (receiver, Some(sender))
    }

    /// Ends the check.
    pub(crate) fn end(&self, kept_as: &ObjectId) {
        self.running.lock().remove(kept_as);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_hashed_once_for_all_waiters_and_again_after_that() {
        let (checks, object) = (Checks::default(), ObjectId::of(b"an object"));
        let (waiter, sender) = checks.join(object);
        assert!(sender.is_some() && checks.join(object).1.is_none());
        assert!(checks.join(ObjectId::of(b"another")).1.is_some());
        checks.end(&object);
        drop(sender);
        assert!(waiter.has_changed().is_err(), "the channel closes for those who waited");
        assert!(checks.join(object).1.is_some(), "it may have changed since, and is hashed again");
    }

    #[test]
    fn small_objects_do_not_queue_behind_large_ones() {
        let checks = Checks::default();
        assert!(Arc::ptr_eq(&checks.turns(SMALL - 1), &checks.small));
        assert!(Arc::ptr_eq(&checks.turns(SMALL), &checks.large));
    }
}
