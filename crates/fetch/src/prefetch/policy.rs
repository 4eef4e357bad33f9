//! [`Prefetch`]: decides which prefetcher of an image may work now.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::rules::{Obstacle, Prefetcher, Step};
use crate::breaker::Breaker;
use crate::bypass::Bypass;
use crate::lanes::Lanes;
use crate::pack::places::Pack;
use crate::prefetch::allowance::Allowance;
use crate::prefetch::governor::state::Governor;

/// The state that the rules look at.
pub(crate) struct Facts {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) bypass: Arc<Bypass>,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) governor: Arc<Governor>,
    pub(crate) source_is_local: bool,
    /// As [`crate::Config::whole_linger`].
    pub(crate) linger: Duration,
}

/// The policy for one image, and the prefetchers that run as tasks.
pub(crate) struct Prefetch {
    facts: Facts,
    /// The bytes that neighbours may take.
    pub(crate) allowance: Allowance,
    /// The boot pack, if the image has one.
    pack: OnceLock<Arc<Pack>>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    /// Number of [`Predicting`]s.
    predictions: usize,
    /// The task that replays the boot pack.
    replay: Option<AbortHandle>,
    /// Closed at the end of that task.
    replay_end: Option<watch::Receiver<()>>,
    /// The task that follows the latest hints.
    hints: Option<AbortHandle>,
    /// Whether there is a [`Downloading`].
    downloads: bool,
    download: Option<AbortHandle>,
    /// The image is gone.
    closed: bool,
}

impl Running {
    fn predicts(&self) -> bool {
        [&self.replay, &self.hints].into_iter().any(is_running)
    }
}

fn is_running(task: &Option<AbortHandle>) -> bool {
    task.as_ref().is_some_and(|task| !task.is_finished())
}

