//! [`Claim`]: a host streams a layer for all.
//!
//! A claim is the object `claim-N`. Who creates it owns it, because it is created only if absent. Its owner writes its progress into it every
//! few seconds. A host that waits sees whether it changes, by its own clock: a claim that did not change for [`LEASE`] has expired, and
//! `claim-N+1` replaces it. Two owners cost a transfer and are no error: what they write is the same. When the layer is in the tier, its claims
//! have no meaning; they stay, so that a host that listed the layer before creates none.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectMeta, PutPayload};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::error::Result;
use crate::health::Purpose;
use crate::names::claim_name;
use crate::tier::Tier;

/// A claim that did not change for so long has expired. A registry may be silent for ten seconds and go on.
pub const LEASE: Duration = Duration::from_secs(15);
/// Its owner writes its progress this often.
const REFRESH: Duration = Duration::from_secs(3);
/// How long others wait for owners of one layer in all. Then they stream it themselves.
pub const LONGEST_WAIT: Duration = Duration::from_secs(600);

const CLAIM: &str = "claim a layer in the tier";

/// The claim of this host. Dropped, it expires; [`Claim::release`] removes it at once.
#[derive(Debug)]
pub struct Claim {
    tier: Arc<Tier>,
    path: Path,
    progress: Arc<AtomicU64>,
    released: Arc<Notify>,
    refresh: JoinHandle<()>,
}

/// The contents of a claim, for people who look at the tier.
#[derive(Serialize)]
struct Written {
    host: String,
    /// Different for each claim.
    id: u64,
    /// Bytes received of the layer and copied to the tier.
    progress: u64,
}

impl Claim {
    /// Creates the claim after `expired` below `layer`; `None` if another host has it.
    pub(crate) async fn create(tier: &Arc<Tier>, layer: &Path, expired: Option<&SeenClaim>) -> Result<Option<Self>> {
        let path = |number: u64| layer.clone().join(claim_name(number));
        let number = SeenClaim::next(expired);
        let (tier, claim) = (tier.clone(), path(number));
        let id = RandomState::new().hash_one(number);
        tier.check_may_write(CLAIM)?;
        let created = tier.create(CLAIM, &claim, written(id, 0)).await?;
        if !created {
            return Ok(None);
        }
        // Expired claims would become so many that a listing does not show all of them.
        if let Some(expired) = expired
            && let Err(error) = tier.remove("remove an expired claim in the tier", &path(expired.number.into())).await
        {
            tracing::debug!("{error}");
        }
        let (progress, released) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let refresh = refresh(tier.clone(), claim.clone(), id, progress.clone(), released.clone());
        Ok(Some(Self { tier, path: claim, progress, released, refresh: tokio::spawn(refresh) }))
    }

    /// The layer makes progress by these bytes.
    pub fn progressed(&self, bytes: u64) {
        self.progress.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> Arc<AtomicU64> {
        self.progress.clone()
    }

    /// The layer is in the tier, or will not be. A tier that takes nothing, because it is full, may still remove the claim; in one that does
    /// not answer it expires.
    pub async fn release(mut self) {
        self.released.notify_one();
        // A refresh that is on its way would bring the claim back.
        let _ended = (&mut self.refresh).await;
        if self.tier.is_resting().is_some() {
            return;
        }
        if let Err(error) = self.tier.remove("release a claim in the tier", &self.path).await {
            tracing::debug!("{error}; it expires");
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.refresh.abort();
    }
}

/// Writes the progress, as long as there is any, until the claim is released.
async fn refresh(tier: Arc<Tier>, path: Path, id: u64, progress: Arc<AtomicU64>, released: Arc<Notify>) {
    let mut ticks = interval(REFRESH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = 0;
    loop {
        tokio::select! {
            biased;
            () = released.notified() => return,
            _ = ticks.tick() => {}
        }
        let now = progress.load(Ordering::Relaxed);
        if now == last || !tier.may_write() {
            continue;
        }
        last = now;
        let put = tier.store().put_opts(&path, PutPayload::from_bytes(written(id, now)), Default::default());
        if let Err(error) = tier.ask_briefly(Purpose::Write, "refresh a claim in the tier", put).await {
            tracing::debug!("{error}");
        }
    }
}

fn written(id: u64, progress: u64) -> Bytes {
    // By a system call: a confined worker cannot read the name in /proc.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    serde_json::to_vec(&Written { host, id, progress }).unwrap_or_default().into()
}

/// A claim as it was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenClaim {
    /// Not of 64 bits: the next number always exists.
    number: u32,
    /// Changes with each refresh.
    version: String,
}

impl SeenClaim {
    /// The claim in the object `claim-NUMBER`.
    pub(crate) fn new(number: u32, object: &ObjectMeta) -> Self {
        let version = format!("{:?} {} {}", object.e_tag, object.last_modified, object.size);
        Self { number, version }
    }

    /// The number of the claim after this one.
    pub(crate) fn next(last: Option<&Self>) -> u64 {
        last.map_or(0, |claim| u64::from(claim.number) + 1)
    }

    /// Claims of a layer are numbered from 0.
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// How long a claim did not change, by the clock of this host.
#[derive(Debug, Default)]
pub struct Watch {
    seen: Option<(SeenClaim, Instant)>,
}

impl Watch {
    /// Whether the claim has expired: it is the same since [`LEASE`].
    pub fn has_expired(&mut self, claim: &SeenClaim) -> bool {
        match &self.seen {
            Some((seen, since)) if seen == claim => since.elapsed() >= LEASE,
            _ => {
                self.seen = Some((claim.clone(), Instant::now()));
                false
            }
        }
    }
}
