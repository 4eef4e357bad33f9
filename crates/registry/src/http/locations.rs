//! Where the blobs really are: the presigned addresses that a registry redirected to.
//!
//! An address is kept until it is refused. While one is being asked for, others that want the same blob wait
//! for it instead of asking too, for a short time: a registry that does not answer must not be asked by one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tarpon_oci::{Digest, limits};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use url::Url;

use crate::timing;

/// Addresses kept at most: twice the layers an image may have. Beyond, all are forgotten and asked for again.
const KEPT: usize = 2 * limits::LAYERS;

type Slot = Arc<tokio::sync::Mutex<Option<Url>>>;

/// The known addresses of one repository's blobs.
#[derive(Default)]
pub(super) struct Locations {
    slots: Mutex<HashMap<Digest, Slot>>,
    /// The registry served a blob itself: nobody needs to wait for an address.
    direct: AtomicBool,
}

/// Where to ask for a blob.
pub(super) enum Location {
    /// There.
    Known(Url),
    /// At the registry. Its answer is told to [`Asking::found`].
    Ask(Asking),
}

/// The right to ask the registry for an address.
pub(super) struct Asking {
    slot: Slot,
    /// Others wait until it is dropped.
    guard: Option<OwnedMutexGuard<Option<Url>>>,
}

impl Locations {
    /// Where to ask for `blob`. Waits for a short time while another task finds out.
    pub(super) async fn locate(&self, blob: &Digest) -> Location {
        let slot = self.slot(blob);
        if self.direct.load(Ordering::Relaxed) {
            let known = slot.try_lock().ok().and_then(|known| known.clone());
            return known.map_or_else(|| Asking::beside_others(slot), Location::Known);
        }
        let Ok(guard) = timeout(timing::ADDRESS, slot.clone().lock_owned()).await else {
            return Asking::beside_others(slot);
        };
        match &*guard {
            Some(url) => Location::Known(url.clone()),
            // Found out meanwhile: those who waited need not go one after the other.
            None if self.direct.load(Ordering::Relaxed) => Asking::beside_others(slot),
            None => Location::Ask(Asking { slot, guard: Some(guard) }),
        }
    }

    /// `refused` is of no more use.
    pub(super) async fn forget(&self, blob: &Digest, refused: &Url) {
        let slot = self.slot(blob);
        // What is held for longer is held by a task that asks for another one.
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

    /// The registry served `asking`'s blob itself.
    pub(super) fn is_direct(&self, asking: Asking) {
        self.direct.store(true, Ordering::Relaxed);
        drop(asking);
    }
}

impl Asking {
    /// For a task that nobody waits for.
    fn beside_others(slot: Slot) -> Location {
        Location::Ask(Self { slot, guard: None })
    }

    /// The registry sent us to `url`.
    pub(super) fn found(self, url: &Url) {
        match self.guard {
            Some(mut known) => *known = Some(url.clone()),
            // Whoever holds it now finds an address, too.
            None => drop(self.slot.try_lock().map(|mut known| *known = Some(url.clone()))),
        }
    }
}
