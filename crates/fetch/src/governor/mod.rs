//! The governor: notices that an image is read in a way for which bringing it lazily is the wrong way, and brings the rest of it whole.
//!
//! A program that touches thousands of small files in any order (`tar /usr`, a JVM, `npm`) pays a round trip for each, where a pull
//! pays hardly any. Per image the governor knows what requests cost ([`link`]), how long readers have waited of late ([`burst`]) and
//! what is missing ([`missing`]); [`decide`] is the rule, and [`whole`] what follows from it.
//!
//! ```text
//! a read had to wait ─► burst ─► decide ─┬─► lazy     nothing
//!                                        ├─► count    what is missing has not been counted since it was all here
//!                                        ├─► measure  one request ahead: the link is not known
//!                                        └─► whole    layer by layer, until it is here, readers are quiet or there is no room
//! ```

mod burst;
mod decide;
mod link;
mod missing;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::host::Host;
use crate::image::Image;
use crate::journal::Event;
use crate::lanes::Lane;

use burst::Burst;
use decide::{Decision, Measurements, decide};
pub(crate) use link::Link;
use missing::Place;

/// What the governor knows of one image.
#[derive(Default)]
pub(crate) struct Governor {
    pub(crate) link: Link,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    burst: Burst,
    /// Encoded bytes that are not here; unknown until they are counted. An estimate: what is evicted later is not in it.
    missing: Option<u64>,
    /// Where the whole download goes on.
    next: Place,
    /// Something else brings what readers will want.
    held: usize,
    working: bool,
    closed: bool,
    task: Option<AbortHandle>,
}

impl State {
    /// So much less is missing.
    fn is_here(&mut self, bytes: u64) {
        self.missing = self.missing.map(|missing| missing.saturating_sub(bytes));
    }
}

impl Governor {
    fn decide(&self) -> (Decision, Measurements) {
        let (round_trip, bandwidth) = (self.link.round_trip(), self.link.bandwidth());
        let state = self.state.lock();
        let Burst { stalled, reads, brought, .. } = state.burst;
        let measured = Measurements { stalled, reads, brought, missing: state.missing, round_trip, bandwidth };
        let decision = if state.held > 0 { Decision::Lazy } else { decide(&measured) };
        (decision, measured)
    }

    /// Bytes of this image came in.
    pub(crate) fn brought(&self, lane: Lane, bytes: usize) {
        let bytes = bytes as u64;
        let mut state = self.state.lock();
        state.is_here(bytes);
        if lane != Lane::Whole {
            state.burst.brought = state.burst.brought.saturating_add(bytes);
        }
    }

    /// Bytes came in that no reader waited for.
    pub(crate) fn came_along(&self, bytes: usize) {
        self.state.lock().is_here(bytes as u64);
    }

    /// The source failed: that readers waited says nothing about round trips.
    pub(crate) fn failed(&self) {
        self.state.lock().burst.forget();
    }

    /// How long no reader has waited.
    fn quiet_for(&self) -> Duration {
        self.state.lock().burst.quiet_for(Instant::now())
    }

    /// Whether the caller is the one who works on the image from now on.
    fn claim(&self) -> bool {
        let mut state = self.state.lock();
        !state.closed && !std::mem::replace(&mut state.working, true)
    }

    fn started(&self, task: AbortHandle) {
        let mut state = self.state.lock();
        if state.closed {
            task.abort();
        }
        state.task = Some(task);
    }

    /// Ends what goes on, for good: the image is gone.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.abort();
        }
    }

    /// Whether something else brings what readers will want.
    pub(crate) fn is_held(&self) -> bool {
        self.state.lock().held > 0
    }

    /// Whether the rest of the image is being brought.
    pub(crate) fn is_working(&self) -> bool {
        self.state.lock().working
    }
}

/// A reader waits for bytes of this image, until it is dropped.
pub(crate) struct Stalling(Arc<Image>);

impl Stalling {
    pub(crate) fn begin(image: &Arc<Image>) -> Self {
        image.governor.state.lock().burst.begin(Instant::now());
        Self(image.clone())
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        self.0.governor.state.lock().burst.end(Instant::now());
    }
}

/// What readers will want is being brought already: nothing is decided until it is dropped.
pub(crate) struct Held(Arc<Image>);

impl Held {
    pub(crate) fn begin(image: &Arc<Image>) -> Self {
        image.governor.state.lock().held += 1;
        Self(image.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.0.governor.state.lock();
        state.held -= 1;
        if state.held == 0 {
            // Who waited for what was on its way paid no round trips.
            state.burst.forget();
        }
    }
}

/// The one task that works on an image.
struct Working(Arc<Image>);

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = self.0.governor.state.lock();
        (state.working, state.task) = (false, None);
    }
}

impl Host {
    /// A reader of the image had to wait: time to think about the rest of it. Does not wait.
    pub(crate) fn govern(self: &Arc<Self>, image: &Arc<Image>) {
        let lazy = || image.governor.decide().0 == Decision::Lazy;
        if lazy() || image.source.is_local() || self.bypass.is_active() {
            return;
        }
        if !image.governor.claim() {
            return;
        }
        let task = self.runtime.spawn(self.clone().act(Working(image.clone())));
        image.governor.started(task.abort_handle());
    }

    async fn act(self: Arc<Self>, working: Working) {
        let image = &working.0;
        let (mut decision, mut measured) = image.governor.decide();
        if decision == Decision::Count {
            self.count_missing(image).await;
            (decision, measured) = image.governor.decide();
        }
        match decision {
            Decision::Lazy | Decision::Count => {}
            Decision::Measure => self.bring_one(image).await,
            Decision::Whole => {
                announce(image, &measured);
                self.bring_rest(image).await;
            }
        }
    }
}

/// The one place where a switch is told: in the counters, in the journal and in a line of the log.
fn announce(image: &Image, measured: &Measurements) {
    image.tally.add(|counters| &counters.whole_downloads, 1);
    tracing::info!(image = %image.name, "the rest of the image is brought whole: {measured}");
    image.journal.note(Event::Switched {
        to: "the rest of the image is brought whole".to_owned(),
        reason: measured.to_string(),
    });
}
