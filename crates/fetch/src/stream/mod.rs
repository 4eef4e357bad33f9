//! Objects of a layer without random access that are not in the store (any more): the layer is decoded from its beginning
//! once more, in one **pass** that everybody shares who wants something further on.
//!
//! A pass keeps every object that comes by and is missing, since its bytes are paid for: whoever reads one evicted file of
//! an image is likely to read the next. When nobody wants anything further on, it stands still for a while (the
//! source's answer is simply not read on) and then ends.

mod input;
mod walker;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_oci::Digest;
use tokio::sync::{Notify, oneshot, watch};

use crate::error::PieceError;
use crate::flight::{Boarded, Flight};
use crate::host::Host;
use crate::image::{Image, ImageId};
use crate::stream::walker::{Step, Walker};

/// The passes under way, by layer and the image whose source is read: at most one each. A pass through bytes that
/// one image's source makes up fails that image's readers alone.
#[derive(Default)]
pub(crate) struct Passes {
    running: Mutex<HashMap<PassKey, Arc<Pass>>>,
}

type PassKey = (Digest, ImageId);

/// One pass through a layer.
pub(crate) struct Pass {
    state: Mutex<State>,
    /// Something else is wanted.
    changed: Notify,
    ended: watch::Sender<bool>,
}

struct State {
    wanted: BTreeMap<u64, Wanted>,
    /// Places before this have gone by.
    floor: u64,
    /// Somebody waits for the end, to start anew.
    hurried: bool,
    open: bool,
}

/// A flight that the pass is to bring home, and where to tell that it did.
pub(crate) struct Wanted {
    pub(crate) flight: Arc<Flight>,
    pub(crate) done: oneshot::Sender<Result<(), PieceError>>,
}

/// What became of the wish to join a pass.
enum Joined {
    /// Its end will be told here.
    Waiting(oneshot::Receiver<Result<(), PieceError>>),
    /// The pass is past the place: wait for its end and try again.
    TooLate(Arc<Pass>),
}

impl Pass {
    fn new() -> Self {
        let state = State { wanted: BTreeMap::new(), floor: 0, hurried: false, open: true };
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
        let (done, told) = oneshot::channel();
        state.wanted.insert(place, Wanted { flight: flight.clone(), done });
        self.changed.notify_one();
        Joined::Waiting(told)
    }

    /// The furthest place that somebody waits for.
    pub(crate) fn goal(&self) -> Option<u64> {
        self.state.lock().wanted.last_key_value().map(|(place, _)| *place)
    }

    /// The next place that somebody waits for.
    pub(crate) fn next_wanted(&self) -> Option<u64> {
        self.state.lock().wanted.first_key_value().map(|(place, _)| *place)
    }

    /// The pass has reached this place: from now on nobody can join for it. Whoever did is handed out.
    pub(crate) fn reach(&self, place: u64) -> Option<Wanted> {
        let mut state = self.state.lock();
        state.floor = place.saturating_add(1);
        state.wanted.remove(&place)
    }

    /// Nobody joins any more; whoever still waits gets the error.
    fn end(&self, error: &PieceError) {
        let mut state = self.state.lock();
        state.open = false;
        for wanted in std::mem::take(&mut state.wanted).into_values() {
            // A waiter that has gone needs no answer.
            let _ = wanted.done.send(Err(error.clone()));
        }
        drop(state);
        self.ended.send_replace(true);
    }

    async fn wait_for_end(&self) {
        // The sender is part of `self`: this cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

impl Host {
    /// Brings the one flight of a request home by passes through its layer.
    pub(crate) async fn fly_by_stream(self: &Arc<Self>, boarded: &Boarded, flight: &Arc<Flight>) {
        // Starting over is dear: the request goes on for later readers even if this one gives up.
        boarded.request.detach();
        let mut sources = self.sources(flight);
        let mut failure = PieceError::Cancelled;
        let mut visits = 0;
        while !sources.is_empty() {
            let source = match self.gate(&boarded.request, &sources, std::slice::from_ref(flight)).await {
                Ok(source) => source,
                Err(error) => {
                    failure = error;
                    break;
                }
            };
            failure = match self.join_pass(flight, &source).await {
                Ok(()) => return,
                Err(error) => error,
            };
            visits += 1;
            if matches!(failure, PieceError::NoRoom(_)) {
                break;
            }
            if self.waits_on(&boarded.request, &source, &failure) {
                continue;
            }
            sources.retain(|known| known.id != source.id);
            // Wrong bytes are worth a second pass even if there is only one source.
            if sources.is_empty() && visits < 2 && matches!(failure, PieceError::Corrupt { .. }) {
                sources.push(source);
            }
        }
        self.give_up(flight, failure);
    }

    async fn join_pass(self: &Arc<Self>, flight: &Arc<Flight>, source: &Arc<Image>) -> Result<(), PieceError> {
        let key = (flight.piece.key.layer, source.id);
        loop {
            let joined = {
                let mut running = self.passes.running.lock();
                match running.get(&key) {
                    Some(pass) => pass.join(flight),
                    None => {
                        let pass = Arc::new(Pass::new());
                        running.insert(key, pass.clone());
                        self.runtime.spawn(self.clone().run_pass(pass.clone(), flight.clone(), source.clone()));
                        pass.join(flight)
                    }
                }
            };
            match joined {
                Joined::Waiting(told) => return told.await.unwrap_or(Err(PieceError::Cancelled)),
                Joined::TooLate(pass) => pass.wait_for_end().await,
            }
        }
    }

    /// The task of one pass.
    async fn run_pass(self: Arc<Self>, pass: Arc<Pass>, first: Arc<Flight>, source: Arc<Image>) {
        let (key, error) = ((first.piece.key.layer, source.id), PieceError::Cancelled);
        let mut ending = Ending { host: self.clone(), pass: pass.clone(), key, error };
        if let Err(error) = self.walk(&pass, &first, &source).await {
            ending.error = error;
        }
    }

    async fn walk(
        self: &Arc<Self>,
        pass: &Arc<Pass>,
        first: &Arc<Flight>,
        source: &Arc<Image>,
    ) -> Result<(), PieceError> {
        let admitted = self.lanes.admit_demand(&source.budget, walker::MEMORY_BYTES).await;
        let _admission = admitted.ok_or(PieceError::Cancelled)?;
        let mut walker = Walker::open(self, pass, first, source).await?;
        while self.somebody_waits(pass).await {
            let step = self.runtime.spawn_blocking(move || walker.walk_to_goal());
            match step.await.map_err(|_| PieceError::Cancelled)?? {
                Step::GoalReached(same) => walker = *same,
                Step::EndOfLayer => return Err(self.past_the_end(first)),
            }
        }
        Ok(())
    }

    /// Whether there is something further on to go for; waits a while for it to come.
    async fn somebody_waits(&self, pass: &Pass) -> bool {
        let waiting = async {
            while pass.goal().is_none() {
                if pass.state.lock().hurried {
                    return false;
                }
                pass.changed.notified().await;
            }
            true
        };
        tokio::time::timeout(self.config.stream_linger, waiting).await.unwrap_or(false)
    }

    fn past_the_end(&self, flight: &Flight) -> PieceError {
        PieceError::corrupt(&flight.piece.key, "the layer ends before the chunk")
    }
}

/// Whatever ends the task of a pass, nobody waits for it for ever.
struct Ending {
    host: Arc<Host>,
    pass: Arc<Pass>,
    key: PassKey,
    error: PieceError,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.host.passes.running.lock().remove(&self.key);
        self.pass.end(&self.error);
    }
}
