//! Installs tarpon in the guest as the documents describe it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tarpon_harness::paths;

use crate::document::block;

use super::guest::{Files, Guest};

/// Where systemd finds the program that the units name.
pub(super) const PROGRAM: &str = "usr/local/bin/tarpon";

/// The port for streams is shared with the host.
const CRI_ADDITIONS: &str = "\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  stream_server_port = \"0\"\n";

/// Copies the program, the units and the configuration into the guest before it boots; `daemon` is whether the units of `tarpon daemon`
/// are among them. If they are installed, that of the snapshotter starts them.
pub(super) fn copy(files: &Files, tarpon: &Path, daemon: bool) -> Result<()> {
    fs::copy(tarpon, files.root(PROGRAM)?).with_context(|| format!("cannot copy {}", tarpon.display()))?;
    let repository = paths::root();
    let daemon_units = ["tarpon.service", "tarpon.socket"].into_iter().filter(|_| daemon);
    for unit in daemon_units.chain(["tarpon-snapshotter.service"]) {
        fs::copy(repository.join("contrib/systemd").join(unit), files.root(&format!("etc/systemd/system/{unit}"))?)?;
    }
    let document = fs::read_to_string(repository.join("docs/containerd.md"))?;
    let block =
        block(&document, "toml", "version = 2").context("docs/containerd.md has no configuration with version = 2")?;
    let config = format!("{block}{CRI_ADDITIONS}");
    fs::write(files.root("etc/containerd/config.toml")?, config)?;
    Ok(())
}

/// Starts the units; `daemon` is whether `tarpon daemon` is among them.
pub(super) fn start(guest: &Guest, daemon: bool) -> Result<()> {
    guest.client(&["systemctl", "daemon-reload"])?;
    if daemon {
        guest.client(&["systemctl", "enable", "--now", "tarpon.socket", "tarpon.service"])?;
    }
    guest.client(&["systemctl", "enable", "--now", "tarpon-snapshotter.service"])?;
    guest.client(&["systemctl", "restart", "containerd.service"])?;
    if daemon {
        guest.run(&["tarpon", "podman", "setup"])?;
    }
    Ok(())
}
