//! The virtual machine of the cuts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use super::message::Message;
use crate::vm;

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
pub(super) struct Machine(vm::Machine);

impl Machine {
    pub(super) fn start(parts: &Parts, run: &Run<'_>) -> Result<Self> {
        let append = format!(
            "crash.seed={} crash.first={} crash.last={}",
            run.seed,
            if run.reads_first { "read" } else { "verify" },
            if run.is_last { "yes" } else { "no" },
        );
        let drives = [
            format!("file={},format=qcow2,cache={},aio=threads", run.store.display(), run.cache),
            format!("file={},format=raw,readonly=on", parts.images.display()),
        ];
        let machine = vm::Machine::start(&vm::Parts {
            kernel: &parts.kernel,
            initramfs: &parts.initramfs,
            append: &append,
            memory: MEMORY,
            drives: &drives,
            arguments: &["-no-reboot"],
            logs: &parts.logs,
        });
        machine.map(Self)
    }

    /// The next message; `None`: the machine has ended.
    pub(super) fn next(&self) -> Result<Option<Message>> {
        self.0.next(MESSAGE_LIMIT)?.map(|line| message(&line)).transpose()
    }

    /// As [`Machine::next`], for a machine that must not end.
    pub(super) fn expect(&self) -> Result<Message> {
        self.next()?.ok_or_else(|| anyhow!("the machine ended{}", self.0.end_of_console()))
    }

    /// Cuts the power. Returns the messages that it printed before.
    pub(super) fn cut(self) -> Result<Vec<Message>> {
        self.0.cut()?.iter().map(|line| message(line)).collect()
    }
}

fn message(line: &str) -> Result<Message> {
    match Message::parse(line)? {
        Message::Failed(what) => bail!("the machine failed: {what}"),
        message => Ok(message),
    }
}
