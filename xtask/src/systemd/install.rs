//! Installs tarpon in the guest as the documents describe it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tarpon_harness::paths;

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

/// The block of a Markdown document in this language that has this text.
fn block<'a>(document: &'a str, language: &str, with: &str) -> Option<&'a str> {
    let start = format!("```{language}\n");
    let blocks = document.split(&start).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.contains(with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_by_its_language_and_a_part_of_it() {
        let document = "text\n```toml\nversion = 3\n```\nmore\n```toml\nversion = 2\n```\n```ini\nversion = 2\n```\n";
        assert_eq!(block(document, "toml", "version = 2"), Some("version = 2\n"));
        assert_eq!(block(document, "toml", "version = 4"), None);
    }
}
