//! `podman pull`, then `podman run`; or `podman run` alone, of what an earlier run pulled.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::system::{CONTAINER, System};
use crate::machine::quietly;
use crate::podman::Podman;
use tarpon_harness::workloads::Workload;

pub(super) struct Eager {
    pub(super) name: &'static str,
    pub(super) podman: Podman,
    /// Whether the image is there because a run of `podman` pulled it.
    pub(super) is_local: bool,
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
        self.name
    }

    fn begins_with(&self) -> Option<&'static str> {
        self.is_local.then_some("podman")
    }

    fn programs(&self) -> Vec<&Path> {
        self.podman.programs()
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        if self.is_local { Ok(()) } else { self.podman.wipe() }
    }

    fn command(&self, _workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let pull = if self.is_local { "" } else { "$P pull -q --tls-verify=false \"$IMAGE\" >/dev/null && " };
        Ok(with_arguments(self.podman.shell("", &format!("{pull}{RUN}")), image, script))
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        self.podman.is_root(mountpoint)
    }

    fn end(&self) -> Result<()> {
        end(&self.podman);
        Ok(())
    }
}
