//! [`Governor`]: the measurements of one image, and whether a task works on it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::burst::Burst;
use super::decide::{Decision, Measurements, decide};
use super::link::Link;
use crate::lanes::Lane;

/// A position in the layers of an image: everything before it was fetched or is local.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LayerPosition {
    pub(super) layer: u16,
    pub(super) offset: u64,
}

/// The measurements of one image, and the work on it.
#[derive(Default)]
pub(crate) struct Governor {
    pub(crate) link: Link,
    state: Mutex<GovernorState>,
}

#[derive(Default)]
struct GovernorState {
    burst: Burst,
    /// Encoded bytes that are not local. Unknown until they are counted. An estimate: later evictions are not included.
    missing: Option<u64>,
    /// Where the whole download continues.
    next: LayerPosition,
    /// Number of [`PrefetchGuard`]s.
    held: usize,
    working: bool,
    closed: bool,
    task: Option<AbortHandle>,
}

impl GovernorState {
    /// Subtracts `bytes` from the missing ones.
    fn is_here(&mut self, bytes: u64) {
        self.missing = self.missing.map(|missing| missing.saturating_sub(bytes));
    }
}

impl Governor {
    pub(super) fn decide(&self) -> (Decision, Measurements) {
        let (round_trip, bandwidth) = (self.link.round_trip(), self.link.bandwidth());
        let state = self.state.lock();
        let Burst { stalled, reads, brought, .. } = state.burst;
        let measured = Measurements { stalled, reads, brought, missing: state.missing, round_trip, bandwidth };
        let decision = if state.held > 0 { Decision::Lazy } else { decide(&measured) };
        (decision, measured)
    }

    /// Bytes of this image arrived.
    pub(crate) fn brought(&self, lane: Lane, bytes: usize) {
        let bytes = bytes as u64;
        let mut state = self.state.lock();
        state.is_here(bytes);
        if lane != Lane::Whole {
            state.burst.brought = state.burst.brought.saturating_add(bytes);
        }
    }

    /// Bytes arrived that no reader waited for.
    pub(crate) fn came_along(&self, bytes: usize) {
        self.state.lock().is_here(bytes as u64);
    }

    /// The source failed: the readers' waits are no measure of round trips.
    pub(crate) fn failed(&self) {
        self.state.lock().burst.forget();
    }

    /// Time since a reader last waited.
    pub(super) fn quiet_for(&self) -> Duration {
        self.state.lock().burst.quiet_for(Instant::now())
    }

    /// Reserves the work on the image for the caller, until the guard is dropped. `None` if a task works on it, or the image was removed.
    pub(super) fn claim(self: &Arc<Self>) -> Option<WorkGuard> {
        let mut state = self.state.lock();
        let is_free = !state.closed && !std::mem::replace(&mut state.working, true);
        is_free.then(|| WorkGuard(self.clone()))
    }

    /// The missing bytes were counted.
    pub(super) fn counted(&self, missing: u64) {
        let mut state = self.state.lock();
        (state.missing, state.next) = (Some(missing), LayerPosition::default());
        if missing == 0 {
            // Not before readers have waited as long again.
            state.burst.forget();
        }
    }

    /// The position where the whole download continues.
    pub(super) fn next(&self) -> LayerPosition {
        self.state.lock().next
    }

    /// The whole download continues at `next`.
    pub(super) fn continue_at(&self, next: LayerPosition) {
        self.state.lock().next = next;
    }

    /// Records that a walk through the image has reached its end. Failed or evicted parts are found when readers have waited for them.
    pub(super) fn is_all_here(&self) {
        let mut state = self.state.lock();
        (state.missing, state.next) = (None, LayerPosition::default());
        state.burst.forget();
    }

    pub(super) fn started(&self, task: AbortHandle) {
        let mut state = self.state.lock();
        if state.closed {
            task.abort();
        }
        state.task = Some(task);
    }

    /// Ends the work for good: the image is gone.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.abort();
        }
    }

    /// Whether a boot pack or hints are being fetched ([`PrefetchGuard`]).
    pub(crate) fn is_held(&self) -> bool {
        self.state.lock().held > 0
    }

    /// Whether the rest of the image is being fetched.
    pub(crate) fn is_working(&self) -> bool {
        self.state.lock().working
    }
}

/// A reader waits for bytes of this image, until the guard is dropped.
pub(crate) struct StallGuard(Arc<Governor>);

impl StallGuard {
    pub(crate) fn begin(governor: &Arc<Governor>) -> Self {
        governor.state.lock().burst.begin(Instant::now());
        Self(governor.clone())
    }
}

impl Drop for StallGuard {
    fn drop(&mut self) {
        self.0.state.lock().burst.end(Instant::now());
    }
}

/// A boot pack or hints are being fetched: the governor starts nothing until the guard is dropped.
pub(crate) struct PrefetchGuard(Arc<Governor>);

impl PrefetchGuard {
    pub(crate) fn begin(governor: &Arc<Governor>) -> Self {
        governor.state.lock().held += 1;
        Self(governor.clone())
    }
}

impl Drop for PrefetchGuard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.held -= 1;
        if state.held == 0 {
            // Readers that waited for bytes on their way paid no round trips.
            state.burst.forget();
        }
    }
}

/// The one task that works on an image.
pub(super) struct WorkGuard(Arc<Governor>);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.working, state.task) = (false, None);
    }
}
