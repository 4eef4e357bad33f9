//! [`Flights`]: concurrent calls for the same work share one execution, which runs to its end even if callers stop waiting.

use std::hash::Hash;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use futures::future::BoxFuture;

/// Work in progress, by key.
pub(crate) struct Flights<K, V: Clone>(tarpon_engine::Flights<K, V>);

impl<K, V: Clone> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Default::default())
    }
}

impl<K, V> Flights<K, V>
where
    K: Hash + Eq,
    V: Clone + Send + Sync + 'static,
{
    /// Waits for the work in progress for `key`, or starts `work`. `broken` makes the result if the work panics.
    pub(crate) async fn join(
        &self,
        key: K,
        work: impl FnOnce() -> BoxFuture<'static, V>,
        broken: impl FnOnce(String) -> V + Send + 'static,
    ) -> V {
        let mut is_new = false;
        let flight = self.0.join(key, || {
            is_new = true;
            let done = AssertUnwindSafe(work()).catch_unwind();
            done.map(|done| done.unwrap_or_else(|_| broken("it panicked".to_owned()))).boxed()
        });
        if is_new {
            // This task drives the work to its end.
            tokio::spawn(flight.clone());
        }
        flight.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn work_is_done_once_for_all_concurrent_callers_and_continues_without_them() {
        let flights = Arc::new(Flights::<u8, usize>::default());
        let (count, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let join = || {
            let (flights, count, gate) = (flights.clone(), count.clone(), gate.clone());
            async move {
                let work = move || {
                    async move {
                        gate.acquire().await.unwrap().forget();
                        count.fetch_add(1, Ordering::SeqCst) + 1
                    }
                    .boxed()
                };
                flights.join(1, work, |_| 0).await
            }
        };
        let mut impatient = Box::pin(join());
        assert!(futures::poll!(&mut impatient).is_pending());
        drop(impatient);
        let (mut first, mut second) = (Box::pin(join()), Box::pin(join()));
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        gate.add_permits(1);
        assert_eq!((first.await, second.await), (1, 1));
        gate.add_permits(1);
        assert_eq!(join().await, 2, "what was done is not remembered");
    }

    #[tokio::test]
    async fn work_that_panics_fails_for_all_callers_and_is_tried_again() {
        let flights = Flights::<u8, usize>::default();
        let broken = || async { panic!("on purpose") }.boxed();
        assert_eq!(flights.join(1, broken, |_| 7).await, 7);
        assert_eq!(flights.join(1, || async { 8 }.boxed(), |_| 0).await, 8);
    }
}
