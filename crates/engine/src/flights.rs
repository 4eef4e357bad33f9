//! [`Flights`]: work that several want at once is done once.

use std::collections::HashMap;
use std::hash::Hash;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

/// Work that is under way, by what it is about. Who asks for what is under way waits for the same work, and it ends when nobody waits any
/// more.
pub struct Flights<K, T: Clone> {
    under_way: Mutex<HashMap<K, WeakShared<BoxFuture<'static, T>>>>,
}

impl<K, T: Clone> Default for Flights<K, T> {
    fn default() -> Self {
        Self { under_way: Mutex::default() }
    }
}

impl<K: Eq + Hash, T: Clone> Flights<K, T> {
    /// What comes of the work that `key` names: of that which is under way, or of new work. It goes on as long as somebody waits.
    pub fn join(&self, key: K, work: impl FnOnce() -> BoxFuture<'static, T>) -> Shared<BoxFuture<'static, T>> {
        let mut under_way = self.under_way.lock();
        // One that is done is not under way: what was true then need not be now.
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

    /// Counts those who have it.
    struct Guard(Arc<AtomicUsize>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn two_who_want_the_same_wait_for_the_same_and_the_third_begins_anew() {
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
    async fn it_ends_when_the_last_who_waits_has_gone() {
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
