//! `tarpon podman add`, then `podman run`: Podman with an image that is not in its own store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::eager::{self, RUN, with_arguments};
use super::system::{Server, System, store};
use super::tarpon;
use crate::machine::{quietly, remove, wait_for_end};
use crate::podman::Podman;
use tarpon_harness::workloads::Workload;

pub(super) struct Shown {
    name: &'static str,
    tarpon: PathBuf,
    /// tarpon's own store.
    store: PathBuf,
    podman: Podman,
    /// With the boot pack of the workload.
    pack: bool,
}

impl Shown {
    pub(super) fn new(name: &'static str, tarpon: PathBuf, pack: bool) -> Result<Self> {
        let store = store(name);
        // The line of `tarpon podman setup`, as an option: this Podman has a store of its own and does not read the file.
        let images = format!("--storage-opt additionalimagestore={}", store.join("podman").display());
        let podman = Podman::new(super::store(&format!("{name}-own")), images)?;
        Ok(Self { name, tarpon, store, podman, pack })
    }
}

impl System for Shown {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        [self.tarpon.as_path()].into_iter().chain(self.podman.programs()).collect()
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        self.podman.wipe()?;
        remove(&self.store)
    }

    fn command(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        fs::create_dir_all(&self.store)?;
        let add = "\"$TARPON\" podman add --quiet --tls-verify=false --index registry --profile \"$PROFILE\" \"$IMAGE\" >/dev/null &&";
        let mut command = with_arguments(self.podman.shell(add, RUN), image, script);
        command.env("TARPON", &self.tarpon).env("TARPON_STORE", &self.store);
        command.env("PROFILE", if self.pack { &workload.id } else { "none" });
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
        self.pack
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
