//! Limits on concurrent work. A request beyond a limit is rejected at once, or waits within its deadline.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;

/// Images that are prepared at once, including those of containers. Each streams up to three layers and merges its tree in
/// memory, which takes some 200 MB for the largest trees.
const PREPARES: usize = 4;
/// Images that are fetched whole at once: each may take hours, and no client waits for it.
const PULLS: usize = 2;
/// Images at once of which jobs fetch what a start needs, which at a low rate may take an hour too. Each is prepared first, at the cost of
/// one of [`PREPARES`].
const STARTS: usize = 4;
/// Requests that wait for an image, including one that another request prepares.
const WAITING: usize = 32;
/// Calls that wait for the kernel, a runtime or the store, each in a thread, and containers that are being created. With stops,
/// recordings and images that are being prepared the sum is 28, fewer than the 32 requests that the server answers at once: clients
/// of the line protocol always find it free.
const CALLS: usize = 12;
/// How long a call waits in the queue: the calls before it usually take milliseconds.
const CALL_WAIT: Duration = Duration::from_secs(30);
/// Containers and recordings that are being stopped, each for as long as its client requests.
const STOPS: usize = 8;
/// Starts that are recorded at once, each with a container.
const RECORDINGS: usize = 4;
/// Clients that listen to events or follow a log.
const LISTENERS: usize = 16;

/// Connections that may be taken for long: the others remain for short requests.
pub(crate) const LONG: usize = WAITING + STOPS + LISTENERS;
/// Threads used by waiting calls, stops, recordings and listeners.
pub(crate) const THREADS: usize = CALLS + STOPS + RECORDINGS + LISTENERS;

/// A permit, valid for the life of this value.
pub(crate) type Permit = OwnedSemaphorePermit;

/// All limits.
pub(crate) struct RequestLimits {
    prepares: Arc<Semaphore>,
    pulls: Arc<Semaphore>,
    starts: Arc<Semaphore>,
    stops: Arc<Semaphore>,
    recordings: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    listeners: Arc<Semaphore>,
}

impl Default for RequestLimits {
    fn default() -> Self {
        let semaphore = |count| Arc::new(Semaphore::new(count));
        Self {
            prepares: semaphore(PREPARES),
            pulls: semaphore(PULLS),
            starts: semaphore(STARTS),
            stops: semaphore(STOPS),
            recordings: semaphore(RECORDINGS),
            waiting: semaphore(WAITING),
            calls: semaphore(CALLS),
            listeners: semaphore(LISTENERS),
        }
    }
}

impl RequestLimits {
    /// Waits for a permit to prepare an image.
    pub(crate) async fn prepare(&self) -> Option<Permit> {
        // Never closed.
        self.prepares.clone().acquire_owned().await.ok()
    }

    /// Waits for a permit to fetch a whole image.
    pub(crate) async fn pull(&self) -> Option<Permit> {
        self.pulls.clone().acquire_owned().await.ok()
    }

    /// Waits for a permit to fetch what a start needs.
    pub(crate) async fn start(&self) -> Option<Permit> {
        self.starts.clone().acquire_owned().await.ok()
    }

    /// Waits for a permit to make a call, for at most [`CALL_WAIT`].
    pub(crate) async fn call(&self) -> Result<Permit, Failure> {
        let turn = tokio::time::timeout(CALL_WAIT, self.calls.clone().acquire_owned()).await;
        let permit = turn.ok().and_then(Result::ok);
        permit.ok_or_else(|| Failure::busy(&format!("{CALLS} other calls have waited for {} s", CALL_WAIT.as_secs())))
    }

    /// A permit to stop a container or a recording.
    pub(crate) fn stop(&self) -> Result<Permit, Failure> {
        try_acquire(&self.stops, &format!("{STOPS} containers and recordings are already being stopped"))
    }

    /// A permit to record a start.
    pub(crate) fn record(&self) -> Result<Permit, Failure> {
        try_acquire(&self.recordings, &format!("{RECORDINGS} starts are already being recorded"))
    }

    /// A permit to wait for an image.
    pub(crate) fn wait(&self) -> Result<Permit, Failure> {
        try_acquire(&self.waiting, &format!("{WAITING} other requests already wait for images"))
    }

    /// A permit to listen without a time limit.
    pub(crate) fn listen(&self) -> Result<Permit, Failure> {
        try_acquire(&self.listeners, &format!("{LISTENERS} other clients already listen to events or logs"))
    }
}

fn try_acquire(gate: &Arc<Semaphore>, busy: &str) -> Result<Permit, Failure> {
    gate.clone().try_acquire_owned().map_err(|_| Failure::busy(busy))
}
