//! Checks complete objects that must be hashed before use: those of an earlier boot, and those that changed since they were hashed.
//!
//! Hashing takes as long as reading the whole object. So it runs on its own thread, once for all waiters, and continues without them: a reader
//! that timed out finds the work done, or joins it.

use std::sync::Arc;

use tarpon_blob::Opened;
use tarpon_layer::ObjectId;
use tokio::sync::watch;

use crate::host::FetchHost;
use crate::local::LocalObject;

/// Ends the check however its task ends.
struct Ending {
    host: Arc<FetchHost>,
    kept_as: ObjectId,
    _running: watch::Sender<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.host.checks.end(&self.kept_as);
    }
}

impl FetchHost {
    /// The object as a local file. A store that fails counts as empty.
    pub(crate) fn opened(&self, id: &ObjectId) -> Opened<LocalObject> {
        let opened = self.open.open(&*self.store, &self.contents.kept_as(id));
        opened.inspect_err(|error| self.store_refused(error)).unwrap_or(Opened::Absent)
    }

    /// Hashes the object, a local file of `size` bytes, or joins the check that is running. Ends with it.
    pub(crate) fn check(self: &Arc<Self>, id: &ObjectId, size: u64) -> impl Future<Output = ()> + Send + use<> {
        let mut running = self.begin_check(self.contents.kept_as(id), size);
        async move { while running.changed().await.is_ok() {} }
    }

    /// The object as a local file, if it is complete; hashed first where necessary.
    pub(crate) async fn complete_checked(self: &Arc<Self>, id: &ObjectId) -> Option<LocalObject> {
        let mut opened = self.opened(id);
        if let Opened::Unchecked(size) = opened {
            self.check(id, size).await;
            opened = self.opened(id);
        }
        opened.sound()
    }

    /// Size of a verified local file. Does not wait: for an unchecked file it starts the check and returns `None`.
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
        let (running, run) = self.checks.join(kept_as);
        let Some(sender) = run else { return running };
        let ending = Ending { host: self.clone(), kept_as, _running: sender };
        let (turns, runtime) = (self.checks.turns(size), self.runtime.clone());
        self.runtime.spawn(async move {
            let Ok(_turn) = turns.acquire_owned().await else { return };
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
