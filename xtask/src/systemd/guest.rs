//! The guest: a systemd as process 1 of new namespaces, with a cgroup tree of its own. It shares the network and the kernel of the host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const SCRIPT: &str = include_str!("boot.sh");

/// The directories of `/var/lib` that are on the host's file system.
const STATES: [&str; 4] = ["tarpon", "containers", "containerd", "readers"];
/// Every folder of a guest in the host's cgroup tree starts like this; the process id of the task follows.
const CGROUP: &str = "tarpon-guest-";
/// A boot takes two seconds; the machine may be busy.
const BOOTING: Duration = Duration::from_secs(60);
/// How long the kernel may take to remove the processes of a guest.
const ENDING: Duration = Duration::from_secs(20);
/// A command in the guest ends by itself; the longest is a stop of a unit, which systemd ends after 90 s.
const COMMAND_SECONDS: &str = "120";
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running guest. Dropping it ends all of its processes, and with them its mounts.
pub(super) struct Guest {
    unshare: Child,
    /// Process 1 of the guest, as the host sees it.
    init: u32,
    cgroup: PathBuf,
    folder: PathBuf,
}

/// The files of a guest before it boots.
pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    /// An empty folder for a guest.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let _absent = fs::remove_dir_all(folder);
        for name in
            ["upper", "work", "mnt"].into_iter().map(str::to_owned).chain(STATES.map(|name| format!("state/{name}")))
        {
            fs::create_dir_all(folder.join(name))?;
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// Where the host finds or puts this file of the guest's root.
    pub(super) fn root(&self, path: &str) -> Result<PathBuf> {
        let path = self.folder.join("upper").join(path);
        fs::create_dir_all(path.parent().context("a file has no parent")?)?;
        Ok(path)
    }

    /// Boots the guest. It is up when this returns.
    pub(super) fn boot(self, root: &Path) -> Result<Guest> {
        let cgroup = make_cgroup()?;
        let console = File::create(self.folder.join("console.log"))?;
        let mut command = Command::new("setpriv");
        // If this process is killed, so are `unshare` and, by its option, the guest.
        command.args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
        ]);
        command.args(["--propagation", "private", "sh", "-c", SCRIPT, "boot"]).args([&cgroup, root, &self.folder]);
        command.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        let unshare = command.spawn().context("cannot start setpriv")?;
        let mut guest = Guest { unshare, init: 0, cgroup, folder: self.folder };
        guest.wait_for_boot()?;
        Ok(guest)
    }
}

impl Guest {
    fn wait_for_boot(&mut self) -> Result<()> {
        let end = Instant::now() + BOOTING;
        let children = format!("/proc/{0}/task/{0}/children", self.unshare.id());
        while Instant::now() < end {
            if let Some(status) = self.unshare.try_wait()? {
                bail!("the guest ended with {status}: {}", self.console());
            }
            let child = fs::read_to_string(&children).unwrap_or_default();
            self.init = child.trim().parse().unwrap_or_default();
            // "degraded" is what a container usually is: systemd cannot load kernel modules, for example.
            let is_up = |state: &str| ["running", "degraded"].contains(&state.trim());
            if self.init != 0
                && self.is_systemd()
                && is_up(&output(&mut self.enter(&["systemctl", "is-system-running"])))
            {
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("systemd is not up after {} s: {}", BOOTING.as_secs(), self.console())
    }

    /// Whether process 1 has executed systemd, which is the last step of the script.
    fn is_systemd(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/comm", self.init)).is_ok_and(|name| name.trim() == "systemd")
    }

    fn console(&self) -> String {
        fs::read_to_string(self.folder.join("console.log")).unwrap_or_default()
    }

    /// A command in the guest's namespaces. It is in no cgroup of the guest, so it suits clients of daemons only.
    pub(super) fn enter(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args([COMMAND_SECONDS, "nsenter", "--all", "--target", &self.init.to_string()]).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a client of a daemon. Returns what it prints.
    pub(super) fn client(&self, arguments: &[&str]) -> Result<String> {
        check(&mut self.enter(arguments), arguments)
    }

    /// Runs a command in a unit of its own. Returns what it prints.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command =
            self.enter(&["systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--setenv=HOME=/root"]);
        check(command.args(arguments), arguments)
    }

    /// Runs a command that leaves processes in its unit, which stays with this name.
    pub(super) fn run_unit(&self, unit: &str, arguments: &[&str]) -> Result<()> {
        let unit = format!("--unit={unit}");
        let kept = ["--property=Type=oneshot", "--property=RemainAfterExit=yes", "--setenv=HOME=/root"];
        let mut command = self.enter(&[&["systemd-run", "--quiet", &unit][..], &kept].concat());
        check(command.args(arguments), arguments).map(drop)
    }

    /// The number of process 1, as the host sees it.
    pub(super) fn init(&self) -> u32 {
        self.init
    }

    /// Where the host sees a directory below the guest's `/var/lib`.
    pub(super) fn state(&self, name: &str) -> PathBuf {
        self.folder.join("state").join(name)
    }

    /// Writes a file of the guest's root as an update does: under another name, which is then renamed.
    pub(super) fn replace(&self, from: &Path, path: &str) -> Result<()> {
        let to = format!("/proc/{}/root/{path}", self.init);
        let new = format!("{to}.new");
        fs::copy(from, &new).with_context(|| format!("cannot copy {}", from.display()))?;
        fs::rename(&new, &to).with_context(|| format!("cannot replace {path} of the guest"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ended = self.unshare.kill();
        let _ended = self.unshare.wait();
        let end = Instant::now() + ENDING;
        while !remove_cgroups(&self.cgroup) && Instant::now() < end {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The folder of this task's guest in the host's cgroup tree.
fn make_cgroup() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let tree =
        mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields.get(2) == Some(&"cgroup2"));
    let tree = tree.and_then(|fields| fields.get(1).map(|path| PathBuf::from(*path)));
    let tree = tree.context("this machine has no cgroup v2 mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup")?;
    let stale = |name: &str| name.starts_with(CGROUP);
    // Those of running guests cannot be removed.
    for entry in fs::read_dir(&tree)?.flatten().filter(|entry| stale(&entry.file_name().to_string_lossy())) {
        remove_cgroups(&entry.path());
    }
    let cgroup = tree.join(format!("{CGROUP}{}", std::process::id()));
    fs::create_dir_all(&cgroup).with_context(|| format!("cannot create {}", cgroup.display()))?;
    Ok(cgroup)
}

/// Removes a cgroup and those below it. Returns whether it is gone.
fn remove_cgroups(cgroup: &Path) -> bool {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(&entry.path());
        }
    }
    let _populated = fs::remove_dir(cgroup);
    !cgroup.exists()
}

fn output(command: &mut Command) -> String {
    command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn check(command: &mut Command, arguments: &[&str]) -> Result<String> {
    let output = command.output().context("cannot start timeout")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        let (errors, printed) = (text(&output.stderr), text(&output.stdout));
        bail!("{} in the guest: {}: {errors} {printed}", arguments.join(" "), output.status);
    }
    Ok(text(&output.stdout))
}
