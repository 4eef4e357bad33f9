//! containerd: pulls an image like the kubelet, then `ctr run`. With its own snapshotter, which unpacks layers, or with one
//! that mounts them.

use std::cell::{OnceCell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::process;

use super::system::{Server, System};
use super::{stargz, tarpon};
use crate::machine::{quietly, wait_for_end};
use crate::service::{Service, has_mounts_below};
use daemon::{Daemon, OWN, answers, found};
use tarpon_harness::workloads::Workload;

mod daemon;
mod forward;
pub(in crate::start) mod soci;

/// The snapshotter of eStargz images.
pub(super) const STARGZ: &str = "containerd-stargz-grpc";

/// The snapshotter that provides the root file systems.
pub(super) enum Snapshotter {
    /// Containerd's own, with layers that it downloads and unpacks.
    Own,
    /// `tarpon snapshotter`, optionally with the boot pack of the workload.
    Tarpon { program: PathBuf, pack: bool },
    /// containerd-stargz-grpc.
    Stargz { program: PathBuf },
    /// soci-snapshotter-grpc.
    Soci { program: PathBuf },
}

pub(super) struct Containerd {
    name: &'static str,
    daemon: Daemon,
    snapshotter: Snapshotter,
    running: RefCell<Option<Service>>,
    /// The registry on loopback, for a snapshotter that uses plain HTTP only there.
    near: OnceCell<String>,
}

/// Whether containerd can be measured here.
pub(super) fn is_installed() -> bool {
    daemon::PROGRAMS.into_iter().all(|program| process::find(program).is_some())
}

impl Snapshotter {
    pub(super) fn stargz() -> Result<Self> {
        Ok(Self::Stargz { program: found(STARGZ)? })
    }

    pub(super) fn soci() -> Result<Self> {
        Ok(Self::Soci { program: found(soci::SNAPSHOTTER)? })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Own => OWN,
            Self::Tarpon { .. } => "tarpon",
            Self::Stargz { .. } => "stargz",
            Self::Soci { .. } => "soci",
        }
    }

    fn program(&self) -> Option<&Path> {
        match self {
            Self::Own => None,
            Self::Tarpon { program, .. } | Self::Stargz { program } | Self::Soci { program } => Some(program),
        }
    }
}

impl Containerd {
    pub(super) fn new(name: &'static str, snapshotter: Snapshotter) -> Result<Self> {
        Ok(Self { name, daemon: Daemon::new(name)?, snapshotter, running: RefCell::default(), near: OnceCell::new() })
    }

    /// The folder of the snapshotter.
    fn store(&self) -> PathBuf {
        self.daemon.store.join("snapshotter")
    }

    fn log(&self) -> PathBuf {
        self.daemon.store.join("snapshotter.log")
    }

    /// The registry's address for this system.
    fn registry<'a>(&'a self, registry: &'a str) -> Result<&'a str> {
        if !matches!(self.snapshotter, Snapshotter::Soci { .. }) {
            return Ok(registry);
        }
        if let Some(near) = self.near.get() {
            return Ok(near);
        }
        let near = forward::start(registry)?;
        Ok(self.near.get_or_init(|| near))
    }

    /// The command of the snapshotter, if it is a separate process.
    fn service(&self, workload: &Workload, registry: &str) -> Result<Option<Command>> {
        Ok(match &self.snapshotter {
            Snapshotter::Own => None,
            Snapshotter::Tarpon { program, pack } => {
                let mut command = tarpon::on(program, &self.store());
                command.args(["snapshotter", "--tls-verify=false", "--address"]).arg(self.daemon.snapshotter_socket());
                command.args(tarpon::chosen(true, pack.then_some(workload.id.as_str())));
                Some(command)
            }
            Snapshotter::Stargz { program } => Some(self.configured(program, &stargz::plain_http(registry))?),
            Snapshotter::Soci { program } => {
                Some(self.configured(program, &soci::config(&self.daemon.socket(), registry))?)
            }
        })
    }

