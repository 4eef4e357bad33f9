//! The virtual machine: qemu in software emulation.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::message::Message;

/// Longest time between two messages: many times what the slowest check takes on a busy host.
const MESSAGE_LIMIT: Duration = Duration::from_secs(300);

/// Memory of the machine: several times the archive of its first file system and the content of the images.
const MEMORY: &str = "768M";

/// The files that all runs use.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    /// Disk of the images, which is not written to.
    pub(super) images: PathBuf,
    /// For the messages and the console of all runs.
    pub(super) logs: PathBuf,
}

/// A run of the machine.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) store: &'a Path,
    pub(super) cache: &'static str,
    /// Determines what the machine does.
    pub(super) seed: u64,
    /// Whether files are read through mounts before `tarpon cache verify`.
    pub(super) reads_first: bool,
    /// Whether the machine ends after the check.
    pub(super) is_last: bool,
}

/// A running machine. Dropping it is a power cut.
#[derive(Debug)]
pub(super) struct Machine {
    qemu: Child,
    lines: Receiver<String>,
    console: PathBuf,
}

impl Machine {
    pub(super) fn start(parts: &Parts, run: &Run<'_>) -> Result<Self> {
        let console = parts.logs.join("console.log");
        let drive = |file: &Path, options: &str| format!("file={},if=virtio,{options}", file.display());
        // The check of the timer at boot fails if the host is too busy to run qemu meanwhile.
        let append = format!(
            "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check crash.seed={} crash.first={} crash.last={}",
            run.seed,
            if run.reads_first { "read" } else { "verify" },
            if run.is_last { "yes" } else { "no" },
        );
        let mut qemu = Command::new("qemu-system-x86_64");
        // One processor: two crashed a guest of qemu 7.2 without KVM.
        qemu.args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", MEMORY]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(&parts.initramfs).args(["-append", &append]);
        qemu.args(["-drive", &drive(run.store, &format!("format=qcow2,cache={},aio=threads", run.cache))]);
        qemu.args(["-drive", &drive(&parts.images, "format=raw,readonly=on")]);
        let console_file = format!("file,id=console,path={},append=on", console.display());
        qemu.args(["-chardev", &console_file, "-serial", "chardev:console", "-serial", "stdio"]);
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut qemu = qemu.spawn().context("cannot start qemu-system-x86_64")?;
        let (sender, lines) = channel();
        let output = qemu.stdout.take();
        let machine = Self { qemu, lines, console };
        let log = OpenOptions::new().create(true).append(true).open(parts.logs.join("messages.log"))?;
        let output = output.context("qemu has no output")?;
        thread::spawn(move || forward(output, log, &sender));
        Ok(machine)
    }

    /// The next message; `None`: the machine has ended.
    pub(super) fn next(&self) -> Result<Option<Message>> {
        match self.lines.recv_timeout(MESSAGE_LIMIT) {
            Ok(line) => message(&line).map(Some),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the machine printed nothing for {} s{}", MESSAGE_LIMIT.as_secs(), self.end_of_console())
            }
        }
    }

    /// As [`Machine::next`], for a machine that must not end.
    pub(super) fn expect(&self) -> Result<Message> {
        self.next()?.ok_or_else(|| anyhow!("the machine ended{}", self.end_of_console()))
    }

    /// Cuts the power. Returns the messages that it printed before.
    pub(super) fn cut(mut self) -> Result<Vec<Message>> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        self.lines.iter().map(|line| message(&line)).collect()
    }

    fn end_of_console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().collect();
        format!("; the end of {}:\n{}", self.console.display(), lines[lines.len().saturating_sub(15)..].join("\n"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ended = self.qemu.kill();
        let _ended = self.qemu.wait();
    }
}

fn message(line: &str) -> Result<Message> {
    match Message::parse(line)? {
        Message::Failed(what) => bail!("the machine failed: {what}"),
        message => Ok(message),
    }
}

/// Passes complete lines on; a cut may break the last one.
fn forward(output: ChildStdout, mut log: File, lines: &Sender<String>) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = Vec::new();
        if output.read_until(b'\n', &mut line).is_err() || !line.ends_with(b"\n") {
            return;
        }
        let _full_disk = log.write_all(&line);
        if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}
