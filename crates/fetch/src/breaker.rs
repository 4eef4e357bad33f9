//! [`Breaker`]: what is known of a source that does not answer.
//!
//! A failure of one piece says something about all others of its source. While a source does not answer, in an *outage*, requests for its
//! pieces wait at a gate (`gate.rs`), and one small request, the *probe*, finds out for all of them whether it answers again:
//!
//! ```text
//! request ─► gate ─┬─ no outage ──────────────────────────────► ask the source
//!                  └─ outage ─► wait for the next probe ─┬─ it answers ─► ask the source
//!                                  ▲                     └─ it fails ─┬─ the outage is young, or the probe is
//!                                  └──────────────────────────────────┘  older than the request ─► wait on
//!                                                                     └─ otherwise ─► the request fails
//! ```
//!
//! So no request fails because of what was found out before it came, and a source that comes back is noticed by the next probe. Probes
//! are sent only while requests wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::config::{PROBE_FIRST, PROBE_LONGEST, PROBE_PATIENCE};
use crate::error::PieceError;
use crate::image::Image;
use crate::journal::Event;

/// The order in which requests are made and sources are asked: of two, the later one has the larger number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(u64);

impl Order {
    /// Now. Unlike a clock, it never shows the same twice.
    pub(crate) fn now() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether the source of an image may be asked.
pub(crate) struct Breaker {
    state: Mutex<State>,
    /// An outage began or ended, or a probe failed.
    changed: Notify,
    grace: Duration,
}

#[derive(Default)]
struct State {
    /// When any request last got something.
    last_success: Option<Instant>,
    outage: Option<Outage>,
}

/// The source has not answered since a request failed.
struct Outage {
    /// From when on nothing came.
    since: Instant,
    error: Arc<PieceError>,
    /// The latest request of those that failed.
    refuted: Order,
    /// Probes that failed.
    failed: u32,
    /// When the next one may begin.
    next: Instant,
    /// The latest probe and when it began, until it fails or is silent for [`PROBE_PATIENCE`].
    probing: Option<(Order, Instant)>,
}

/// What a request finds at the gate.
pub(crate) enum Look {
    /// The source may be asked.
    Open,
    /// The caller is to send a probe, which begins now.
    Probe(Attempt),
    /// Look again when something has changed, or at this time.
    Wait(Instant),
    /// The source was asked after the request came, and did not answer.
    Failed(PieceError),
}

impl Breaker {
    /// In the first `grace` of an outage, no request fails because of it.
    pub(crate) fn new(grace: Duration) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), grace }
    }

    /// Whether the source failed, and nothing has come from it since.
    pub(crate) fn is_resting(&self) -> bool {
        self.state.lock().outage.is_some()
    }

    /// What failed last, if nothing has come from the source since.
    pub(crate) fn why_resting(&self) -> Option<PieceError> {
        let state = self.state.lock();
        state.outage.as_ref().map(|outage| PieceError::Resting(outage.error.clone()))
    }

    /// When the grace of the outage ends, if there is one.
    pub(crate) fn grace_ends(&self) -> Option<Instant> {
        self.state.lock().outage.as_ref().map(|outage| outage.since + self.grace)
    }

    /// An outage begins or ends, or a probe fails.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

impl State {
    /// A source that was asked by `request` has sent nothing since `since`. Whether an outage begins with that.
    fn failed(&mut self, request: Order, since: Instant, error: &PieceError) -> bool {
        let error = Arc::new(error.clone());
        if let Some(outage) = &mut self.outage {
            (outage.refuted, outage.error) = (outage.refuted.max(request), error);
            return false;
        }
        let next = Instant::now() + PROBE_FIRST;
        self.outage = Some(Outage { since, error, refuted: request, failed: 0, next, probing: None });
        true
    }
}

