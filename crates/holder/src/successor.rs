//! [`Successors`]: the server processes that a holder has started.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags};

/// Program of this process, even if its file was deleted.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Starts server processes and reaps them.
pub(crate) struct Successors {
    command: Vec<OsString>,
    /// Score of the servers for the kernel's choice of a victim when memory runs out: that of the process that started this
    /// one.
    score: Option<String>,
    last: Option<Successor>,
    /// Earlier ones that have not been reaped.
    ended: Vec<Child>,
}

struct Successor {
    child: Child,
    pidfd: OwnedFd,
    has_attached: bool,
}

impl Successors {
    pub(crate) fn new(command: Vec<OsString>, score: Option<String>) -> Self {
        Self { command, score, last: None, ended: Vec::with_capacity(8) }
    }

    /// Starts one.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.reap();
        let (program, arguments) = self.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let start = |program: &OsString| {
            let mut command = Command::new(program);
            command.args(arguments).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).spawn()
        };
        let child = match start(program) {
            // The program was deleted, perhaps by an update that failed half-way.
            Err(error) if error.kind() == io::ErrorKind::NotFound => start(&THIS_PROGRAM.into())?,
            other => other?,
        };
        if let Some(score) = &self.score {
            let _as_this_process = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), score);
        }
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let before = self.last.replace(Successor { child, pidfd, has_attached: false });
        self.ended.extend(before.map(|before| before.child));
        Ok(())
    }

    /// Becomes readable when the last one ends. `None`: there is none, or it is attached, and its socket is watched.
    pub(crate) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.last.as_ref().filter(|last| !last.has_attached).map(|last| last.pidfd.as_fd())
    }

    /// Notes that a process has attached.
    pub(crate) fn attached(&mut self, pid: Pid) {
        if let Some(last) = self.last.as_mut().filter(|last| Pid::from_child(&last.child) == pid) {
            last.has_attached = true;
        }
    }

    /// After [`Successors::end`]: whether the last one has failed. One that ends without an error has found another server.
    pub(crate) fn has_failed(&mut self) -> bool {
        let Some(mut last) = self.last.take() else { return false };
        match last.child.wait() {
            Ok(status) => !status.success(),
            Err(_) => true,
        }
    }

    /// Reaps those that have ended.
    pub(crate) fn reap(&mut self) {
        self.ended.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if let Some(last) = self.last.as_mut().filter(|last| last.has_attached)
            && !matches!(last.child.try_wait(), Ok(None))
        {
            self.last = None;
        }
    }
}
