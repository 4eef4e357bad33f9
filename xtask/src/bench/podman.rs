//! Podman, with a store of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// Where cgroups are in two versions, as crun does not want them, the containers see them otherwise.
const ALONE: &str = "if [ -e /sys/fs/cgroup/cgroup.controllers ]; then LIMITS=; else \
                       umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; \
                       LIMITS='--cgroups=disabled --ulimit nproc=1000:1000 --ulimit nofile=1000:1000'; fi; \
                     P=\"$PODMAN --root $STORE/root --runroot $STORE/run --storage-driver overlay --cgroup-manager cgroupfs $OPTIONS\"; ";

/// A program and its store.
pub(super) struct Podman {
    program: PathBuf,
    store: PathBuf,
    /// Global options.
    options: String,
}

impl Podman {
    pub(super) fn new(store: PathBuf, options: String) -> Result<Self> {
        Ok(Self { program: process::find("podman").context("podman is not installed")?, store, options })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn store(&self) -> &Path {
        &self.store
    }

    /// Runs a line of shell in which `$P` is Podman with all its options, and `$LIMITS` what `run` needs here. It sees mounts that are
    /// made outside, and keeps its own to itself. `before` is run outside.
    pub(super) fn shell(&self, before: &str, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c");
        command.arg(format!("{before} exec unshare --mount --propagation slave sh -c \"$INSIDE\""));
        command.env("INSIDE", format!("{ALONE}{line}"));
        command.env("PODMAN", &self.program).env("STORE", &self.store).env("OPTIONS", &self.options);
        command
    }

    /// One command of Podman.
    pub(super) fn command(&self, what: &str) -> Command {
        self.shell("", &format!("exec $P {what}"))
    }

    /// Whether a container's root file system is mounted there.
    pub(super) fn is_root(&self, mountpoint: &Path) -> bool {
        mountpoint.starts_with(self.store.join("root/overlay")) && mountpoint.ends_with("merged")
    }
}
