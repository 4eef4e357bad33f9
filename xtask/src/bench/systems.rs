//! What is compared: adapters of a few lines, each a way from a reference to a running container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::machine;
use super::ready::FIRST_EXEC;
use super::workloads::Workload;
use crate::process;

/// The name of the container that is being measured.
const CONTAINER: &str = "tarpon-bench";

/// How long a server may take to end after its last mount.
const ENDING: Duration = Duration::from_secs(30);

/// A way to run an image.
pub(super) struct System {
    pub(super) name: &'static str,
    how: How,
    program: PathBuf,
}

/// What is of interest of a mount.
#[derive(serde::Deserialize)]
pub(super) struct Mount {
    /// Process that serves it.
    pub(super) server: u32,
    pub(super) counters: Counters,
}

/// What the server counted for the image.
#[derive(serde::Deserialize)]
pub(super) struct Counters {
    /// Bytes that a boot pack brought.
    pub(super) bytes_trace: u64,
    /// Reads that waited for a source, and how long together.
    pub(super) stalls: u64,
    pub(super) stall_millis: u64,
}

#[derive(Clone, Copy)]
enum How {
    /// `podman pull` and `podman run`.
    Podman,
    /// `tarpon run`.
    Tarpon {
        /// With the index that lies beside the image.
        index: bool,
        /// With the boot pack of the workload.
        pack: bool,
        /// With what an earlier run of this system left in the store.
        warm_of: Option<&'static str>,
        mode: &'static str,
    },
}

const COLD: How = How::Tarpon { index: true, pack: false, warm_of: None, mode: "auto" };

/// All systems that are known, in the order in which they run.
const ALL: [(&str, How); 6] = [
    ("podman", How::Podman),
    ("tarpon-streamed", How::Tarpon { index: false, pack: false, warm_of: None, mode: "auto" }),
    ("tarpon-index", COLD),
    ("tarpon-pack", How::Tarpon { index: true, pack: true, warm_of: None, mode: "auto" }),
    ("tarpon-warm", How::Tarpon { index: true, pack: true, warm_of: Some("tarpon-pack"), mode: "auto" }),
    ("tarpon-pack-fuse", How::Tarpon { index: true, pack: true, warm_of: None, mode: "fuse" }),
];

/// The names of all systems.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The systems of these names, in the order in which they run.
pub(super) fn find(wanted: &[String], tarpon: &Path) -> Result<Vec<System>> {
    if let Some(unknown) = wanted.iter().find(|name| !names().any(|known| known == name.as_str())) {
        bail!("no system {unknown}: there are {}", names().collect::<Vec<_>>().join(", "));
    }
    let is_wanted = |name: &str| wanted.iter().any(|wanted| wanted == name);
    let chosen = ALL.iter().filter(|(name, _)| is_wanted(name));
    let warm = chosen.clone().filter_map(|(name, how)| match how {
        How::Tarpon { warm_of: Some(of), .. } if !is_wanted(of) => Some((name, of)),
        _ => None,
    });
    if let Some((name, of)) = warm.into_iter().next() {
        bail!("{name} starts with what {of} leaves: measure both");
    }
    chosen
        .map(|(name, how)| {
            let program = match how {
                How::Podman => process::find("podman").context("podman is not installed")?,
                How::Tarpon { .. } => tarpon.to_owned(),
            };
            Ok(System { name, how: *how, program })
        })
        .collect()
}

impl System {
    /// The program that is started, for warming it up.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Whether it starts with what another system left.
    pub(super) fn is_warm(&self) -> bool {
        matches!(self.how, How::Tarpon { warm_of: Some(_), .. })
    }

    /// Whether a run of it is one only if a boot pack was used.
    pub(super) fn needs_pack(&self) -> bool {
        matches!(self.how, How::Tarpon { pack: true, warm_of: None, .. })
    }

    fn store(&self) -> PathBuf {
        let name = match self.how {
            How::Tarpon { warm_of: Some(other), .. } => other,
            _ => self.name,
        };
        machine::folder().join(name)
    }

    /// Takes away everything that an earlier run left, unless it is to be used.
    pub(super) fn wipe(&self) -> Result<()> {
        self.end()?;
        let store = self.store();
        if self.is_warm() || !store.exists() {
            return Ok(());
        }
        if matches!(self.how, How::Podman) {
            // Its files belong to layers that it mounts; it knows best how to take them away.
            let _refused = self.podman("rmi --all --force").stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        fs::remove_dir_all(&store).with_context(|| format!("cannot empty {}", store.display()))
    }

    /// The command that brings the image of the workload from `registry` and runs it.
    pub(super) fn command(&self, workload: &Workload, registry: &str, tag: &str) -> Result<Command> {
        let image = format!("{registry}/{}:{tag}", workload.image);
        let script = format!("echo {FIRST_EXEC}; {}", workload.command);
        fs::create_dir_all(self.store())?;
        let How::Tarpon { index, pack, mode, .. } = self.how else {
            let run = "run --rm --network host --entrypoint /bin/sh";
            let mut command = self.podman(&format!(
                "pull -q --tls-verify=false \"$IMAGE\" >/dev/null && exec $P {run} $LIMITS --name {CONTAINER} \"$IMAGE\" -c \"$SCRIPT\""
            ));
            command.env("IMAGE", image).env("SCRIPT", script);
            return Ok(command);
        };
        let mut command = self.tarpon();
        command.args(["run", "--rm", "--quiet", "--network", "host", "--tls-verify=false", "--name", CONTAINER]);
        command.args(["--mode", mode, "--index", if index { "registry" } else { "none" }]);
        command.args(["--profile", if pack { &workload.id } else { "none" }]);
        command.args(["--entrypoint", "/bin/sh", &image, "-c", &script]);
        Ok(command)
    }

    fn tarpon(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("TARPON_STORE", self.store());
        command
    }

    /// Podman, with a store of its own. Where cgroups are in two versions, as crun does not want them, it sees them otherwise.
    fn podman(&self, what: &str) -> Command {
        let options = "--storage-driver overlay --cgroup-manager cgroupfs";
        let script = format!(
            "if [ -e /sys/fs/cgroup/cgroup.controllers ]; then LIMITS=; else
               umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup
               LIMITS='--cgroups=disabled --ulimit nproc=1000:1000 --ulimit nofile=1000:1000'; fi
             P=\"$PODMAN --root $STORE/root --runroot $STORE/run {options}\"; $P {what}"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        command.env("PODMAN", &self.program).env("STORE", self.store());
        command
    }

    /// What the server says of the container's mount, while it runs.
    pub(super) fn mount(&self) -> Option<Mount> {
        if matches!(self.how, How::Podman) {
            return None;
        }
        let output = self.tarpon().args(["status", "--json"]).stderr(Stdio::null()).output().ok()?;
        let mounts: Vec<Mount> = serde_json::from_slice(&output.stdout).ok()?;
        mounts.into_iter().next()
    }

    /// Ends what a run left behind: the container, and the server with it.
    pub(super) fn end(&self) -> Result<()> {
        if !self.store().exists() {
            return Ok(());
        }
        let quiet = |mut command: Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if matches!(self.how, How::Podman) {
            // None is there after an orderly end.
            let _none = quiet(self.podman(&format!("rm --force --time 0 {CONTAINER}")));
            return Ok(());
        }
        let server = self.mount().map(|mount| mount.server);
        let mut remove = self.tarpon();
        remove.args(["rm", "--force", CONTAINER]);
        let _none = quiet(remove);
        let until = Instant::now() + ENDING;
        while server.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
            if Instant::now() > until {
                bail!("the server of {} does not end", self.name);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
