//! Completes mounted images in the background: one task per image with backfill, which ends with the image's last mount and delays no
//! readers.
//!
//! It streams what `pull` streams ([`Completion`]). If a layer does not match the index that the image was mounted by, an alarm is logged,
//! counted and shown, and the mounts read no more data from that layer.

mod throttle;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tarpon_blob::Paced;
use tarpon_client::protocol::{Backfill, BackfillState, BackfillStatus, MountRequest};
use tarpon_fetch::{Background, Fetcher};
use tarpon_images::prepare::STREAMS;
use tarpon_images::prepare::complete::{Completing, Incomplete};
use tarpon_oci::Digest;
use tarpon_store::Store;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::throttle::{Throttle, Turn};
use super::images::{LoadedImage, LoadedImages};
use crate::ErrorKind;

/// Attempts for a layer before giving up. The source retries by itself. These attempts are for outages, and their pauses add up to a
/// quarter of an hour.
const TRIES: u32 = 10;
/// Pause after the first failure; it doubles each time …
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// … up to this limit.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// All completions of the server.
pub(crate) struct Backfills {
    store: Store,
    fetcher: Fetcher,
    runtime: Handle,
    images: Arc<LoadedImages>,
    running: Mutex<HashMap<Digest, Running>>,
}

struct Running {
    status: watch::Receiver<BackfillStatus>,
    task: AbortHandle,
}

impl Backfills {
    pub(crate) fn new(store: Store, fetcher: Fetcher, runtime: Handle, images: Arc<LoadedImages>) -> Self {
        Self { store, fetcher, runtime, images, running: Mutex::default() }
    }

    /// Begins a completion as requested. A running one continues, unless the new one has a higher priority or the old one has given up.
    pub(crate) fn begin(&self, request: &MountRequest, image: &Arc<LoadedImage>) {
        if request.backfill == Backfill::Off {
            return;
        }
        let mut running = self.running.lock();
        if let Some(known) = running.get(&request.manifest) {
            let status = known.status.borrow();
            if status.state != BackfillState::Stopped && status.how >= request.backfill {
                return;
            }
            known.task.abort();
        }
        let how = request.backfill;
        let (reported, status) = watch::channel(BackfillStatus::begun(how));
        let readers = Readers { fetcher: self.fetcher.clone(), how, image: image.clone() };
        let throttled = Arc::new(Throttle::new(image.source(), readers));
        let counted = image.clone();
        let count = move |bytes| counted.handle().backfilled(bytes);
        let source = Arc::new(Paced::new(throttled, request.backfill_rate, count));
        let (images, manifest) = (self.images.clone(), request.manifest);
        let distrust = Box::new(move |layer: &Digest, reason: &str| images.distrust(&manifest, layer, reason));
        let opened = self.images.sources().complete(self.store.clone(), request.manifest, source);
        let run = run(opened, Task { image: request.image.clone(), reported, distrust });
        running.insert(request.manifest, Running { status, task: self.runtime.spawn(run).abort_handle() });
    }

    /// Ends the completion of an image that was unmounted, unless it has another mount according to `is_mounted`.
    pub(crate) fn end(&self, manifest: &Digest, is_mounted: impl FnOnce() -> bool) {
        // Under the lock: a concurrent mount begins after this, or is seen here.
        let mut running = self.running.lock();
        if running.contains_key(manifest) && !is_mounted() {
            running.extract_if(|of, _| of == manifest).for_each(|(_, ended)| ended.task.abort());
        }
    }

    pub(crate) fn status(&self, manifest: &Digest) -> Option<BackfillStatus> {
        self.running.lock().get(manifest).map(|running| running.status.borrow().clone())
    }

    #[cfg(test)]
    async fn settled(&self, manifest: &Digest) -> BackfillStatus {
        let mut status = self.running.lock().get(manifest).unwrap().status.clone();
        status.wait_for(|status| status.state != BackfillState::Running).await.unwrap().clone()
    }
}

async fn run(opened: BoxFuture<'static, crate::Result<Box<dyn Completing>>>, task: Task) {
    match opened.await {
        Ok(completion) => task.run(&*completion).await,
        Err(error) => task.stop(error.to_string()),
    }
}

/// One completion: its status, and the callback for alarms.
struct Task {
    /// The image name as the user wrote it, for the log.
    image: String,
    reported: watch::Sender<BackfillStatus>,
    distrust: Warn,
}

/// Called with a layer that must not be served, and the reason.
type Warn = Box<dyn Fn(&Digest, &str) + Send + Sync>;

/// The completion stops, with the reason.
struct Stop(String);

