//! How much is done at the same time. Whoever comes when all places are taken is told so at once, or waits within his deadline.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::Failure;

/// Images that are prepared at once, pulled ones and containers' among them. Each streams up to three layers and merges its tree in
/// memory, which takes some 200 MB for the largest trees.
const PREPARES: usize = 4;
/// Those who wait for an image, theirs or another's. It leaves half of the connections to others.
const WAITING: usize = 32;
/// Calls that wait for the kernel, a runtime or the store, each in a thread. Fewer than the server answers at once, so that clients of the
/// line protocol always find it free.
const CALLS: usize = 24;
/// Clients that listen to events or follow a log. With those who wait for images, they leave a quarter of the connections to others.
const LISTENERS: usize = 16;

/// The right to do something, for the life of this value.
pub(crate) type Place = OwnedSemaphorePermit;

/// All places there are.
pub(crate) struct Gates {
    prepares: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    listeners: Arc<Semaphore>,
}

impl Default for Gates {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            prepares: places(PREPARES),
            waiting: places(WAITING),
            calls: places(CALLS),
            listeners: places(LISTENERS),
        }
    }
}

impl Gates {
    /// To prepare an image, when it is this one's turn.
    pub(crate) async fn prepare(&self) -> Option<Place> {
        // Never closed.
        self.prepares.clone().acquire_owned().await.ok()
    }

    /// To make a call, when it is this one's turn.
    pub(crate) async fn call(&self) -> Option<Place> {
        self.calls.clone().acquire_owned().await.ok()
    }

    /// To wait for an image.
    pub(crate) fn wait(&self) -> Result<Place, Failure> {
        now(&self.waiting, &format!("{WAITING} others wait for images already"))
    }

    /// To listen for as long as one likes.
    pub(crate) fn listen(&self) -> Result<Place, Failure> {
        now(&self.listeners, &format!("{LISTENERS} others listen to events or logs already"))
    }
}

fn now(gate: &Arc<Semaphore>, busy: &str) -> Result<Place, Failure> {
    gate.clone().try_acquire_owned().map_err(|_| Failure::busy(busy))
}
