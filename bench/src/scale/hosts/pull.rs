//! Hosts that pull a whole image, with tarpon or with Podman, and then wait.

use std::process::Command;

use anyhow::Result;
use tarpon_harness::paths;

use super::beside::Beside;
use crate::podman::Podman;
use crate::scale::setting::Setting;
use crate::together::WAIT;

/// `tarpon pull` on a host, counted from 0, with its store in a folder.
pub(super) fn with_tarpon(
    setting: &Setting<'_>,
    store: &std::path::Path,
    image: &str,
    host: usize,
    beside: &Beside,
) -> Result<Command> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("\"$@\" > /dev/null && {WAIT}"), "sh"]).arg(&setting.tarpon);
    command.args(["pull", "--quiet", "--tls-verify=false"]).env("TARPON_STORE", store);
    if !beside.configure(&mut command, host)? {
        command.args(["--index", "none"]);
    }
    command.arg(image);
    Ok(command)
}

/// Podman with an empty store on each of so many hosts.
pub(super) fn podmans(hosts: u64) -> Result<Vec<Podman>> {
    let podman = |host: u64| {
        let podman = Podman::new(paths::benchmarks().join(format!("scale-podman-{host}")), String::new())?;
        podman.wipe()?;
        Ok(podman)
    };
    (1..=hosts).map(podman).collect()
}

/// `podman pull`.
pub(super) fn with_podman(podman: &Podman, image: &str) -> Command {
    let mut command = podman.shell("", &format!("$P pull -q --tls-verify=false \"$IMAGE\" > /dev/null && {WAIT}"));
    command.env("IMAGE", image);
    command
}
