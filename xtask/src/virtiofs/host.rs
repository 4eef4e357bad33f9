//! The same work on the host, without a virtual machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use tarpon_harness::process;
use tarpon_harness::workloads::Workload;

use super::message::{Entry, Message};
use super::scripts;

/// Starts a workload in this root, which must be writable. Returns its messages.
pub(super) fn start(root: &Path, workload: &Workload, work: &Path) -> Result<Vec<Message>> {
    let folder = work.join("start");
    fs::create_dir_all(&folder)?;
    scripts::write_start(&folder, workload)?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
    unshare.args(["sh", "-c", scripts::HOST, "start"]).arg(root).arg(&folder).arg(busybox()?);
    process::output(&mut unshare)?.lines().map(Message::parse).collect()
}

/// Reads all of this root.
pub(super) fn list(root: &Path, work: &Path) -> Result<Vec<Entry>> {
    let (folder, script) = (work.join("bin"), work.join("list.sh"));
    fs::create_dir_all(&folder)?;
    let busybox = busybox()?;
    process::check(Command::new(&busybox).args(["--install", "-s"]).arg(&folder))?;
    fs::write(&script, scripts::LIST)?;
    let mut list = Command::new(busybox);
    list.arg("sh").arg(&script).arg(root).env("PATH", &folder);
    let output = list.output().context("cannot start busybox")?;
    // The script goes on after an entry that cannot be read.
    if !output.status.success() || !output.stderr.is_empty() {
        bail!("the host cannot read all of {}: {}", root.display(), String::from_utf8_lossy(&output.stderr));
    }
    let lines = String::from_utf8(output.stdout)?;
    let entries = lines.lines().map(|line| match Message::parse(line)? {
        Message::Listed(entry) => Ok(entry),
        other => Err(anyhow!("list.sh printed {other:?}")),
    });
    entries.collect()
}

fn busybox() -> Result<PathBuf> {
    process::find("busybox").context("busybox is not installed")
}
