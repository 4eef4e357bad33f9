//! Complete objects that must be hashed before they are used: all that an earlier boot left, and what changed since it was hashed.
//!
//! Hashing takes as long as reading the whole object, so it is done on a thread of its own, once for all who wait for it, and it goes on
//! when they have gone: a reader whose time was over finds the work done, or joins it.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_blob::Opened;
use tarpon_layer::ObjectId;
use tokio::sync::{Semaphore, watch};

use crate::host::Host;
use crate::local::LocalObject;

/// Objects below this size are not queued behind larger ones: they take a hundredth of a second, where a large one takes many seconds.
const SMALL: u64 = 8 << 20;
/// Objects of either kind that are hashed at a time, if there are as many cores: more of them only wait for the disk.
const AT_ONCE: usize = 8;

/// Objects that are being hashed.
pub(crate) struct Checks {
    /// By the digest that the object is kept under. Closed when the work is done.
    running: Mutex<HashMap<ObjectId, watch::Receiver<()>>>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for Checks {
    fn default() -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, NonZero::get).min(AT_ONCE);
        let lane = || Arc::new(Semaphore::new(at_once));
        Self { running: Mutex::default(), small: lane(), large: lane() }
    }
}

impl Checks {
    fn lane(&self, size: u64) -> Arc<Semaphore> {
        if size < SMALL { self.small.clone() } else { self.large.clone() }
    }
}

/// Whatever ends the work, nobody finds it running after that.
struct Ending {
    host: Arc<Host>,
    kept_as: ObjectId,
    _running: watch::Sender<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.host.checks.running.lock().remove(&self.kept_as);
    }
}

impl Host {
    /// What of the object is a local file. A store that cannot say has nothing.
    pub(crate) fn opened(&self, id: &ObjectId) -> Opened<LocalObject> {
        let opened = self.open.open(&*self.store, &self.contents.kept_as(id));
        opened.inspect_err(|error| self.store_refused(error)).unwrap_or(Opened::Absent)
    }

    /// Has the object, a local file of `size` bytes, hashed, unless that is going on already, and ends when it was.
    pub(crate) fn check(self: &Arc<Self>, id: &ObjectId, size: u64) -> impl Future<Output = ()> + Send + use<> {
        let mut running = self.begin_check(self.contents.kept_as(id), size);
        async move { while running.changed().await.is_ok() {} }
    }

    /// The object as a local file, if the store has it whole; hashed first where that is due.
    pub(crate) async fn complete_checked(self: &Arc<Self>, id: &ObjectId) -> Option<LocalObject> {
        let mut opened = self.opened(id);
        if let Opened::Unchecked(size) = opened {
            self.check(id, size).await;
            opened = self.opened(id);
        }
        opened.sound()
    }

    /// Size of a local file that was verified. Whoever asks cannot wait: one that must be hashed first has its size when that is done.
    pub(crate) fn checked_size(self: &Arc<Self>, id: &ObjectId) -> Option<u64> {
        match self.opened(id) {
            Opened::Sound(local) => Some(local.size),
            Opened::Unchecked(size) => {
                drop(self.begin_check(self.contents.kept_as(id), size));
                None
            }
            Opened::Absent => None,
        }
    }

    fn begin_check(self: &Arc<Self>, kept_as: ObjectId, size: u64) -> watch::Receiver<()> {
        let mut checks = self.checks.running.lock();
        if let Some(running) = checks.get(&kept_as) {
            return running.clone();
        }
        let (told, running) = watch::channel(());
        checks.insert(kept_as, running.clone());
        drop(checks);
        let ending = Ending { host: self.clone(), kept_as, _running: told };
        let (lane, runtime) = (self.checks.lane(size), self.runtime.clone());
        self.runtime.spawn(async move {
            let Ok(_turn) = lane.acquire_owned().await else { return };
            let hashed = runtime.spawn_blocking(move || {
                let host = &ending.host;
                if let Err(error) = host.open.check(&*host.store, &ending.kept_as) {
                    host.store_refused(&error);
                }
            });
            let _ended = hashed.await;
        });
        running
    }
}
