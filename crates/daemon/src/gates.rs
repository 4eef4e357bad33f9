//! How much is done at the same time. Whoever comes when all places are taken is told so at once, or waits within his deadline.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::Failure;

/// Images that are prepared at once, containers' among them. Each streams up to three layers and merges its tree in
/// memory, which takes some 200 MB for the largest trees.
const PREPARES: usize = 4;
/// Images that are brought whole at once: each may take hours, and nobody waits for it.
const PULLS: usize = 2;
/// Those who wait for an image, theirs or another's. It leaves half of the connections to others.
const WAITING: usize = 32;
/// Calls that wait for the kernel, a runtime or the store, each in a thread. Fewer than the server answers at once, so that clients of the
/// line protocol always find it free.
const CALLS: usize = 24;
/// How long a call waits for its turn: those before it wait for milliseconds, as a rule.
const TURN: Duration = Duration::from_secs(30);
/// Containers that are being stopped, each for as long as its client likes.
const STOPS: usize = 16;
/// Starts that are recorded at once, each with a container.
const RECORDINGS: usize = 8;
/// Clients that listen to events or follow a log. With those who wait for images, they leave a quarter of the connections to others.
const LISTENERS: usize = 16;

/// The right to do something, for the life of this value.
pub(crate) type Place = OwnedSemaphorePermit;

/// All places there are.
pub(crate) struct Gates {
    prepares: Arc<Semaphore>,
    pulls: Arc<Semaphore>,
    stops: Arc<Semaphore>,
    recordings: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    listeners: Arc<Semaphore>,
}

impl Default for Gates {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            prepares: places(PREPARES),
            pulls: places(PULLS),
            stops: places(STOPS),
            recordings: places(RECORDINGS),
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

    /// To bring an image whole, when it is this one's turn.
    pub(crate) async fn pull(&self) -> Option<Place> {
        self.pulls.clone().acquire_owned().await.ok()
    }

    /// To make a call, when it is this one's turn.
    pub(crate) async fn call(&self) -> Result<Place, Failure> {
        let turn = tokio::time::timeout(TURN, self.calls.clone().acquire_owned()).await;
        let place = turn.ok().and_then(Result::ok);
        place.ok_or_else(|| Failure::busy(&format!("{CALLS} others have been waiting for {} s", TURN.as_secs())))
    }

    /// To stop a container.
    pub(crate) fn stop(&self) -> Result<Place, Failure> {
        now(&self.stops, &format!("{STOPS} containers are being stopped already"))
    }

    /// To record a start.
    pub(crate) fn record(&self) -> Result<Place, Failure> {
        now(&self.recordings, &format!("{RECORDINGS} starts are being recorded already"))
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
