//! Where the blobs really are: the presigned addresses that a registry redirected to.
//!
//! An address is kept until it is refused. While one is being asked for, others that want the same blob wait
//! for it instead of asking too.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tarpon_oci::{Digest, limits};
use tokio::sync::OwnedMutexGuard;
use url::Url;

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

/// The right to ask the registry for an address. Others wait until it is dropped.
pub(super) struct Asking(Option<OwnedMutexGuard<Option<Url>>>);

impl Locations {
    /// Where to ask for `blob`; waits while another task finds out.
    pub(super) async fn locate(&self, blob: &Digest) -> Location {
        let slot = self.slot(blob);
        if self.direct.load(Ordering::Relaxed) {
            let known = slot.try_lock().ok().and_then(|known| known.clone());
            return known.map_or(Location::Ask(Asking(None)), Location::Known);
        }
        let guard = slot.lock_owned().await;
        match &*guard {
            Some(url) => Location::Known(url.clone()),
            // Found out meanwhile: those who waited need not go one after the other.
            None if self.direct.load(Ordering::Relaxed) => Location::Ask(Asking(None)),
            None => Location::Ask(Asking(Some(guard))),
        }
    }

    /// `refused` is of no more use.
    pub(super) async fn forget(&self, blob: &Digest, refused: &Url) {
        let slot = self.slot(blob);
        let mut known = slot.lock().await;
        if known.as_ref() == Some(refused) {
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
    /// The registry sent us to `url`.
    pub(super) fn found(self, url: &Url) {
        if let Some(mut slot) = self.0 {
            *slot = Some(url.clone());
        }
    }
}
