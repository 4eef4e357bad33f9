//! Why a mounted image was slow: what its readers waited for, the purpose of each fetch, and what can be done about it.
//!
//! The server reports its counters ([`tarpon_client::protocol::MountAccount`]). Names of files are looked up here, in the process of the client,
//! and [`advice`] is derived from these figures alone.

mod advice;
mod explanation;

use std::path::Path;

use tarpon_fetch::Stats;
use tarpon_images::Images;
use tarpon_images::object_paths::Hints;
use tarpon_store::LayerRecord;

pub use self::explanation::{Advice, Bytes, Explanation, SlowRead, Topic};
use crate::{Error, ErrorKind, Result};
use tarpon_client::Client;
use tarpon_client::protocol::MountAccount;

/// Explains the mount at `mountpoint`: an absolute path without symbolic links.
///
/// # Errors
/// [`ErrorKind::NotFound`] when nothing is mounted there, or no server is alive for it.
pub(crate) fn why(images: &Images, client: &Client, mountpoint: &Path) -> Result<Explanation> {
    let account = client.why(mountpoint)?.ok_or_else(|| {
        let cause = format!("none runs that would know of {}", mountpoint.display());
        Error::new(ErrorKind::NotFound, "ask the server", cause)
            .hint("what was counted ends with the server; `tarpon recover` mounts again what a dead one left")
    })?;
    Ok(explain(images, account))
}

fn explain(images: &Images, account: MountAccount) -> Explanation {
    let manifest = &account.mount.manifest;
    let wanted = account.journal.slowest.iter().map(|stall| stall.object).collect();
    // The explanation is equally valid without names and sizes.
    let loaded = images.store_of_mount(&account.mount.mountpoint).load_image(manifest).ok().flatten();
    let layers = loaded.as_ref().map(|loaded| loaded.record.layers.clone()).unwrap_or_default();
    let hints = loaded.map(|loaded| Hints::of(loaded, &wanted));
    let slowest = account.journal.slowest.iter().map(|stall| SlowRead {
        path: hints.as_ref().and_then(|hints| hints.path(&stall.object)),
        file_layer: hints.as_ref().and_then(|hints| hints.layer(&stall.object)),
        stall: stall.clone(),
    });
    let slowest = slowest.collect();
    summarize(account, slowest, &layers)
}

fn summarize(account: MountAccount, slowest: Vec<SlowRead>, layers: &[LayerRecord]) -> Explanation {
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
