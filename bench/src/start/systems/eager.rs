//! `podman pull`, then `podman run`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::system::{CONTAINER, System};
use crate::machine::quietly;
use crate::podman::Podman;
use tarpon_harness::workloads::Workload;

pub(super) struct Eager {
    pub(super) podman: Podman,
}

/// Runs `$SCRIPT` in `$IMAGE`.
pub(super) const RUN: &str = "exec $P run --pull never --rm --network host --entrypoint /bin/sh $LIMITS --name $CONTAINER \"$IMAGE\" -c \"$SCRIPT\"";

/// Sets the variables of [`RUN`].
pub(super) fn with_arguments(mut command: Command, image: &str, script: &str) -> Command {
    command.env("IMAGE", image).env("SCRIPT", script).env("CONTAINER", CONTAINER);
    command
}

/// Removes a leftover container.
pub(super) fn end(podman: &Podman) {
    if podman.has_store() {
        quietly(podman.command(&format!("rm --force --time 0 {CONTAINER}")));
    }
}

impl System for Eager {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn programs(&self) -> Vec<&Path> {
        self.podman.programs()
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        self.podman.wipe()
    }

    fn command(&self, _workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let pull = "$P pull -q --tls-verify=false \"$IMAGE\" >/dev/null";
        Ok(with_arguments(self.podman.shell("", &format!("{pull} && {RUN}")), image, script))
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        self.podman.is_root(mountpoint)
    }

    fn end(&self) -> Result<()> {
        end(&self.podman);
        Ok(())
    }
}
