//! The virtual machine, whose root is a directory of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use tarpon_harness::workloads::Workload;

use super::daemon::Daemon;
use super::message::Message;
use super::scripts;
use crate::initramfs::Initramfs;
use crate::kernel::Kernel;
use crate::vm::{self, Machine};

/// The modules of the machine. `overlay` makes its root writable.
pub(super) const MODULES: &[&str] = &["virtio_pci", "virtiofs", "overlay"];

/// Longest time between two messages: many times what reading the largest folder of an image takes on a busy host.
const MESSAGE_LIMIT: Duration = Duration::from_secs(900);

/// The image is not in it, except for what is cached; numpy takes a tenth.
const MEMORY: &str = "1G";

/// What a machine does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Task<'a> {
    /// Starts a workload in the image.
    Start(&'a Workload),
    /// Starts a workload in a root that appears below the shared directory later.
    StartLater(&'a Workload),
    /// Reads all of the image.
    List,
    /// Writes to the shared directory.
    Write,
}

/// The parts of all machines.
pub(super) struct Parts {
    pub(super) kernel: Kernel,
    pub(super) virtiofsd: PathBuf,
    /// As virtiofsd's option of this name takes it.
    pub(super) cache: String,
    /// For the first file systems, the sockets and the logs.
    pub(super) work: PathBuf,
}

/// A running machine with its virtiofsd. Dropping it ends both.
pub(super) struct Guest {
    machine: Machine,
    _daemon: Daemon,
}

impl Guest {
    /// Boots a machine that shares this directory.
    pub(super) fn boot(parts: &Parts, shared: &Path, task: Task<'_>) -> Result<Self> {
        let initramfs = parts.work.join("initramfs.cpio");
        pack(&initramfs, &parts.kernel, task)?;
        let daemon = Daemon::start(&parts.virtiofsd, shared, &parts.cache, &parts.work)?;
        let socket = format!("socket,id=shared,path={}", daemon.socket.display());
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
        let machine = Machine::start(&vm::Parts {
            kernel: &parts.kernel.image,
            initramfs: &initramfs,
            append: &format!("virtiofs.task={}", task.name()),
            memory: MEMORY,
            drives: &[],
            // virtiofsd reads and writes the memory of the machine.
            arguments: &[
                "-no-reboot",
                "-object",
                &memory,
                "-machine",
                "memory-backend=memory",
                "-chardev",
                &socket,
                "-device",
                "vhost-user-fs-pci,chardev=shared,tag=root",
            ],
            logs: &parts.work,
        })?;
        Ok(Self { machine, _daemon: daemon })
    }

    /// The next message; `None`: the machine has ended.
    pub(super) fn next(&self) -> Result<Option<Message>> {
        self.machine.next(MESSAGE_LIMIT)?.map(|line| Message::parse(&line)).transpose()
    }

    /// As [`Guest::next`], for a machine that must not end.
    pub(super) fn expect(&self) -> Result<Message> {
        self.next()?.ok_or_else(|| anyhow!("the machine ended{}", self.machine.end_of_console()))
    }

    /// Waits until the machine has turned itself off, so that all that it wrote has arrived.
    pub(super) fn wait_for_end(self) -> Result<()> {
        while self.next()?.is_some() {}
        Ok(())
    }
}

impl Task<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::StartLater(_) => "later",
            Self::List => "list",
            Self::Write => "write",
        }
    }
}

fn pack(archive: &Path, kernel: &Kernel, task: Task<'_>) -> Result<()> {
    let initramfs = Initramfs::new(archive, kernel)?;
    initramfs.write("init", scripts::INIT)?;
    initramfs.write("list.sh", scripts::LIST)?;
    initramfs.write("write.sh", scripts::WRITE)?;
    if let Task::Start(workload) | Task::StartLater(workload) = task {
        fs::create_dir_all(initramfs.path("start"))?;
        scripts::write_start(&initramfs.path("start"), workload)?;
    }
    initramfs.pack()
}
