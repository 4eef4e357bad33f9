//! [`Breaker`]: the state of a source that does not answer.
//!
//! A failure of one piece applies to all other pieces of its source. While a source does not answer, in an *outage*, requests for
//! its pieces wait at a gate (`gate.rs`), and small requests, the *probes*, find out for all of them whether it answers again:
//!
//! ```text
//! request ─► gate ─┬─ no outage ──────────────────────────────► ask the source
//!                  └─ outage ─► wait for the next probe ─┬─ it answers ─► ask the source
//!                                  ▲                     └─ it fails ─┬─ the outage is young, or the probe is
//!                                  └──────────────────────────────────┘  older than the request ─► wait on
//!                                                                     └─ otherwise ─► the request fails
//! ```
//!
//! So no request fails because of an outage that ended before it was made, and the next probe notices when a source is back. Probes are sent
//! only while requests wait. An outage of which nothing was heard for as long as an outage is young counts as a new one.
//!
//! **A probe fails** by an error: no connection, a broken one, a server error. A *silent* probe may still be answered, for as long
//! as any request: a registry that is back can be slow. Its silence allows the next probe to begin, and ends no wait before the
//! readers' own deadline. The exception is a source that is known to be silent: a request or a probe had no answer for all of its
//! time within the last [`SILENCE_MEMO`], and no error arrived since. There silence is expected, and after [`PROBE_PATIENCE`] of it
//! the probe counts as failed. If a probe is answered later, the outage ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_blob::Fault;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::config::{PROBE_FIRST, PROBE_LONGEST, PROBE_PATIENCE, PROBES, SILENCE_MEMO, pause_after};
use crate::error::PieceError;
use crate::journal::{Event, Journal};

/// The order in which requests are made and sent to sources. Of two, the later one has the larger number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(u64);

impl Order {
    /// The next number. Unlike a clock, it never returns the same value twice.
    pub(crate) fn now() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// Decides whether requests may be sent to the source of an image.
pub(crate) struct Breaker {
    state: Mutex<BreakerState>,
    journal: Arc<Journal>,
    /// An outage began or ended, or a probe failed.
    changed: Notify,
    grace: Duration,
}

#[derive(Default)]
struct BreakerState {
    /// When any request last received bytes.
    last_success: Option<Instant>,
    outage: Option<Outage>,
}

/// The source has not answered since a request failed.
struct Outage {
    /// The first refusal, or the start of a silence.
    since: Instant,
    /// When a probe last began, or a request failed.
    heard: Instant,
    error: Arc<PieceError>,
    /// The latest of the failed requests.
    latest_failed: Order,
    /// Number of probes that began.
    begun: u32,
    /// When the next one may begin.
    next: Instant,
    /// Probes under way, the latest at the end.
    probing: Vec<Probe>,
    /// Time of the last error.
    last_error: Option<Instant>,
    /// When a request was found to have been silent for all of its time, unless an error arrived since.
    silent: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Probe {
    order: Order,
    began: Instant,
}

/// The state of the gate for a request.
pub(crate) enum GateState {
    /// The request may be sent.
    Open,
    /// The caller must send a probe, which begins now.
    Probe(Attempt),
    /// The caller must ask again after a change, or at this time.
    Wait(Instant),
    /// A request sent after this one was made failed.
    Failed(PieceError),
}

impl Breaker {
    /// In the first `grace` of an outage, no request fails because of it. Outages are noted in `journal`.
    pub(crate) fn new(grace: Duration, journal: Arc<Journal>) -> Self {
        Self { state: Mutex::default(), journal, changed: Notify::new(), grace }
    }

    /// Whether the source failed, and has sent nothing since.
    pub(crate) fn has_outage(&self) -> bool {
        self.state.lock().outage.is_some()
    }

    /// The last failure, if the source has sent nothing since.
    pub(crate) fn outage_error(&self) -> Option<PieceError> {
        let state = self.state.lock();
        state.outage.as_ref().map(|outage| PieceError::Resting(outage.error.clone()))
    }

    /// When the grace of the outage ends, if there is one.
    pub(crate) fn grace_ends(&self) -> Option<Instant> {
        self.state.lock().outage.as_ref().map(|outage| outage.since + self.grace)
    }

    /// Notified when an outage begins or ends, or a probe fails.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Records that a reader waited for `request` since `came`, and gave up. If nothing arrived from the source in that time, an
    /// outage begins, so that other readers find that out sooner.
    pub(crate) fn waited_in_vain(&self, request: Order, came: Instant, error: &PieceError) {
        let mut state = self.state.lock();
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
        self.changed.notify_waiters();
    }
}

impl BreakerState {
    /// Records that `request` failed, by a refusal now or a silence since `since`. Returns whether an outage begins with that.
    fn failed(&mut self, request: Order, since: Instant, error: &PieceError) -> bool {
        let begins = self.outage.is_none();
        let outage = self.outage.get_or_insert_with(|| Outage {
            since,
            heard: since,
            error: Arc::new(error.clone()),
            latest_failed: request,
            begun: 0,
            next: Instant::now() + PROBE_FIRST,
            probing: Vec::new(),
            last_error: None,
            silent: None,
        });
        outage.latest_failed = outage.latest_failed.max(request);
        outage.note_failure(since, error);
        begins
    }
}

impl Outage {
    /// Records that nothing but this error arrived since `since`.
    fn note_failure(&mut self, since: Instant, error: &PieceError) {
        let now = Instant::now();
        self.heard = now;
        self.error = Arc::new(error.clone());
        match error {
            PieceError::Stalled(_) | PieceError::Late(_) => {
                if self.last_error.is_none_or(|last_error| last_error < since) {
                    self.silent = Some(now);
                }
            }
            // Of several attempts, each was silent for a part of the time.
            PieceError::Source(error) if error.fault == Fault::Timeout => {}
            _ => (self.last_error, self.silent) = (Some(now), None),
        }
    }

