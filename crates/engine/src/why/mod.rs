//! Why a mounted image was slow: what its readers waited for, the purpose of each fetch, and what can be done about it.
//!
//! The server reports its counters ([`tarpon_client::protocol::MountAccount`]). Names of files are looked up here, in the process of the client,
//! and [`advice`] is derived from these figures alone.

mod advice;

use std::path::Path;

use serde::Serialize;
use tarpon_fetch::{Early, Noted, Stall, Stats, WaitSum};
use tarpon_oci::Digest;
use tarpon_store::{LayerRecord, Verification};

pub use self::advice::{Advice, Topic};
use crate::{Engine, Error, ErrorKind, Result};
use tarpon_client::protocol::{LayerVerification, MountAccount, MountStatus};
use tarpon_images::object_paths::Hints;

/// Why a mounted image was slow. Everything but `mount` concerns the image since the server loaded it.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The mount.
    pub mount: MountStatus,
    /// Whether the image has a boot pack.
    pub has_pack: bool,
    /// When the server loaded the image, in milliseconds since 1970.
    pub loaded_unix_millis: u64,
    /// Reads that waited for a source.
    pub stalls: u64,
    /// Total wait.
    pub stall_millis: u64,
    /// The longest wait.
    pub slowest_stall_millis: u64,
    /// What they waited for, longest first.
    pub waits: Vec<WaitSum>,
    /// The slowest reads, slowest first.
    pub slowest: Vec<SlowRead>,
    /// Bytes fetched, by purpose.
    pub bytes: Bytes,
    /// How the content of a boot pack was used.
    pub pack: Early,
    /// How the content that was read ahead was used.
    pub read_ahead: Early,
    /// Events and decisions, oldest first.
    pub events: Vec<Noted>,
    /// Earlier events that are no longer kept.
    pub events_dropped: u64,
    /// Advice, the most useful first. Empty if the figures call for none.
    pub advice: Vec<Advice>,
}

/// A read that waited.
#[derive(Debug, Clone, Serialize)]
pub struct SlowRead {
    /// The server's record of it.
    #[serde(flatten)]
    pub stall: Stall,
    /// A path of the file that was read.
    pub path: Option<String>,
    /// The layer that contains the file, even if its bytes came from a boot pack.
    pub file_layer: Option<Digest>,
}

/// Bytes from a source, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Requested by readers.
    pub demand: u64,
    /// From a boot pack.
    pub pack: u64,
    /// Read ahead for sequential readers.
    pub read_ahead: u64,
    /// To complete the image, because readers waited too long for parts of it.
    pub whole: u64,
    /// For the background completion.
    pub backfill: u64,
}

impl Engine {
    /// Explains the mount at `mountpoint`: an absolute path without symbolic links.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when nothing is mounted there, or no server is alive for it.
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
        // The explanation is equally valid without names and sizes.
        let loaded = self.images().store_of_mount(&account.mount.mountpoint).load_image(manifest).ok().flatten();
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
    // Counters that another version of the server does not have are zero.
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

/// Whether the layer has no index, and was read whole to make one.
fn was_streamed(layer: &LayerVerification) -> bool {
    layer.format.is_plain() && layer.state == Verification::DiffId
}
