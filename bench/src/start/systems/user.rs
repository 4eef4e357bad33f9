//! An ordinary user: `tarpon run`, and Podman without root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tarpon_harness::ordinary::{FIRST, Ordinary};
use tarpon_harness::process;
use tarpon_harness::workloads::Workload;

use super::system::{CONTAINER, System, store};
use super::tarpon::{chosen, parse_status};
use crate::machine::{self, quietly};

/// Pulls and runs `$0`. Without cgroups of the user, as on this machine, Podman sets no limits.
const PULL_AND_RUN: &str = "podman pull -q --tls-verify=false \"$0\" >/dev/null && \
    exec podman run --pull never --rm --network host --cgroups=disabled --entrypoint /bin/sh --name \"$1\" \"$0\" -c \"$2\"";

/// How the user runs an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Podman,
    Tarpon { pack: bool },
}

pub(super) struct User {
    name: &'static str,
    way: Way,
    tarpon: PathBuf,
    podman: PathBuf,
    user: Ordinary,
}

impl User {
    pub(super) fn new(name: &'static str, way: Way, tarpon: PathBuf) -> Result<Self> {
        let podman = process::find("podman").context("podman is not installed")?;
        let work = store(name);
        machine::remove(&work)?;
        fs::create_dir_all(&work)?;
        let programs = tarpon.parent().map(Path::to_owned).unwrap_or_default();
        let user = Ordinary::new(&work, &programs, &format!("anna:{FIRST}:65536\n"))?;
        Ok(Self { name, way, tarpon, podman, user })
    }

    fn run(&self, program: &Path, arguments: &[&str]) {
        let mut command = self.user.command(program);
        command.args(arguments);
        quietly(command);
    }
}

impl System for User {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<&Path> {
        vec![if self.way == Way::Podman { &self.podman } else { &self.tarpon }]
    }

    fn wipe(&self) -> Result<()> {
        self.end()?;
        // A server that serves nothing ends by itself, but not at once.
        self.run(Path::new("/bin/sh"), &["-c", "kill -KILL -1"]);
        machine::remove(&self.user.home().join(".local"))
    }

    fn command(&self, workload: &Workload, image: &str, script: &str) -> Result<Command> {
        let Way::Tarpon { pack } = self.way else {
            let mut command = self.user.command("sh");
            command.args(["-c", PULL_AND_RUN, image, CONTAINER, script]);
            return Ok(command);
        };
        let mut command = self.user.command(&self.tarpon);
        command.args(["run", "--rm", "--quiet", "--network", "host", "--tls-verify=false", "--name", CONTAINER]);
        command.args(chosen(true, pack.then_some(workload.id.as_str())));
        command.args(["--entrypoint", "/bin/sh", image, "-c", script]);
        Ok(command)
    }

    /// It is in the mount namespace of the user, where this process does not look.
    fn is_root(&self, _mountpoint: &Path) -> bool {
        false
    }

    fn check_mounts(&self) -> Result<()> {
        let Way::Tarpon { pack } = self.way else { return Ok(()) };
        let mut status = self.user.command(&self.tarpon);
        status.args(["unshare", "tarpon", "status", "--json"]).stderr(Stdio::null());
        // A workload that has ended has no mount any more.
        let Some(server) = status.output().ok().and_then(|output| parse_status(&output.stdout)) else { return Ok(()) };
        if server.streamed > 0 {
            bail!("{} layers were streamed whole: no index was used", server.streamed);
        }
        if pack && server.counters.is_none_or(|counters| counters.bytes_trace == 0) {
            bail!("no boot pack was used, although the registry has one");
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        match self.way {
            Way::Podman => {
                self.run(&self.podman, &["rm", "--force", "--time", "0", CONTAINER]);
                // Ends the process that keeps the mounts of the store.
                self.run(&self.podman, &["system", "migrate"]);
            }
            Way::Tarpon { .. } => self.run(&self.tarpon, &["rm", "--force", CONTAINER]),
        }
        Ok(())
    }
}
