//! The scrub of a server's store: see [`Store::scrub`]. A thread of its own reads the store when a run is due, and what it finds is
//! repaired at once.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tarpon_client::protocol::ScrubStatus;
use tarpon_store::{ScrubRun, Scrubber, Store};
use tokio::sync::watch;

use super::idle::lower_priority;
use crate::{ErrorKind, Result, ResultExt};

/// Longest interval between two checks of whether a run is due, because the wall clock may be set.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Pause after a failed run, so that a failing disk is not read all the time.
const RETRY: Duration = Duration::from_secs(600);

/// How long a server that ends waits for the thread. That takes one disk read, unless the thread waits for a repair.
const ENDING: Duration = Duration::from_secs(5);

/// The scrub of a server. Dropping it ends the thread.
pub(super) struct Scrub(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    status: watch::Sender<ScrubStatus>,
}

#[derive(Default)]
struct State {
    /// Whether the thread must end.
    is_over: bool,
    /// Whether a thread exists.
    is_there: bool,
}

impl Scrub {
    pub(super) fn new(store: &Store) -> Self {
        let status = watch::Sender::new(ScrubStatus::of_store(store));
        Self(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), status }))
    }

    /// The status; `None` if there never was a scrub.
    pub(super) fn status(&self) -> Option<ScrubStatus> {
        Some(*self.0.status.borrow()).filter(ScrubStatus::is_known)
    }

    /// The status and its changes.
    pub(super) fn watch(&self) -> watch::Receiver<ScrubStatus> {
        self.0.status.subscribe()
    }

    /// Starts to scrub the store, at most so many bytes per second, and calls `repair` when it finds damage. Once per server.
    pub(super) fn begin(&self, store: &Store, rate: NonZeroU64, repair: Box<dyn Fn() + Send>) -> Result<()> {
        let thread = Thread { shared: self.0.clone(), store: store.clone(), rate, repair };
        let mut state = self.0.state.lock();
        if state.is_there || state.is_over {
            return Ok(());
        }
        thread::Builder::new()
            .name("scrub".to_owned())
            .spawn(move || thread.run())
            .context(ErrorKind::Other, "begin to scrub the store")?;
        state.is_there = true;
        drop(state);
        self.0.status.send_modify(|status| status.rate = Some(rate));
        Ok(())
    }

    /// Ends the thread and waits for it. Its progress is on record then.
    pub(super) fn stop(&self) {
        let mut state = self.0.end();
        let until = Instant::now() + ENDING;
        while state.is_there && !self.0.changed.wait_until(&mut state, until).timed_out() {}
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

impl Shared {
    fn end(&self) -> parking_lot::MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.is_over = true;
        self.changed.notify_all();
        state
    }

    /// Waits for the given time. `false`: the thread must end.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.is_over && !self.changed.wait_until(&mut state, until).timed_out() {}
        !state.is_over
    }
}

struct Thread {
    shared: Arc<Shared>,
    store: Store,
    rate: NonZeroU64,
    repair: Box<dyn Fn() + Send>,
}

impl Thread {
    fn run(self) {
        lower_priority();
        let mut pause = Duration::ZERO;
        while self.shared.pause(pause) {
            let due = self.store.scrub_due();
            pause = if due.is_zero() { self.scrub() } else { due.min(CHECK_INTERVAL) };
        }
        self.shared.state.lock().is_there = false;
        self.shared.changed.notify_all();
    }

    /// One run. Returns the pause after it.
    fn scrub(&self) -> Duration {
        self.shared.status.send_modify(|status| status.running = true);
        let scrubbed = self.store.scrub(self.rate, self);
        let record = ScrubStatus::of_store(&self.store);
        self.shared.status.send_modify(|status| *status = ScrubStatus { rate: Some(self.rate), ..record });
        match scrubbed {
            Ok(None) => Duration::ZERO,
            Ok(Some(run)) => {
                let ScrubRun { began: _, ended: _, objects, bytes, damaged, unreadable, skipped } = run;
                tracing::info!(objects, bytes, damaged, unreadable, skipped, "the store was scrubbed");
                Duration::ZERO
            }
            Err(error) => {
                tracing::warn!(%error, "the scrub of the store goes on in {} minutes", RETRY.as_secs() / 60);
                RETRY
            }
        }
    }
}

impl Scrubber for Thread {
    fn pause(&self, time: Duration) -> bool {
        self.shared.pause(time)
    }

    fn progress(&self, run: &ScrubRun) {
        self.shared.status.send_modify(|status| status.under_way = Some(*run));
    }

    fn found(&self) {
        (self.repair)();
    }
}

#[cfg(test)]
mod tests;
