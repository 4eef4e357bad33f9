//! A virtual machine: qemu in software emulation, which needs no KVM. It prints messages, a line each, on its second
//! serial port.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tarpon_harness::process;

/// Lines of the console that an error quotes.
const QUOTED_LINES: usize = 15;

/// The parameters of every kernel: the console, and no restart after a panic. The check of the timer at boot fails if the
/// host is too busy to run qemu meanwhile.
pub(crate) const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check";

/// The processor. Without `cmpxchg16b`, which kernels do without: under qemu 7.2, Debian's 6.12 of backports ended each boot with a double
/// fault right after this instruction, and boots without it.
const PROCESSOR: &str = "max,-cx16";

/// A running machine. Dropping it is a power cut.
#[derive(Debug)]
pub(crate) struct Machine {
    qemu: Child,
    lines: Receiver<String>,
    console: PathBuf,
}

/// The parts of a machine.
pub(crate) struct Parts<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    /// Parameters of the kernel, beside [`KERNEL_PARAMETERS`].
    pub(crate) append: &'a str,
    /// As qemu's `-m` takes it.
    pub(crate) memory: &'a str,
    /// Disks, as qemu's `-drive` takes them, beside the interface.
    pub(crate) drives: &'a [String],
    /// More arguments of qemu.
    pub(crate) arguments: &'a [&'a str],
    /// Folder of `console.log` and `messages.log`, which are appended to.
    pub(crate) logs: &'a Path,
}

impl Machine {
    pub(crate) fn start(parts: &Parts<'_>) -> Result<Self> {
        let console = parts.logs.join("console.log");
        let mut qemu = Command::new("qemu-system-x86_64");
        // One processor: two crashed a guest of qemu 7.2 without KVM.
        qemu.args(["-accel", "tcg", "-cpu", PROCESSOR, "-smp", "1", "-m", parts.memory]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        qemu.arg("-kernel").arg(parts.kernel).arg("-initrd").arg(parts.initramfs);
        qemu.args(["-append", &format!("{KERNEL_PARAMETERS} {}", parts.append)]);
        for drive in parts.drives {
            qemu.args(["-drive", &format!("if=virtio,{drive}")]);
        }
        let console_file = format!("file,id=console,path={},append=on", console.display());
        qemu.args(["-chardev", &console_file, "-serial", "chardev:console", "-serial", "stdio"]).args(parts.arguments);
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

    /// The next message; `None`: the machine has ended. An error if there is none for this long.
    pub(crate) fn next(&self, limit: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the machine printed nothing for {} s{}", limit.as_secs(), self.end_of_console())
            }
        }
    }

    /// Cuts the power. Returns the messages that it printed before.
    pub(crate) fn cut(mut self) -> Result<Vec<String>> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(self.lines.iter().collect())
    }

    /// The last lines of the console, for an error.
    pub(crate) fn end_of_console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
        format!("; the end of {}:\n{last}", self.console.display())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ended = self.qemu.kill();
        let _ended = self.qemu.wait();
    }
}

/// Writes a disk of this size with a file system that contains this folder.
pub(crate) fn make_disk(content: &Path, disk: &Path, bytes: u64) -> Result<()> {
    let _other = fs::remove_file(disk);
    let file = File::create(disk).with_context(|| format!("cannot write {}", disk.display()))?;
    file.set_len(bytes)?;
    let make = process::find("mkfs.ext4").context("mkfs.ext4 is not installed")?;
    process::check(Command::new(make).args(["-q", "-F", "-d"]).args([content, disk]))
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