impl Outage {
    /// The probe failed, or has been silent for too long.
    fn probe_failed(&mut self, probe: Order) {
        self.refuted = self.refuted.max(probe);
        if self.probing.is_some_and(|(latest, _)| latest == probe) {
            self.probing = None;
            self.failed += 1;
            self.next = Instant::now() + (PROBE_FIRST * (1 << self.failed.min(10))).min(PROBE_LONGEST);
        }
    }
}

/// One request to a source, from the moment that it is made.
pub(crate) struct Attempt {
    image: Arc<Image>,
    order: Order,
    last_progress: Instant,
    is_probe: bool,
}

impl Attempt {
    pub(crate) fn begin(image: &Arc<Image>) -> Self {
        Self { image: image.clone(), order: Order::now(), last_progress: Instant::now(), is_probe: false }
    }

    /// What `request` finds.
    pub(crate) fn look(image: &Arc<Image>, request: Order) -> Look {
        let breaker = &image.breaker;
        let now = Instant::now();
        let mut state = breaker.state.lock();
        let Some(outage) = &mut state.outage else { return Look::Open };
        if let Some((probe, _)) = outage.probing.filter(|(_, began)| now >= *began + PROBE_PATIENCE) {
            outage.probe_failed(probe);
        }
        if outage.refuted > request && now >= outage.since + breaker.grace {
            return Look::Failed(PieceError::Resting(outage.error.clone()));
        }
        match outage.probing {
            Some((_, began)) => Look::Wait(began + PROBE_PATIENCE),
            None if now < outage.next => Look::Wait(outage.next),
            None => {
                let order = Order::now();
                outage.probing = Some((order, now));
                Look::Probe(Self { image: image.clone(), order, last_progress: now, is_probe: true })
            }
        }
    }

    /// Bytes came.
    pub(crate) fn progressed(&mut self) {
        self.answered();
    }

    /// The source answers.
    fn answered(&mut self) {
        self.is_probe = false;
        let breaker = &self.image.breaker;
        let mut state = breaker.state.lock();
        // The same time for both: its own success must not look like that of another request.
        self.last_progress = Instant::now();
        state.last_success = Some(self.last_progress);
        if state.outage.take().is_some() {
            drop(state);
            self.image.journal.note(Event::SourceAnswers);
            breaker.changed.notify_waiters();
        }
    }

    /// It is over. A source that says no answers.
    pub(crate) fn failed(&mut self, error: &PieceError) {
        if !error.is_outage() {
            return self.answered();
        }
        let breaker = &self.image.breaker;
        let mut state = breaker.state.lock();
        // Others fared better in the meantime.
        if state.last_success.is_some_and(|success| success > self.last_progress) {
            return;
        }
        let begins = state.failed(self.order, self.last_progress, error);
        if let Some(outage) = state.outage.as_mut().filter(|_| self.is_probe) {
            outage.probe_failed(self.order);
        }
        drop(state);
        if begins {
            self.image.outage_begins(error);
        }
        if std::mem::take(&mut self.is_probe) {
            breaker.changed.notify_waiters();
        }
    }
}

impl Image {
    /// A reader has waited for `request` since `came`, and gives up. If nothing came from the source in all this time, others need not
    /// wait as long to find that out.
    pub(crate) fn waited_in_vain(&self, request: Order, came: Instant, error: &PieceError) {
        let mut state = self.breaker.state.lock();
        if state.last_success.is_some_and(|success| success >= came) {
            return;
        }
        let begins = state.failed(request, came, error);
        drop(state);
        if begins {
            self.outage_begins(error);
        }
    }

    fn outage_begins(&self, error: &PieceError) {
        self.journal.note(Event::SourceRests { reason: error.to_string() });
        self.breaker.changed.notify_waiters();
    }
}

impl Drop for Attempt {
    /// A probe that was given up has found out nothing: the next one may begin.
    fn drop(&mut self) {
        if self.is_probe {
            let mut state = self.image.breaker.state.lock();
            if let Some(outage) = &mut state.outage {
                outage.probing = outage.probing.filter(|(probe, _)| *probe != self.order);
            }
            drop(state);
            self.image.breaker.changed.notify_waiters();
        }
    }
}
