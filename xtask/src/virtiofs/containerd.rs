//! containerd with tarpon's snapshotter: what the shim of a runtime gets from them.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tarpon_harness::{paths, process};

use super::mount::{self, Fetched};
use crate::{cri, document};

/// How long a process may take to answer: many times what it takes on a busy host.
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The snapshot of the container.
const SNAPSHOT: &str = "machine";

/// A running containerd and snapshotter, which have pulled an image. Dropping it ends both and removes their mounts.
pub(super) struct Containerd {
    tarpon: PathBuf,
    folder: PathBuf,
    processes: Vec<Child>,
}

impl Containerd {
    /// Starts both with the configuration that the document shows, and pulls the image as the kubelet does.
    pub(super) fn start(tarpon: &Path, folder: &Path, image: &str) -> Result<Self> {
        fs::create_dir_all(folder.join("rootfs"))?;
        let mut started = Self { tarpon: tarpon.to_owned(), folder: folder.to_owned(), processes: Vec::new() };
        let mut snapshotter = started.tarpon(&["snapshotter", "--address"]);
        snapshotter.arg(folder.join("s.sock"));
        started.run(snapshotter, "s.sock")?;
        fs::write(folder.join("config.toml"), started.config()?)?;
        let mut containerd = Command::new("containerd");
        containerd.arg("--config").arg(folder.join("config.toml"));
        started.run(containerd, "c.sock")?;
        started.wait_for_cri()?;
        started.pull(image)?;
        Ok(started)
    }

    /// Mounts a snapshot of the image as the shim does for a container. Returns the directory.
    pub(super) fn mount(&self) -> Result<PathBuf> {
        let listed = self.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"])?;
        let top = topmost(&listed).context("containerd has no snapshot of the image")?;
        self.ctr(&["snapshots", "--snapshotter", "tarpon", "prepare", SNAPSHOT, top])?;
        let rootfs = self.folder.join("rootfs");
        let to = rootfs.display().to_string();
        let printed = self.ctr(&["snapshots", "--snapshotter", "tarpon", "mounts", &to, SNAPSHOT])?;
        let mut words = printed.split_whitespace();
        process::check(Command::new(words.next().context("ctr printed no mount")?).args(words))?;
        Ok(rootfs)
    }

    /// What was fetched for the image.
    pub(super) fn fetched(&self) -> Result<Fetched> {
        Fetched::of(&self.status()?)
    }

    /// `native` or `fuse`.
    pub(super) fn mode(&self) -> Result<String> {
        mount::mode(&self.status()?)
    }

    fn status(&self) -> Result<Value> {
        let text = process::output(&mut self.tarpon(&["status", "--json"]))?;
        let mounts: Vec<Value> = serde_json::from_str(&text)?;
        match &mounts[..] {
            [mount] => Ok(mount.clone()),
            _ => bail!("the snapshotter has {} mounts instead of one", mounts.len()),
        }
    }

    fn config(&self) -> Result<String> {
        let text = process::output(Command::new("containerd").arg("--version"))?;
        // `containerd github.com/containerd/containerd v1.7.24 COMMIT`, with or without the letter.
        let version = text.split_whitespace().nth(2).map(|version| version.trim_start_matches('v'));
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        let format = if major.context("containerd prints no version")? < 2 { "version = 2" } else { "version = 3" };
        let document = fs::read_to_string(paths::root().join("docs/containerd.md"))?;
        let block = document::block(&document, "toml", format);
        let block = block.with_context(|| format!("docs/containerd.md has no configuration with {format}"))?;
        let here = self.folder.display();
        let own = format!(
            "{format}\nroot = \"{here}/root\"\nstate = \"{here}/state\"\n\
             disabled_plugins = [\"io.containerd.internal.v1.opt\"]\n[grpc]\naddress = \"{here}/c.sock\"\n"
        );
        let block = block.replace(format, &own).replace("/run/tarpon/snapshotter.sock", &format!("{here}/s.sock"));
        Ok(block.replace("/var/lib/tarpon", &format!("{here}/store")))
    }

    fn tarpon(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.tarpon);
        command.arg("--quiet").arg("--store").arg(self.folder.join("store")).args(arguments);
        command
    }

    fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut ctr = Command::new("ctr");
        process::output(
            ctr.arg("--address").arg(self.folder.join("c.sock")).args(["--namespace", "k8s.io"]).args(arguments),
        )
    }

    /// Starts a process that listens at this socket.
    fn run(&mut self, mut command: Command, socket: &str) -> Result<()> {
        let log = self.folder.join(socket).with_extension("log");
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        self.processes.push(command.spawn().with_context(|| format!("cannot start {}", process::name(&command)))?);
        wait(|| UnixStream::connect(self.folder.join(socket)).is_ok(), &log)
    }

    /// The plugin for the kubelet starts after the socket answers.
    fn wait_for_cri(&self) -> Result<()> {
        let is_cri =
            |line: &str| line.contains("io.containerd.grpc.v1") && line.contains(" cri ") && line.ends_with("ok");
        let is_up = || self.ctr(&["plugins", "ls"]).is_ok_and(|list| list.lines().any(|line| is_cri(line.trim_end())));
        wait(is_up, &self.folder.join("c.log"))
    }

    fn pull(&self, image: &str) -> Result<()> {
        let request = self.folder.join("request");
        fs::write(&request, cri::pull_request(image)?)?;
        let (socket, data) = (self.folder.join("c.sock").display().to_string(), format!("@{}", request.display()));
        let answer = Command::new("curl").args(cri::curl(&socket, &data)).output()?;
        if self.ctr(&["images", "ls", "-q", &format!("name=={image}")])? != image {
            bail!("containerd did not pull {image}: {}", String::from_utf8_lossy(&answer.stdout).escape_debug());
        }
        Ok(())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let rootfs = self.folder.join("rootfs");
        // It is mounted unless an error came before.
        let _result = Command::new("umount").arg("--quiet").arg(rootfs).output();
        for mut child in self.processes.drain(..).rev() {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let _ended = pid.map(|pid| kill_process(pid, Signal::TERM));
            let _reaped = child.wait();
        }
        let _reported = process::check(&mut self.tarpon(&["umount", "--all"]));
    }
}

fn wait(is_up: impl Fn() -> bool, log: &Path) -> Result<()> {
    let end = Instant::now() + START_LIMIT;
    while !is_up() {
        if Instant::now() > end {
            bail!("no answer after {} s; see {}", START_LIMIT.as_secs(), log.display());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The snapshot in the list of `ctr` that is no other's parent.
fn topmost(list: &str) -> Option<&str> {
    let rows: Vec<Vec<&str>> = list.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let is_parent = |key: &str| rows.iter().any(|row| row.len() == 3 && row[1] == key);
    rows.iter().filter_map(|row| row.first().copied()).find(|key| !is_parent(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_snapshot_is_no_parent() {
        let list = "KEY      PARENT   KIND\nsha256:b sha256:a Committed\nsha256:c sha256:b Committed\nsha256:a          Committed\n";
        assert_eq!(topmost(list), Some("sha256:c"));
        assert_eq!(topmost("KEY PARENT KIND\n"), None);
    }
}
