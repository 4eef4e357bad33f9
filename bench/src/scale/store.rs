//! The stores of hosts.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::setting::Setting;
use crate::store::BenchStore;

/// The store of one host.
fn of(setting: &Setting<'_>) -> BenchStore {
    BenchStore::named(&setting.tarpon, "scale")
}

/// The store of one of many hosts.
pub(super) fn of_host(setting: &Setting<'_>, number: u64) -> BenchStore {
    BenchStore::named(&setting.tarpon, &format!("scale-host-{number}"))
}

/// A tarpon command on the store of one host.
pub(super) fn on_store(setting: &Setting<'_>) -> Command {
    of(setting).command()
}

/// Empties the store of one host.
pub(super) fn fresh_store(setting: &Setting<'_>) -> Result<PathBuf> {
    let store = of(setting);
    store.begin().map(|()| store.folder().to_owned())
}
