//! [`Disputes`]: the objects that are being hashed as a whole because images contradict each other about them.

use std::collections::HashMap;

use parking_lot::Mutex;
use tarpon_blob::LogLimit;
use tarpon_layer::ObjectId;
use tokio::sync::watch;

use crate::config::Config;
use crate::error::ReadError;
use crate::failures::Failures;

/// The result of a dispute, once it is settled.
pub(crate) type Outcome = Option<Result<(), ReadError>>;

/// Disputes that are being settled, and those that could not be settled recently.
pub(crate) struct Disputes {
    running: Mutex<HashMap<ObjectId, watch::Receiver<Outcome>>>,
    failures: Failures,
    pub(crate) log: LogLimit,
}

impl Disputes {
    pub(crate) fn new(config: &Config) -> Self {
        let failures = Failures::new(config.failure_memo);
        Self { running: Mutex::default(), failures, log: LogLimit::new() }
    }

    /// Waits for the dispute about an object. The caller settles it if it gets the sender, and then calls [`Disputes::end`] or
    /// [`Disputes::abandon`]. An error if it could not be settled recently.
    pub(crate) fn join(
        &self,
        id: &ObjectId,
    ) -> Result<(watch::Receiver<Outcome>, Option<watch::Sender<Outcome>>), ReadError> {
        if let Some(error) = self.failures.remembered(id) {
            return Err(error);
        }
        let mut running = self.running.lock();
        if let Some(outcome) = running.get(id) {
            return Ok((outcome.clone(), None));
        }
        let (sender, outcome) = watch::channel(None);
        running.insert(*id, outcome.clone());
        Ok((outcome, Some(sender)))
    }

    /// Ends a dispute with its outcome.
    pub(crate) fn end(&self, id: &ObjectId, outcome: &Result<(), ReadError>) {
        if let Err(error) = outcome {
            self.failures.remember(id, error);
        }
        self.abandon(id);
    }

    /// Ends a dispute whose task ended without a result.
    pub(crate) fn abandon(&self, id: &ObjectId) {
        self.running.lock().remove(id);
    }

    /// Forgets failures after a new image was registered, which may have what the others could not deliver.
    pub(crate) fn forget_failures(&self) {
        self.failures.forget_all();
    }
}
