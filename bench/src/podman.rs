//! Podman with a store of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::process;

use super::machine;

/// If the cgroup hierarchy is mixed (v1 and v2), which crun does not support, containers get a pure v2 mount.
const ALONE: &str = "if [ -e /sys/fs/cgroup/cgroup.controllers ]; then LIMITS=; else \
                       umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; \
                       LIMITS='--cgroups=disabled --ulimit nproc=1000:1000 --ulimit nofile=1000:1000'; fi; \
                     P=\"$PODMAN --root $STORE/root --runroot $RUN --storage-driver overlay --cgroup-manager cgroupfs $OPTIONS\"; ";

/// Length of a layer's name.
const LAYER: usize = 64;

/// Programs that run around Podman: the shell, and the process beside each container.
const HELPERS: [&str; 5] = ["sh", "unshare", "mount", "umount", "conmon"];

/// A program and its store.
pub(super) struct Podman {
    program: PathBuf,
    helpers: Vec<PathBuf>,
    store: PathBuf,
    /// State of running containers. Its path is short: Podman allows at most 50 bytes.
    run: PathBuf,
    /// Global options.
    options: String,
}

impl Podman {
    pub(super) fn new(store: PathBuf, options: String) -> Result<Self> {
        let program = process::find("podman").context("podman is not installed")?;
        let run = Path::new("/run/tarpon-bench").join(store.file_name().unwrap_or_default());
        let helpers = HELPERS.into_iter().filter_map(process::find).collect();
        Ok(Self { program, helpers, store, run, options })
    }

    /// All programs that Podman needs to run.
    pub(super) fn programs(&self) -> Vec<&Path> {
        [&self.program].into_iter().chain(&self.helpers).map(PathBuf::as_path).collect()
    }

    /// Whether the store exists.
    pub(super) fn has_store(&self) -> bool {
        self.store.exists()
    }

    /// Removes the store with all images. Podman does it, because the files belong to layers that it mounts.
    pub(super) fn wipe(&self) -> Result<()> {
        if self.has_store() {
            machine::quietly(self.command("rmi --all --force"));
        }
        machine::remove(&self.run)?;
        machine::remove(&self.store)
    }

    /// Runs a shell line in which `$P` is Podman with all its options, and `$LIMITS` the options that `run` needs here. Mounts made outside
    /// are visible, but its own stay private. `before` runs outside.
    pub(super) fn shell(&self, before: &str, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c");
        command.arg(format!("{before} exec unshare --mount --propagation slave sh -c \"$INSIDE\""));
        command.env("INSIDE", format!("{ALONE}{line}"));
        command
            .env("PODMAN", &self.program)
            .env("STORE", &self.store)
            .env("RUN", &self.run)
            .env("OPTIONS", &self.options);
        command
    }

    /// One command of Podman.
    pub(super) fn command(&self, what: &str) -> Command {
        self.shell("", &format!("exec $P {what}"))
    }

    /// Whether a container's root file system is mounted there. Podman's test mounts of overlayfs have other names.
    pub(super) fn is_root(&self, mountpoint: &Path) -> bool {
        let rest = mountpoint.strip_prefix(self.store.join("root/overlay")).ok();
        let layer = rest.filter(|rest| rest.ends_with("merged")).and_then(Path::parent);
        layer.is_some_and(|layer| layer.as_os_str().len() == LAYER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_distinguished_from_podmans_test_mounts() {
        let podman = Podman {
            program: "p".into(),
            helpers: Vec::new(),
            store: "/s".into(),
            run: "/r".into(),
            options: String::new(),
        };
        let at = |name: &str| podman.is_root(&Path::new("/s/root/overlay").join(name));
        assert!(at(&format!("{}/merged", "ab".repeat(32))));
        assert!(!at("metacopy-check123/merged") && !at(&"ab".repeat(32)));
    }
}