impl Task {
    async fn run(&self, completion: &dyn Completing) {
        let layers = completion.layers();
        self.reported.send_modify(|status| status.layers = layers.len());
        let streams = if self.reported.borrow().how == Backfill::Now { STREAMS } else { 1 };
        let layers = layers.into_iter().enumerate().map(|(at, layer)| self.layer(completion, at, layer));
        let brought: Result<(), Stop> = stream::iter(layers).buffer_unordered(streams).try_collect().await;
        match brought {
            Err(Stop(problem)) => self.stop(problem),
            Ok(()) if !self.reported.borrow().alarms.is_empty() => self.finish(BackfillState::Alarm),
            Ok(()) if completion.was_seen() => self.finish(BackfillState::Complete),
            Ok(()) => self.install(completion).await,
        }
    }

    async fn install(&self, completion: &dyn Completing) {
        match completion.install().await {
            Ok(is_written) => {
                self.set_problem((!is_written).then(|| BY_INDEX_STILL.to_owned()));
                self.finish(BackfillState::Complete);
            }
            Err(Incomplete::Lie(cause) | Incomplete::Refused(cause)) => {
                let accused = completion.by_index();
                if accused.is_empty() {
                    // No index was involved: the layers themselves are inconsistent.
                    return self.stop(cause);
                }
                for layer in accused {
                    // In this order: a concurrent mount reads the record, or gets the alarm.
                    completion.note_lie(layer).await;
                    self.alarm(&layer, &cause);
                }
                self.finish(BackfillState::Alarm);
            }
            Err(Incomplete::NoRoom) => self.stop(NO_ROOM.to_owned()),
            Err(Incomplete::Failed(error)) => self.stop(error.to_string()),
        }
    }

    /// Streams one layer, with retries.
    async fn layer(&self, completion: &dyn Completing, at: usize, layer: Digest) -> Result<(), Stop> {
        let (mut failures, mut refusals, mut pause) = (0, 0, FIRST_PAUSE);
        loop {
            match completion.layer(at).await {
                Ok(()) => {
                    self.reported.send_modify(|status| status.layers_done += 1);
                    return Ok(());
                }
                Err(Incomplete::Lie(cause)) => {
                    completion.note_lie(layer).await;
                    self.alarm(&layer, &cause);
                    return Ok(());
                }
                // The bytes may have been corrupted in transfer: one retry before the layer is distrusted.
                Err(Incomplete::Refused(_)) if refusals == 0 => refusals += 1,
                Err(Incomplete::Refused(cause)) => {
                    completion.note_lie(layer).await;
                    self.alarm(&layer, &format!("it is not what the manifest describes: {cause}"));
                    return Ok(());
                }
                Err(Incomplete::NoRoom) => return Err(Stop(NO_ROOM.to_owned())),
                Err(Incomplete::Failed(error)) => {
                    failures += 1;
                    if failures == TRIES || error.kind != ErrorKind::Unavailable {
                        return Err(Stop(error.to_string()));
                    }
                    self.set_problem(Some(format!("trying again after {} s: {error}", pause.as_secs())));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    self.set_problem(None);
                }
            }
        }
    }

    /// Raises an alarm: the mounts read no more data from the layer. [`LoadedImages::distrust`] logs and counts it.
    fn alarm(&self, layer: &Digest, cause: &str) {
        (self.distrust)(layer, cause);
        let line = format!("layer {layer}: {cause}");
        self.reported.send_modify(|status| status.alarms.push(line));
    }

    fn set_problem(&self, problem: Option<String>) {
        self.reported.send_modify(|status| status.problem = problem);
    }

    fn stop(&self, problem: String) {
        tracing::warn!(image = %self.image, %problem, "the image is not completed");
        self.reported.send_modify(|status| {
            status.problem = Some(problem);
            status.state = if status.alarms.is_empty() { BackfillState::Stopped } else { BackfillState::Alarm };
        });
    }

    fn finish(&self, state: BackfillState) {
        let is_whole = state == BackfillState::Complete;
        let what = if is_whole { "the image is completely local" } else { "all layers that are trusted are local" };
        tracing::info!(image = %self.image, ?state, "{what}");
        self.reported.send_modify(|status| status.state = state);
    }
}

/// For an image with a correct index that differs from the one this version would make.
const BY_INDEX_STILL: &str = "the mount goes on being read by its index; unmounted, `tarpon pull` replaces that";
const NO_ROOM: &str = "the store has no room for the rest of the image";

/// Gives way to readers.
struct Readers {
    fetcher: Fetcher,
    how: Backfill,
    image: Arc<LoadedImage>,
}

impl Turn for Readers {
    fn begin(&self) -> BoxFuture<'_, ()> {
        match self.how {
            Backfill::Idle => self.fetcher.turn(Background::IdleBackfill).boxed(),
            Backfill::Now | Backfill::Off => self.fetcher.turn(Background::PromptBackfill).boxed(),
        }
    }

    fn is_whole(&self) -> bool {
        self.image.ignores_ranges()
    }
}

#[cfg(test)]
mod tests;
