//! Finds the layers of an image when Podman looks up one that is not known.
//!
//! Podman waits in the kernel meanwhile and cannot be interrupted. So everything is bounded: the number of concurrent searches, the
//! duration of each, and how often a failed one is repeated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tarpon_client::protocol::{Backfill, DiffIds, LayersPart, MountRequest};
use tarpon_images::Prepared;
use tarpon_oci::Reference;

use super::store::LayerStore;
use crate::layer_store_fs::{LayerKey, Layers};
use crate::offer::{Offer, ask};
use crate::{Error, ErrorKind, Result, ResultExt};

/// How long Podman waits for a layer that is searched, queueing included: less than the watchdog of mounts waits for a response.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);

impl LayerStore {
    /// Searches the image, shared with concurrent lookups, and records the result.
    pub(super) async fn look_for(self: Arc<Self>, key: LayerKey) {
        let image = &key.image;
        if !self.finding.is_fresh(image) {
            let looking = {
                let mut under_way = self.finding.under_way.lock();
                let begin = || {
                    // A task of its own, so that a panic in it affects nothing else.
                    let (me, of) = (self.clone(), image.clone());
                    let task = self.host.runtime().spawn(async move { me.look_up(of).await });
                    let (me, of) = (self.clone(), image.clone());
                    task.map(move |_| drop(me.finding.under_way.lock().remove(&of))).boxed().shared()
                };
                under_way.entry(image.clone()).or_insert_with(begin).clone()
            };
            looking.await;
        }
        if self.get(&key).is_none() && !self.finding.has_problem(image) {
            let problem =
                format!("{} is no layer of it on this machine's platform, or no digest of one's contents", key.digest);
            self.finding.note(image, Some(problem));
        }
    }

    async fn look_up(self: Arc<Self>, image: Reference) {
        let until = Instant::now() + SEARCH_TIMEOUT;
        let late = || format!("it could not be prepared within {} s", SEARCH_TIMEOUT.as_secs());
        let turns = self.finding.turns.clone();
        let problem = match tokio::time::timeout(SEARCH_TIMEOUT, turns.acquire_owned()).await {
            Ok(Ok(turn)) => {
                let (me, name) = (self.clone(), image.clone());
                let prepared = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    me.prepare(&name, until)
                });
                match prepared.await {
                    Ok(Ok(())) => None,
                    Ok(Err(problem)) => Some(problem),
                    Err(error) => Some(error.to_string()),
                }
            }
            _ => Some(late()),
        };
        self.finding.note(&image, problem);
    }

    /// Has the image prepared, and shows it. Blocks, but not beyond `until`.
    fn prepare(&self, image: &Reference, until: Instant) -> std::result::Result<(), String> {
        let (access, diff_ids) = self.settings().ok_or("it is not wanted any more")?;
        let offer = ask(self.host.server_command(), image, &access, until);
        let offer = offer.map_err(|error| format!("it could not be prepared: {error}"))?;
        let (manifest, fallbacks) = match offer {
            Offer::Ready { manifest, fallbacks } => (manifest, fallbacks),
            Offer::Refused(why) => return Err(why),
        };
        let shown = || -> Result<()> {
            let step = "load the image's record";
            let record = self.store.image(&manifest).context(ErrorKind::Store, step)?;
            let record =
                record.ok_or_else(|| Error::new(ErrorKind::Store, step, "it is not in the store, or damaged"))?;
            let (index_places, fetched) = (Vec::new(), Default::default());
            let prepared = Prepared { text: image.to_string(), record, access, index_places, fallbacks, fetched };
            let mut request = MountRequest::for_image(&prepared, self.place(image, &manifest));
            request.layers = Some(LayersPart::Image { uses: Default::default() });
            request.backfill = backfill(diff_ids);
            self.show(request)
        };
        shown().map_err(|error| error.to_string())
    }
}

/// The backfill of an image, depending on whether Podman relies on its diffIDs.
fn backfill(diff_ids: DiffIds) -> Backfill {
    match diff_ids {
        DiffIds::Hashed => Backfill::Off,
        // So that a wrong diffID is detected.
        DiffIds::Claimed => Backfill::Idle,
    }
}
