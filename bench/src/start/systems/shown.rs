//! `tarpon podman add`, then `podman run`: Podman with an image that is not in its own store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::eager::{self, RUN, with_arguments};
use super::system::{Server, System, store};
use super::tarpon;
use crate::machine::{quietly, remove, wait_for_end};
use crate::podman::Podman;
use tarpon_harness::process;
use tarpon_harness::workloads::Workload;

pub(super) struct Shown {
    name: &'static str,
    tarpon: PathBuf,
    /// tarpon's own store.
    store: PathBuf,
    podman: Podman,
    begin: Begin,
}

/// What is there when the clock starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// Nothing; with the boot pack of the workload or without.
    Nothing { pack: bool },
    /// The image is in Podman's store of images, and a run of this system has fetched its files.
    Added(&'static str),
}

/// Adds an image without content, and shows it to Podman.
const ADD: &str =
    "\"$TARPON\" podman add --quiet --tls-verify=false --index registry --profile \"$PROFILE\" \"$IMAGE\" >/dev/null";

impl Shown {
    pub(super) fn new(name: &'static str, tarpon: PathBuf, begin: Begin) -> Result<Self> {
        let folder = if let Begin::Added(by) = begin { by } else { name };
        let store = store(folder);
        // The line of `tarpon podman setup`, as an option: this Podman has a store of its own and does not read the file.
        let images = format!("--storage-opt additionalimagestore={}", store.join("podman").display());
        let podman = Podman::new(super::store(&format!("{folder}-own")), images)?;
        Ok(Self { name, tarpon, store, podman, begin })
    }

    /// The environment of [`ADD`].
    fn adding(&self, command: &mut Command, workload: &Workload, image: &str) {
        command.env("TARPON", &self.tarpon).env("TARPON_STORE", &self.store).env("IMAGE", image);
        command.env("PROFILE", if self.needs_pack() { &workload.id } else { "none" });
    }
}

impl System for Shown {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        [self.tarpon.as_path()].into_iter().chain(self.podman.programs()).collect()
    }

    fn begins_with(&self) -> Option<&'static str> {
        if let Begin::Added(by) = self.begin { Some(by) } else { None }
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        if self.begins_with().is_some() {
            return Ok(());
        }
        self.podman.wipe()?;
        remove(&self.store)
    }

    fn prepare(&self, workload: &Workload, _registry: &str, image: &str) -> Result<()> {
        if self.begins_with().is_none() {
            return Ok(());
        }
        let mut add = Command::new("sh");
        add.args(["-c", ADD]).stdin(Stdio::null());
        self.adding(&mut add, workload, image);
        process::check(&mut add)
    }

    fn command(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        fs::create_dir_all(&self.store)?;
        let add = if self.begins_with().is_some() { String::new() } else { format!("{ADD} &&") };
        let mut command = with_arguments(self.podman.shell(&add, RUN), image, script);
        self.adding(&mut command, workload, image);
        Ok(command)
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        self.podman.is_root(mountpoint)
    }

    fn server(&self) -> Option<Server> {
        tarpon::server(&self.tarpon, &self.store)
    }

    fn needs_index(&self) -> bool {
        true
    }

    fn needs_pack(&self) -> bool {
        self.begin == Begin::Nothing { pack: true }
    }

    fn end(&self) -> Result<()> {
        eager::end(&self.podman);
        if !self.store.exists() {
            return Ok(());
        }
        let server = self.server();
        let mut away = tarpon::on(&self.tarpon, &self.store);
        away.args(["podman", "rm", "--all", "--force"]);
        quietly(away);
        server.map_or(Ok(()), |server| wait_for_end(server.pid))
    }
}
