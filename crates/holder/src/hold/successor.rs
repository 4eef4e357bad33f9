//! [`Successor`]: a server that the holder started.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags};

use super::process::{self, Process};

pub(super) struct Successor {
    child: Child,
    process: Option<OwnedFd>,
    /// Whether it has connected.
    pub(super) has_attached: bool,
}

impl Successor {
    /// Starts the program on disk, which an update may have replaced. `is_broken`: it is to be skipped after a failure, so the holder's own program
    /// is started, which worked once. So is it if that on disk was deleted or is not executable.
    pub(super) fn start(command: &[OsString], holder: &Process, is_broken: bool) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command of a successor"));
        };
        let child = match holder.program.map(OsStr::new) {
            Some(own) if is_broken => spawn(own, arguments)?,
            Some(own) => spawn(program, arguments).or_else(|_| spawn(own, arguments))?,
            None => spawn(program, arguments)?,
        };
        process::set_oom_score(child.id(), holder.oom_score.as_deref());
        let process = pid(&child).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self { child, process, has_attached: false })
    }

    pub(super) fn is(&self, other: Pid) -> bool {
        pid(&self.child) == Some(other)
    }

    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }

    /// Its status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn spawn(program: &OsStr, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}
