//! [`Governor`]: the measurements of one image.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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

/// The measurements of one image, and where its whole download continues.
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
}

impl GovernorState {
    /// Subtracts `bytes` from the missing ones.
    fn arrived(&mut self, bytes: u64) {
        self.missing = self.missing.map(|missing| missing.saturating_sub(bytes));
    }
}

impl Governor {
    pub(super) fn decide(&self) -> (Decision, Measurements) {
        let (round_trip, bandwidth) = (self.link.round_trip(), self.link.bandwidth());
        let state = self.state.lock();
        let Burst { stalled, reads, brought, .. } = state.burst;
        let measured = Measurements { stalled, reads, brought, missing: state.missing, round_trip, bandwidth };
        (decide(&measured), measured)
    }

    /// Bytes of this image arrived.
    pub(crate) fn brought(&self, lane: Lane, bytes: usize) {
        let bytes = bytes as u64;
        let mut state = self.state.lock();
        state.arrived(bytes);
        if lane != Lane::Whole {
            state.burst.brought = state.burst.brought.saturating_add(bytes);
        }
    }

    /// Bytes arrived that no reader waited for.
    pub(crate) fn neighbour_arrived(&self, bytes: usize) {
        self.state.lock().arrived(bytes as u64);
    }

    /// Clears the account of waits, because what readers waited for was not round trips.
    pub(crate) fn forget_waits(&self) {
        self.state.lock().burst.forget();
    }

    /// Time since a reader last waited.
    pub(crate) fn quiet_for(&self) -> Duration {
        self.state.lock().burst.quiet_for(Instant::now())
    }

    /// The missing bytes were counted.
    pub(super) fn counted(&self, missing: u64) {
        let mut state = self.state.lock();
        (state.missing, state.next) = (Some(missing), LayerPosition::default());
        if missing == 0 {
            // The next decision follows when readers have waited as long again.
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
    pub(super) fn all_arrived(&self) {
        let mut state = self.state.lock();
        (state.missing, state.next) = (None, LayerPosition::default());
        state.burst.forget();
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