    /// Begins the outage again if nothing was heard of the source for `grace`, because no request waited: it may have been back.
    fn renew(&mut self, now: Instant, grace: Duration) {
        if self.probing.is_empty() && now >= self.heard + grace {
            (self.since, self.heard, self.begun) = (now, now, 0);
        }
    }

    /// Counts probes as failed whose silence is expected.
    fn note_silence(&mut self, now: Instant) {
        if self.silent.is_none_or(|silent| now >= silent + SILENCE_MEMO) {
            return;
        }
        let silent = self.probing.iter().rev().find(|probe| probe.is_silent(now));
        self.latest_failed = silent.map_or(self.latest_failed, |probe| self.latest_failed.max(probe.order));
    }

    /// The state for a request that did not fail and sends no probe.
    fn wait(&self, now: Instant) -> Option<Instant> {
        match self.probing.last().filter(|probe| !probe.is_silent(now)) {
            Some(probe) => Some(probe.began + PROBE_PATIENCE),
            None if now < self.next => Some(self.next),
            // The end of any of them wakes all waiting requests.
            None if self.probing.len() >= PROBES => Some(now + PROBE_LONGEST),
            None => None,
        }
    }

    fn begin_probe(&mut self, now: Instant) -> Order {
        let probe = Probe { order: Order::now(), began: now };
        self.probing.push(probe);
        self.heard = now;
        self.begun += 1;
        self.next = now + PROBE_PATIENCE + self.pause();
        probe.order
    }

    /// The pause before the next probe.
    fn pause(&self) -> Duration {
        pause_after(self.begun)
    }

    /// Removes a probe that ended. If it was the latest, the next may follow after `pause`.
    fn remove(&mut self, probe: Order, pause: Duration) {
        if self.probing.last().is_some_and(|latest| latest.order == probe) {
            self.next = self.next.min(Instant::now() + pause);
        }
        self.probing.retain(|known| known.order != probe);
    }
}

impl Probe {
    fn is_silent(&self, now: Instant) -> bool {
        now >= self.began + PROBE_PATIENCE
    }
}

/// One request to a source, from the moment that it is made.
pub(crate) struct Attempt {
    breaker: Arc<Breaker>,
    order: Order,
    last_progress: Instant,
    is_probe: bool,
}

impl Attempt {
    pub(crate) fn begin(breaker: &Arc<Breaker>) -> Self {
        Self { breaker: breaker.clone(), order: Order::now(), last_progress: Instant::now(), is_probe: false }
    }

    /// The state of the gate for `request`.
    pub(crate) fn at_gate(breaker: &Arc<Breaker>, request: Order) -> GateState {
        let now = Instant::now();
        let mut state = breaker.state.lock();
        let Some(outage) = &mut state.outage else { return GateState::Open };
        outage.renew(now, breaker.grace);
        outage.note_silence(now);
        if outage.latest_failed > request && now >= outage.since + breaker.grace {
            return GateState::Failed(PieceError::Resting(outage.error.clone()));
        }
        if let Some(until) = outage.wait(now) {
            return GateState::Wait(until);
        }
        let order = outage.begin_probe(now);
        GateState::Probe(Self { breaker: breaker.clone(), order, last_progress: now, is_probe: true })
    }

    /// Records that bytes arrived.
    pub(crate) fn progressed(&mut self) {
        self.answered();
    }

    /// Records that the source answers.
    fn answered(&mut self) {
        self.is_probe = false;
        let mut state = self.breaker.state.lock();
        // The same time for both, so that its own success does not look like that of another request.
        self.last_progress = Instant::now();
        state.last_success = Some(self.last_progress);
        if state.outage.take().is_some() {
            drop(state);
            self.breaker.journal.note(Event::SourceAnswers);
            self.breaker.changed.notify_waiters();
        }
    }

    /// Ends the attempt with an error. A source that reports an error does answer.
    pub(crate) fn failed(&mut self, error: &PieceError) {
        if !error.is_outage() {
            return self.answered();
        }
        let mut state = self.breaker.state.lock();
        // Other requests succeeded in the meantime.
        if state.last_success.is_some_and(|success| success > self.last_progress) {
            return;
        }
        // A slow response is no outage: a refusal that follows it begins one. Silence is one from its beginning.
        let since = if error.is_refusal() { Instant::now() } else { self.last_progress };
        let begins = state.failed(self.order, since, error);
        if let Some(outage) = state.outage.as_mut().filter(|_| self.is_probe) {
            outage.remove(self.order, outage.pause());
        }
        drop(state);
        if begins {
            self.breaker.outage_begins(error);
        }
        if std::mem::take(&mut self.is_probe) {
            self.breaker.changed.notify_waiters();
        }
    }
}

impl Drop for Attempt {
    /// A cancelled probe has no result: the next one may begin.
    fn drop(&mut self) {
        if self.is_probe {
            let mut state = self.breaker.state.lock();
            if let Some(outage) = &mut state.outage {
                outage.remove(self.order, Duration::ZERO);
            }
            drop(state);
            self.breaker.changed.notify_waiters();
        }
    }
}
