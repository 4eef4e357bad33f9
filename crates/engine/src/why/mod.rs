//! Why a mounted image was slow: what its readers waited for, what was fetched for whom, and what can be done about it.
//!
//! The server tells what it counted ([`crate::protocol::MountAccount`]). Names of files are looked up here, in the process of
//! whoever asks, and [`advice`] is made of these figures and of nothing else.

mod advice;

use std::path::Path;

use serde::Serialize;
use tarpon_fetch::{Early, Noted, Stall, Stats, WaitSum};
use tarpon_oci::Digest;
use tarpon_store::{LayerRecord, Verification};

pub use self::advice::{Advice, Topic};
use crate::protocol::{LayerVerification, MountAccount, MountStatus};
use crate::record::hints::Hints;
use crate::{Engine, Error, ErrorKind, Result};

/// Why a mounted image was slow. Everything but `mount` is of the image since the server loaded it.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The mount.
    pub mount: MountStatus,
    /// Whether a boot pack belongs to the image.
    pub has_pack: bool,
    /// When the server loaded the image, in milliseconds since 1970.
    pub loaded_unix_millis: u64,
    /// Reads that waited for a source.
    pub stalls: u64,
    /// How long, all together.
    pub stall_millis: u64,
    /// The longest wait.
    pub slowest_stall_millis: u64,
    /// What they waited for, longest first.
    pub waits: Vec<WaitSum>,
    /// The slowest reads, slowest first.
    pub slowest: Vec<SlowRead>,
    /// What was fetched for whom.
    pub bytes: Bytes,
    /// What became of what a boot pack brought.
    pub pack: Early,
    /// What became of what was read ahead.
    pub read_ahead: Early,
    /// What happened and what was decided, oldest first.
    pub events: Vec<Noted>,
    /// Earlier events that are not kept any more.
    pub events_dropped: u64,
    /// What to do about it, the most useful first. Empty if the figures call for nothing.
    pub advice: Vec<Advice>,
}

/// A read that waited.
#[derive(Debug, Clone, Serialize)]
pub struct SlowRead {
    /// What the server noted.
    #[serde(flatten)]
    pub stall: Stall,
    /// A path of the file that was read.
    pub path: Option<String>,
    /// The layer that the file lies in, also where its bytes came from a boot pack.
    pub file_layer: Option<Digest>,
}

/// Bytes from a source, by whom they were fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// For requests that readers made.
    pub demand: u64,
    /// Of a boot pack.
    pub pack: u64,
    /// Ahead of sequential readers.
    pub read_ahead: u64,
    /// To have the image whole, because readers waited too long for parts of it.
    pub whole: u64,
    /// For the completion in the background.
    pub backfill: u64,
}

impl Engine {
    /// Explains what is mounted at `mountpoint`: an absolute path without symbolic links.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when nothing is mounted there, or no server answers for it.
    pub fn why(&self, mountpoint: &Path) -> Result<Explanation> {
        let account = self.client().why(mountpoint)?.ok_or_else(|| {
            let cause = format!("none runs that would know of {}", mountpoint.display());
            Error::new(ErrorKind::NotFound, "ask the server", cause)
                .hint("what was counted ends with the server; `tarpon recover` mounts again what a dead one left")
        })?;
        Ok(self.explain(account))
    }

    fn explain(&self, account: MountAccount) -> Explanation {
        let manifest = &account.mount.manifest;
        let wanted = account.journal.slowest.iter().map(|stall| stall.object).collect();
        // Without names and sizes the explanation is as true.
        let loaded = self.store_of_mount(&account.mount.mountpoint).load_image(manifest).ok().flatten();
        let layers = loaded.as_ref().map(|loaded| loaded.record.layers.clone()).unwrap_or_default();
        let hints = loaded.map(|loaded| Hints::of(loaded, &wanted));
        let slowest = account.journal.slowest.iter().map(|stall| SlowRead {
            path: hints.as_ref().and_then(|hints| hints.path(&stall.object)),
            file_layer: hints.as_ref().and_then(|hints| hints.layer(&stall.object)),
            stall: stall.clone(),
        });
        let slowest = slowest.collect();
        explanation(account, slowest, &layers)
    }
}

fn explanation(account: MountAccount, slowest: Vec<SlowRead>, layers: &[LayerRecord]) -> Explanation {
    let MountAccount { mount, has_pack, journal } = account;
    // What another version of the server does not count is nothing.
    let stats: Stats = serde_json::from_value(mount.counters.clone()).unwrap_or_default();
    let mut explained = Explanation {
        has_pack,
        loaded_unix_millis: journal.loaded_unix_millis,
        stalls: stats.stalls,
        stall_millis: stats.stall_millis,
        slowest_stall_millis: stats.slowest_stall_millis,
        waits: journal.waits,
        slowest,
        bytes: Bytes {
            demand: stats.bytes_demand,
            pack: stats.bytes_trace,
            read_ahead: stats.bytes_ahead,
            whole: stats.bytes_whole,
            backfill: stats.bytes_backfill,
        },
        pack: stats.early_trace,
        read_ahead: stats.early_ahead,
        events: journal.events,
        events_dropped: journal.events_dropped,
        advice: Vec::new(),
        mount,
    };
    explained.advice = advice::advice(&explained, layers);
    explained
}

/// Whether nothing in the layer says what is in it, and it was read whole to find out.
fn was_streamed(layer: &LayerVerification) -> bool {
    layer.format.is_plain() && layer.state == Verification::DiffId
}