    /// The command of a snapshotter with a configuration file.
    fn configured(&self, program: &Path, config: &str) -> Result<Command> {
        let file = self.daemon.store.join("snapshotter.toml");
        fs::write(&file, config)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(file).arg("--root").arg(self.store());
        command.arg("--address").arg(self.daemon.snapshotter_socket());
        Ok(command)
    }

    /// Unmounts tarpon's mounts, which stay when its snapshotter ends.
    fn unmount(&self) -> Result<()> {
        let Snapshotter::Tarpon { program, .. } = &self.snapshotter else { return Ok(()) };
        if !self.store().exists() {
            return Ok(());
        }
        let server = tarpon::server(program, &self.store());
        let mut unmount = tarpon::on(program, &self.store());
        unmount.args(["umount", "--all"]);
        quietly(unmount);
        server.map_or(Ok(()), |server| wait_for_end(server.pid))
    }
}

impl System for Containerd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        self.daemon.programs().into_iter().chain(self.snapshotter.program()).collect()
    }

    fn tag(&self, asked: &str) -> String {
        let tag = match self.snapshotter {
            Snapshotter::Own | Snapshotter::Tarpon { .. } => asked,
            Snapshotter::Stargz { .. } => stargz::FORMAT,
            Snapshotter::Soci { .. } => soci::TAG,
        };
        tag.to_owned()
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        self.daemon.wipe()
    }

    fn prepare(&self, workload: &Workload, registry: &str, _image: &str) -> Result<()> {
        let registry = self.registry(registry)?;
        self.daemon.make_folders()?;
        fs::create_dir_all(self.store())?;
        if let Some(command) = self.service(workload, registry)? {
            let is_up = || answers(&self.daemon.snapshotter_socket());
            let service = Service::start(command, &self.log(), is_up)?;
            *self.running.borrow_mut() = Some(service);
        }
        self.daemon.start(self.snapshotter.name(), registry)
    }

    fn command(&self, _workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let (registry, name) = image.split_once('/').context("an image has a registry")?;
        let image = format!("{}/{name}", self.registry(registry)?);
        self.daemon.pull_and_run(self.snapshotter.name(), &image, script)
    }

    fn is_root(&self, mountpoint: &Path) -> bool {
        self.daemon.is_root(mountpoint)
    }

    fn server(&self) -> Option<Server> {
        match &self.snapshotter {
            Snapshotter::Own => None,
            Snapshotter::Tarpon { program, .. } => {
                let server = tarpon::server(program, &self.store())?;
                let snapshotter = self.running.borrow().as_ref().map(Service::pid);
                Some(Server { beside: snapshotter.filter(|pid| *pid != server.pid), ..server })
            }
            Snapshotter::Stargz { .. } | Snapshotter::Soci { .. } => self
                .running
                .borrow()
                .as_ref()
                .map(|running| Server { pid: running.pid(), beside: None, counters: None, streamed: 0 }),
        }
    }

    fn check_mounts(&self) -> Result<()> {
        if matches!(self.snapshotter, Snapshotter::Own) || has_mounts_below(&self.store()) {
            return Ok(());
        }
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        bail!(
            "the image was downloaded and unpacked, not mounted; its snapshotter's last warning: {}",
            last_warning(&log)
        )
    }

    fn needs_index(&self) -> bool {
        matches!(self.snapshotter, Snapshotter::Tarpon { .. })
    }

    fn needs_pack(&self) -> bool {
        matches!(self.snapshotter, Snapshotter::Tarpon { pack: true, .. })
    }

    fn end(&self) -> Result<()> {
        self.daemon.end()?;
        self.running.borrow_mut().take().map_or(Ok(()), Service::end)?;
        self.unmount()
    }
}

/// The last warning or error in a log.
fn last_warning(log: &str) -> &str {
    let is_warning = |line: &&str| ["warn", "error"].iter().any(|level| line.to_lowercase().contains(level));
    log.lines().rev().find(is_warning).unwrap_or("none")
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // An error was reported by an earlier call.
        let _ended = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_warning_is_ended_from_what_came_after_it() {
        assert_eq!(last_warning("level=warning no index\nWARN no layer\ninfo: done"), "WARN no layer");
        assert_eq!(last_warning("level=info done"), "none");
    }
}