/// Held by the task that replays a boot pack.
pub(crate) struct Replaying(#[expect(dead_code, reason = "its drop is the event")] watch::Sender<()>);

impl Prefetch {
    pub(crate) fn new(facts: Facts) -> Self {
        Self { facts, allowance: Allowance::default(), pack: OnceLock::new(), running: Mutex::default() }
    }

    /// Whether the prefetcher may take the step.
    pub(crate) fn may(&self, prefetcher: Prefetcher, step: Step) -> bool {
        self.obstacle(prefetcher, step).is_none()
    }

    /// As [`Prefetch::may`], for work on the chunk with this number in the table.
    #[inline]
    pub(crate) fn may_at(&self, prefetcher: Prefetcher, step: Step, chunk: impl Fn() -> Option<u32>) -> bool {
        self.first_obstacle(prefetcher, step, chunk).is_none()
    }

    /// Why the prefetcher may not take the step.
    pub(crate) fn obstacle(&self, prefetcher: Prefetcher, step: Step) -> Option<Obstacle> {
        self.first_obstacle(prefetcher, step, || None)
    }

    #[inline]
    fn first_obstacle(&self, prefetcher: Prefetcher, step: Step, chunk: impl Fn() -> Option<u32>) -> Option<Obstacle> {
        prefetcher.rules().at(step).iter().find(|obstacle| self.is_present(**obstacle, &chunk)).copied()
    }

    #[inline]
    fn is_present(&self, obstacle: Obstacle, chunk: impl Fn() -> Option<u32>) -> bool {
        let facts = &self.facts;
        match obstacle {
            Obstacle::StoreRefuses => facts.bypass.is_active(),
            Obstacle::SourceFails => facts.breaker.has_outage(),
            Obstacle::SourceIsLocal => facts.source_is_local,
            Obstacle::HasPack => self.pack.get().is_some(),
            Obstacle::HasRecordedPack => self.pack.get().is_some_and(|pack| pack.is_recorded()),
            Obstacle::PackInUse => self.pack_in_use().is_some_and(|pack| pack.is_recorded()),
            Obstacle::PackHasChunk => {
                self.pack_in_use().is_some_and(|pack| chunk().is_some_and(|chunk| pack.has(chunk)))
            }
            Obstacle::PredictionRuns => self.running.lock().predictions > 0,
            Obstacle::DownloadRuns => self.downloads(),
            Obstacle::DemandOnWire => facts.lanes.has_demand(),
            Obstacle::ReadersQuiet => facts.governor.quiet_for() >= facts.linger,
        }
    }

    /// The boot pack.
    pub(crate) fn pack(&self) -> Option<&Arc<Pack>> {
        self.pack.get()
    }

    fn pack_in_use(&self) -> Option<&Arc<Pack>> {
        self.pack().filter(|pack| !pack.is_given_up())
    }

    /// Makes this the boot pack of the image, and starts to replay it. `false` if the rules forbid it.
    pub(crate) fn start_pack(&self, pack: Arc<Pack>, spawn: impl FnOnce(Replaying) -> AbortHandle) -> bool {
        let mut running = self.running.lock();
        let starts = self.use_pack(pack);
        if starts {
            let (replaying, end) = watch::channel(());
            running.replay_end = Some(end);
            running.replay = Some(spawn(Replaying(replaying)));
        }
        starts
    }

    /// Returns when no boot pack is being replayed.
    pub(crate) async fn replay_end(&self) {
        let end = self.running.lock().replay_end.clone();
        if let Some(mut end) = end {
            // Nothing is sent: the channel is closed.
            let _closed = end.changed().await;
        }
    }

    /// Makes this the boot pack of the image, which the caller fetches. `false` if the rules forbid it.
    pub(crate) fn use_pack(&self, pack: Arc<Pack>) -> bool {
        self.may(Prefetcher::BootPack, Step::Begin) && self.pack.set(pack).is_ok()
    }

    /// Starts to follow hints. `false` if the rules forbid it, or other hints are being followed.
    pub(crate) fn start_hints(&self, spawn: impl FnOnce() -> AbortHandle) -> bool {
        let may = self.may(Prefetcher::Hints, Step::Begin);
        let mut running = self.running.lock();
        let starts = may && !is_running(&running.hints);
        if starts {
            running.hints = Some(spawn());
        }
        starts
    }

    /// Stops following hints. Requests on the wire complete. A boot pack is not affected.
    pub(crate) fn stop_hints(&self) {
        let task = self.running.lock().hints.take();
        task.inspect(AbortHandle::abort);
    }

    /// Whether the task of a boot pack or of hints has not ended.
    pub(crate) fn predicts(&self) -> bool {
        self.running.lock().predicts()
    }

    /// Starts the whole download. `false` if the rules forbid it, it runs already, or the image is gone.
    pub(crate) fn start_download(self: &Arc<Self>, spawn: impl FnOnce(Downloading) -> AbortHandle) -> bool {
        if !self.may(Prefetcher::WholeImage, Step::Begin) {
            return false;
        }
        {
            let mut running = self.running.lock();
            if running.closed || std::mem::replace(&mut running.downloads, true) {
                return false;
            }
        }
        let task = spawn(Downloading(self.clone()));
        let mut running = self.running.lock();
        if running.closed {
            task.abort();
        }
        running.download = Some(task);
        true
    }

    /// Whether a whole download runs, or a first part of it.
    pub(crate) fn downloads(&self) -> bool {
        self.running.lock().downloads
    }

    /// Stops all tasks for good: the image is gone.
    pub(crate) fn close(&self) {
        let mut running = self.running.lock();
        running.closed = true;
        let tasks = [running.replay.take(), running.hints.take(), running.download.take()];
        drop(running);
        tasks.into_iter().flatten().for_each(|task| task.abort());
    }
}

/// A boot pack is replayed or hints are followed, until this is dropped.
pub(crate) struct Predicting(Arc<Prefetch>);

impl Predicting {
    pub(crate) fn begin(prefetch: &Arc<Prefetch>) -> Self {
        prefetch.running.lock().predictions += 1;
        Self(prefetch.clone())
    }
}

impl Drop for Predicting {
    fn drop(&mut self) {
        let mut running = self.0.running.lock();
        running.predictions -= 1;
        if running.predictions == 0 {
            // Readers waited for bytes that were on their way, not for round trips.
            self.0.facts.governor.forget_waits();
        }
    }
}

/// The whole download runs, until this is dropped.
pub(crate) struct Downloading(Arc<Prefetch>);

impl Drop for Downloading {
    fn drop(&mut self) {
        let mut running = self.0.running.lock();
        (running.downloads, running.download) = (false, None);
    }
}

#[cfg(test)]
mod tests;
