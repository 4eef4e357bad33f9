//! Locations of blobs: the presigned addresses that a registry redirected to.
//!
//! An address is kept until it is refused. While it is being requested, other readers of the same blob wait for it for a short time
//! instead of requesting it too: a registry that does not answer must not be queried by one after the other. The first few do not wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tarpon_oci::{Digest, limits};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use url::Url;

use crate::timing;

/// Maximum number of addresses: twice the layers an image may have. Above it, all are forgotten and requested again.
const KEPT: usize = 2 * limits::LAYERS;

/// Requests of a repository that do not wait for the address that another one requests, as long as no address is known: the first requests are
/// those of a boot pack, which a wait would delay by a round trip. If the registry redirects, each of them costs it one more short answer.
const UNDELAYED: usize = 4;

type Slot = Arc<tokio::sync::Mutex<Option<Url>>>;

/// The known addresses of one repository's blobs.
#[derive(Default)]
pub(super) struct Locations {
    slots: Mutex<HashMap<Digest, Slot>>,
    /// The registry served a blob itself: no request needs to wait for an address.
    direct: AtomicBool,
    /// How many requests did not wait, or [`UNDELAYED`] because the registry redirects.
    undelayed: AtomicUsize,
}

/// Where to request a blob.
pub(super) enum Location {
    /// At this address.
    Known(Url),
    /// At the registry. Report its answer to [`Locations::found`] or [`Locations::note_direct`].
    Ask(Asking),
}

/// The right to request an address from the registry.
pub(super) struct Asking {
    slot: Slot,
    /// Others wait until it is dropped.
    guard: Option<OwnedMutexGuard<Option<Url>>>,
}

impl Locations {
    /// Where to request `blob`. Waits for a short time while another task finds it.
    pub(super) async fn locate(&self, blob: &Digest) -> Location {
        let slot = self.slot(blob);
        if self.direct.load(Ordering::Relaxed) {
            let known = slot.try_lock().ok().and_then(|known| known.clone());
            return known.map_or_else(|| Asking::beside_others(slot), Location::Known);
        }
        let guard = match slot.clone().try_lock_owned() {
            Ok(guard) => guard,
            Err(_) if self.need_not_wait() => return Asking::beside_others(slot),
            Err(_) => match timeout(timing::ADDRESS, slot.clone().lock_owned()).await {
                Ok(guard) => guard,
                Err(_) => return Asking::beside_others(slot),
            },
        };
        match &*guard {
            Some(url) => Location::Known(url.clone()),
            // Found in the meantime: waiting tasks need not run one after the other.
            None if self.direct.load(Ordering::Relaxed) => Asking::beside_others(slot),
            None => Location::Ask(Asking { slot, guard: Some(guard) }),
        }
    }

    /// Whether this is one of the first requests.
    fn need_not_wait(&self) -> bool {
        self.undelayed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < UNDELAYED).then_some(count + 1))
            .is_ok()
    }

    /// Forgets `refused`.
    pub(super) async fn forget(&self, blob: &Digest, refused: &Url) {
        let slot = self.slot(blob);
        // A lock that is held for longer is held by a task that requests another address.
        if let Ok(mut known) = timeout(timing::ADDRESS, slot.lock()).await
            && known.as_ref() == Some(refused)
        {
            *known = None;
        }
    }

    fn slot(&self, blob: &Digest) -> Slot {
        let mut slots = self.slots.lock();
        if slots.len() >= KEPT && !slots.contains_key(blob) {
            slots.clear();
        }
        slots.entry(*blob).or_default().clone()
    }

    /// Records that the registry served `asking`'s blob itself.
    pub(super) fn note_direct(&self, asking: Asking) {
        self.direct.store(true, Ordering::Relaxed);
        drop(asking);
    }

    /// Records that the registry redirected `asking` to `url`.
    pub(super) fn found(&self, asking: Asking, url: &Url) {
        self.undelayed.store(UNDELAYED, Ordering::Relaxed);
        match asking.guard {
            Some(mut known) => *known = Some(url.clone()),
            // The current holder finds an address, too.
            None => drop(asking.slot.try_lock().map(|mut known| *known = Some(url.clone()))),
        }
    }
}

impl Asking {
    /// For a task that no other task waits for.
    fn beside_others(slot: Slot) -> Location {
        Location::Ask(Self { slot, guard: None })
    }
}
