//! [`Breaker`]: what is known of a source that does not answer.
//!
//! A failure of one piece says something about all others of its source: whoever reads twenty files of a registry that is gone
//! waits once, not twenty times. After a final failure the source is left alone for [`crate::Config::failure_memo`]; then
//! one request at a time may try it, until one succeeds.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Fault;
use crate::error::PieceError;
use crate::image::Image;
use crate::journal::Event;

/// Whether the source of an image may be asked.
pub(crate) struct Breaker {
    state: Mutex<State>,
    rest: Duration,
}

#[derive(Default)]
struct State {
    /// When any request last got something.
    last_success: Option<Instant>,
    resting: Option<Resting>,
}

struct Resting {
    until: Instant,
    error: Arc<PieceError>,
    /// Somebody is trying.
    probing: bool,
}

impl Breaker {
    pub(crate) fn new(rest: Duration) -> Self {
        Self { state: Mutex::default(), rest }
    }

    /// Whether the source failed, and nothing has come from it since.
    pub(crate) fn is_resting(&self) -> bool {
        self.state.lock().resting.is_some()
    }
}

/// One request to a source, from the moment that it is made.
pub(crate) struct Attempt {
    image: Arc<Image>,
    is_probe: bool,
    last_progress: Instant,
}

impl Attempt {
    /// May fail at once: the source failed a moment ago.
    pub(crate) fn begin(image: &Arc<Image>) -> Result<Self, PieceError> {
        let now = Instant::now();
        let mut state = image.breaker.state.lock();
        if let Some(resting) = &mut state.resting {
            if now < resting.until || resting.probing {
                return Err(PieceError::Resting(resting.error.clone()));
            }
            resting.probing = true;
        }
        Ok(Self { image: image.clone(), is_probe: state.resting.is_some(), last_progress: now })
    }

    /// Bytes came.
    pub(crate) fn progressed(&mut self) {
        self.last_progress = Instant::now();
        let mut state = self.image.breaker.state.lock();
        state.last_success = Some(self.last_progress);
        if state.resting.take().is_some() {
            self.image.journal.note(Event::SourceAnswers);
        }
        self.is_probe = false;
    }

    /// It is over. Only what concerns the source as a whole counts, and not if others fared better in the meantime.
    pub(crate) fn failed(&mut self, error: &PieceError) {
        let is_the_source = match error {
            PieceError::Source(error) => matches!(error.fault, Fault::Unavailable | Fault::Timeout),
            PieceError::Stalled(_) => true,
            _ => false,
        };
        let breaker = &self.image.breaker;
        let mut state = breaker.state.lock();
        if !is_the_source || state.last_success.is_some_and(|success| success > self.last_progress) {
            return;
        }
        let until = Instant::now() + breaker.rest;
        let probing = !self.is_probe && state.resting.as_ref().is_some_and(|resting| resting.probing);
        if state.resting.is_none() {
            self.image.journal.note(Event::SourceRests { reason: error.to_string() });
        }
        state.resting = Some(Resting { until, error: Arc::new(error.clone()), probing });
        self.is_probe = false;
    }
}

impl Drop for Attempt {
    /// A probe that was given up has found out nothing: the next one may try.
    fn drop(&mut self) {
        if self.is_probe
            && let Some(resting) = &mut self.image.breaker.state.lock().resting
        {
            resting.probing = false;
        }
    }
}
