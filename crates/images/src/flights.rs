//! [`Flights`]: deduplicates concurrent work.

use std::collections::HashMap;
use std::hash::Hash;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

/// Work under way, by key. Callers with the key of running work wait for it, and it is cancelled when no caller waits any more.
pub struct Flights<K, T: Clone> {
    under_way: Mutex<HashMap<K, WeakShared<BoxFuture<'static, T>>>>,
}

impl<K, T: Clone> Default for Flights<K, T> {
    fn default() -> Self {
        Self { under_way: Mutex::default() }
    }
}

impl<K: Eq + Hash, T: Clone> Flights<K, T> {
    /// The outcome of the work for `key`: of work under way, or of new work. It runs as long as a caller waits.
    pub fn join(&self, key: K, work: impl FnOnce() -> BoxFuture<'static, T>) -> Shared<BoxFuture<'static, T>> {
        let mut under_way = self.under_way.lock();
        // Completed work is not under way: its outcome may be outdated.
        let goes_on = |flight: &Shared<_>| flight.peek().is_none();
        under_way.retain(|_, flight| flight.upgrade().as_ref().is_some_and(goes_on));
        if let Some(flight) = under_way.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let flight = work().shared();
        under_way.extend(flight.downgrade().map(|weak| (key, weak)));
        flight
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    /// Counts its holders.
    struct Guard(Arc<AtomicUsize>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_flight_and_a_later_one_starts_another() {
        let flights = Flights::<&str, u32>::default();
        let (done, wait) = oneshot::channel();
        let first = flights.join("app", || async { wait.await.unwrap() }.boxed());
        let second = flights.join("app", || unreachable!("it is under way"));
        let other = flights.join("other", || async { 2 }.boxed());
        done.send(1).unwrap();
        assert_eq!(futures::join!(first, second, other), (1, 1, 2));
        assert_eq!(flights.join("app", || async { 3 }.boxed()).await, 3);
    }

    #[tokio::test]
    async fn a_flight_ends_with_its_last_waiter() {
        let (flights, ended) = (Flights::<&str, ()>::default(), Arc::new(AtomicUsize::new(0)));
        let guard = Guard(ended.clone());
        let work = || {
            async move {
                let _guard = guard;
                std::future::pending().await
            }
            .boxed()
        };
        let first = flights.join("app", work);
        let second = flights.join("app", || unreachable!("it is under way"));
        assert!(first.clone().now_or_never().is_none());
        drop(first);
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        drop(second);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        flights.join("app", || async {}.boxed()).await;
    }
}
