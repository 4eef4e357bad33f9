//! Podman with stargz-store as its additional layer store: `podman pull` of an eStargz image fetches only tables of contents.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::process;

use super::eager::{self, RUN, with_arguments};
use super::system::{Server, System, store};
use crate::machine::remove;
use crate::podman::Podman;
use crate::service::{Service, has_mounts_below, unmount_below};
use tarpon_harness::workloads::Workload;

pub(super) const PROGRAM: &str = "stargz-store";

/// The configuration of stargz-store and its snapshotter for a registry without a certificate.
pub(super) fn plain_http(registry: &str) -> String {
    format!("[[resolver.host.\"{registry}\".mirrors]]\nhost = \"{registry}\"\ninsecure = true\n")
}

/// The required image format.
pub(super) const FORMAT: &str = "estargz";

/// stargz-store runs before the clock starts, as it would on a host.
pub(super) struct Stargz {
    name: &'static str,
    program: PathBuf,
    store: PathBuf,
    podman: Podman,
    running: RefCell<Option<Service>>,
}

impl Stargz {
    pub(super) fn new(name: &'static str) -> Result<Self> {
        let store = store(name);
        let layers = format!("--storage-opt additionallayerstore={}:ref", store.join("mount").display());
        let podman = Podman::new(super::store(&format!("{name}-own")), layers)?;
        let program = process::find(PROGRAM).context("stargz-store is not installed")?;
        Ok(Self { name, program, store, podman, running: RefCell::default() })
    }

    fn mount(&self) -> PathBuf {
        self.store.join("mount")
    }

    fn is_mounted(&self) -> bool {
        has_mounts_below(&self.mount())
    }
}

impl System for Stargz {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        [self.program.as_path()].into_iter().chain(self.podman.programs()).collect()
    }

    fn tag(&self, _asked: &str) -> String {
        FORMAT.to_owned()
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        self.podman.wipe()?;
        remove(&self.store)
    }

    fn prepare(&self, _workload: &Workload, registry: &str, _image: &str) -> Result<()> {
        fs::create_dir_all(self.mount())?;
        let config = self.store.join("config.toml");
        fs::write(&config, plain_http(registry))?;
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&config).arg("--root").arg(self.store.join("root"));
        command.arg("--addr").arg(self.store.join("socket")).arg(self.mount());
        let service = Service::start(command, &self.store.join("log"), || self.is_mounted())?;
        *self.running.borrow_mut() = Some(service);
        Ok(())
    }

    fn command(&self, _workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let pull = "$P pull -q --tls-verify=false \"$IMAGE\" >/dev/null";
        Ok(with_arguments(self.podman.shell("", &format!("{pull} && {RUN}")), image, script))
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        self.podman.is_root(mountpoint)
    }

    fn server(&self) -> Option<Server> {
        self.running.borrow().as_ref().map(|running| Server {
            pid: running.pid(),
            beside: None,
            counters: None,
            streamed: 0,
        })
    }

    fn end(&self) -> Result<()> {
        eager::end(&self.podman);
        unmount_below(&self.mount());
        self.running.borrow_mut().take().map_or(Ok(()), Service::end)
    }
}

impl Drop for Stargz {
    fn drop(&mut self) {
        // An error was reported by an earlier call.
        let _ended = self.end();
    }
}
