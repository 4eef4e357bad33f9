//! [`Successor`]: a server that the holder started.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags};

use super::process;

/// The program of this process, also if its file was deleted.
const THIS_PROGRAM: &str = "/proc/self/exe";

pub(super) struct Successor {
    child: Child,
    process: Option<OwnedFd>,
    /// Whether it has connected.
    pub(super) has_attached: bool,
}

impl Successor {
    /// Starts the program, or this one if it was deleted.
    pub(super) fn start(command: &[OsString], oom_score: Option<&str>) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command of a successor"));
        };
        let child = match spawn(program, arguments) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => spawn(&THIS_PROGRAM.into(), arguments)?,
            other => other?,
        };
        process::set_oom_score(child.id(), oom_score);
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

fn spawn(program: &OsString, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}
