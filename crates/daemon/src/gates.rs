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
/// Those who wait for an image, theirs or another's.
const WAITING: usize = 32;
/// Calls that wait for the kernel, a runtime or the store, each in a thread, and containers that are made. With stops, recordings and
/// images that are prepared they come to 28, which is fewer than the 32 that the server answers at once: clients of the line
/// protocol always find it free.
const CALLS: usize = 12;
/// How long a call waits for its turn: those before it wait for milliseconds, as a rule.
const TURN: Duration = Duration::from_secs(30);
/// Containers and recordings that are being stopped, each for as long as its client likes.
const STOPS: usize = 8;
/// Starts that are recorded at once, each with a container.
const RECORDINGS: usize = 4;
/// Clients that listen to events or follow a log.
const LISTENERS: usize = 16;

/// Connections that may be taken for long: the others are free for whoever wants an answer now.
pub(crate) const LONG: usize = WAITING + STOPS + LISTENERS;
/// Threads that wait in calls, stops, recordings and for listeners.
pub(crate) const THREADS: usize = CALLS + STOPS + RECORDINGS + LISTENERS;

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

    /// To stop a container or a recording.
    pub(crate) fn stop(&self) -> Result<Place, Failure> {
        now(&self.stops, &format!("{STOPS} containers and recordings are being stopped already"))
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
