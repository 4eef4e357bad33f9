//! Podman with stargz-store as its additional layer store: `podman pull` of an eStargz image brings tables of contents alone.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::eager::{self, RUN, told};
use super::{Server, System, Workload, quietly, remove, store};
use crate::bench::machine::ENDING;
use crate::bench::podman::Podman;
use crate::process;

pub(super) const PROGRAM: &str = "stargz-store";

/// stargz-store runs before the clock does, as it would on a host.
pub(super) struct Stargz {
    name: &'static str,
    program: PathBuf,
    store: PathBuf,
    podman: Podman,
    running: RefCell<Option<Child>>,
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
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounts.contains(&format!(" {} ", self.mount().display()))
    }
}

impl System for Stargz {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        self.podman.programs()
    }

    fn format(&self) -> Option<&'static str> {
        Some("estargz")
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        self.podman.wipe()?;
        remove(&self.store)
    }

    fn prepare(&self, registry: &str) -> Result<()> {
        fs::create_dir_all(self.mount())?;
        let config = self.store.join("config.toml");
        let mirror = format!("[[resolver.host.\"{registry}\".mirrors]]\nhost = \"{registry}\"\ninsecure = true\n");
        fs::write(&config, mirror)?;
        let log = File::create(self.store.join("log"))?;
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&config).arg("--root").arg(self.store.join("root")).arg(self.mount());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        *self.running.borrow_mut() = Some(command.spawn().context("cannot start stargz-store")?);
        let until = Instant::now() + ENDING;
        while !self.is_mounted() {
            if Instant::now() > until {
                bail!("stargz-store mounts nothing: see {}", self.store.join("log").display());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn command(&self, _workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let pull = "$P pull -q --tls-verify=false \"$IMAGE\" >/dev/null";
        Ok(told(self.podman.shell("", &format!("{pull} && {RUN}")), image, script))
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        self.podman.is_root(mountpoint)
    }

    fn server(&self) -> Option<Server> {
        self.running.borrow().as_ref().map(|running| Server { pid: running.id(), counters: None })
    }

    fn end(&self) -> Result<()> {
        eager::end(&self.podman);
        if self.is_mounted() {
            let mut unmount = Command::new("umount");
            unmount.arg("-l").arg(self.mount());
            quietly(unmount);
        }
        if let Some(mut running) = self.running.borrow_mut().take() {
            // It may have ended with its mount.
            let _gone = running.kill();
            running.wait().context("stargz-store does not end")?;
        }
        Ok(())
    }
}

impl Drop for Stargz {
    fn drop(&mut self) {
        // The error was told by whoever ended it before.
        let _told = self.end();
    }
}
