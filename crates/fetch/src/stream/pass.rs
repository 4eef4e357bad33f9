//! [`Passes`]: the running passes through layers, and the flights that wait for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_oci::Digest;
use tokio::sync::{Notify, oneshot, watch};

use crate::error::PieceError;
use crate::flight::Flight;
use crate::ids::ImageId;

/// The running passes, by layer and the image whose source is read: at most one each. If one image's source serves wrong bytes, its pass
/// fails only for that image's readers.
#[derive(Default)]
pub(crate) struct Passes {
    running: Mutex<HashMap<PassKey, Arc<Pass>>>,
}

pub(super) type PassKey = (Digest, ImageId);

/// One pass through a layer.
pub(crate) struct Pass {
    state: Mutex<PassState>,
    /// Another place is wanted.
    changed: Notify,
    ended: watch::Sender<bool>,
}

struct PassState {
    wanted: BTreeMap<u64, Wanted>,
    /// The pass is past all places before this one.
    floor: u64,
    /// A request waits for the end, to start another pass.
    hurried: bool,
    open: bool,
}

/// A flight that the pass completes, and the channel for the result.
pub(crate) struct Wanted {
    pub(crate) flight: Arc<Flight>,
    pub(crate) done: oneshot::Sender<Result<(), PieceError>>,
}

/// The result of joining a pass.
pub(super) enum Joined {
    /// The result of the flight arrives here.
    Waiting(oneshot::Receiver<Result<(), PieceError>>),
    /// The pass is past the place: wait for its end and try again.
    TooLate(Arc<Pass>),
}

impl Passes {
    /// Joins the running pass, or a new one that `start` starts.
    pub(super) fn join(&self, key: PassKey, flight: &Arc<Flight>, start: impl FnOnce(Arc<Pass>)) -> Joined {
        let mut running = self.running.lock();
        if let Some(pass) = running.get(&key) {
            return pass.join(flight);
        }
        let pass = Arc::new(Pass::new());
        running.insert(key, pass.clone());
        start(pass.clone());
        pass.join(flight)
    }

    /// The pass is over: the flights that still wait for it get the error.
    pub(super) fn end(&self, key: &PassKey, pass: &Pass, error: &PieceError) {
        self.running.lock().remove(key);
        pass.end(error);
    }
}

impl Pass {
    fn new() -> Self {
        let state = PassState { wanted: BTreeMap::new(), floor: 0, hurried: false, open: true };
        Self { state: Mutex::new(state), changed: Notify::new(), ended: watch::Sender::new(false) }
    }

    fn join(self: &Arc<Self>, flight: &Arc<Flight>) -> Joined {
        let mut state = self.state.lock();
        let place = flight.piece.key.offset;
        if !state.open || place < state.floor || state.wanted.contains_key(&place) {
            state.hurried = true;
            self.changed.notify_one();
            return Joined::TooLate(self.clone());
        }
        let (done, waiting) = oneshot::channel();
        state.wanted.insert(place, Wanted { flight: flight.clone(), done });
        self.changed.notify_one();
        Joined::Waiting(waiting)
    }

    /// The furthest wanted place.
    pub(crate) fn goal(&self) -> Option<u64> {
        self.state.lock().wanted.last_key_value().map(|(place, _)| *place)
    }

    /// The next wanted place.
    pub(crate) fn next_wanted(&self) -> Option<u64> {
        self.state.lock().wanted.first_key_value().map(|(place, _)| *place)
    }

    /// The pass has reached this place: no flight can join for it any more. Returns the one that did.
    pub(crate) fn reach(&self, place: u64) -> Option<Wanted> {
        let mut state = self.state.lock();
        state.floor = place.saturating_add(1);
        state.wanted.remove(&place)
    }

    /// No flight can join any more; the waiting ones get the error.
    fn end(&self, error: &PieceError) {
        let mut state = self.state.lock();
        state.open = false;
        for wanted in std::mem::take(&mut state.wanted).into_values() {
            // A waiter that is gone needs no reply.
            let _ = wanted.done.send(Err(error.clone()));
        }
        drop(state);
        self.ended.send_replace(true);
    }

    pub(super) async fn wait_for_end(&self) {
        // The sender is part of `self`: this cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Waits until a place further on is wanted. Returns `false` if a request waits for the end of the pass instead.
    pub(super) async fn wait_for_goal(&self) -> bool {
        while self.goal().is_none() {
            if self.state.lock().hurried {
                return false;
            }
            self.changed.notified().await;
        }
        true
    }
}
