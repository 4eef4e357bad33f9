//! The holder process.

mod connections;
mod dead_mounts;
mod endpoint;
mod failures;
mod options;
mod peer;
mod process;
mod state;
mod successor;
mod table;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

#[cfg(test)]
pub(crate) use failures::SHORT_LIVES;
pub use options::HoldOptions;
pub(crate) use options::Limits;
use process::Process;
pub(crate) use state::Ended;

/// The main function of a holder: keeps what the server at the other end of `control` sends, starts a successor when it dies, and ends
/// when it is dismissed or when no successor serves in time. It takes over the process: its session, its limits, its priority.
///
/// # Errors
/// If the socket cannot be created, or the kernel refuses to wait.
pub fn hold(control: OwnedFd, options: HoldOptions) -> io::Result<()> {
    let process = Process::prepare();
    run(control, options, Limits::default(), process).map(drop)
}

/// As [`hold`], without changes of the process.
fn run(control: OwnedFd, options: HoldOptions, limits: Limits, process: Process) -> io::Result<Ended> {
    state::Hold::new(control, options, limits, process)?.run()
}

#[cfg(test)]
pub(crate) fn hold_in_thread(control: OwnedFd, options: HoldOptions, limits: Limits) -> io::Result<Ended> {
    run(control, options, limits, Process::default())
}

/// As [`hold`], but its own program, which is that of all tests, is no successor.
#[cfg(test)]
pub(crate) fn hold_without_program(control: OwnedFd, options: HoldOptions) -> io::Result<()> {
    let process = Process { program: None, ..Process::prepare() };
    run(control, options, Limits::default(), process).map(drop)
}

/// As [`hold_in_thread`], with this program for successors that do not start otherwise.
#[cfg(test)]
pub(crate) fn hold_in_thread_with_program(control: OwnedFd, options: HoldOptions, limits: Limits) -> io::Result<Ended> {
    run(control, options, limits, Process { program: process::THIS_PROGRAM, ..Process::default() })
}

/// The control socket, which the server passes as standard input. Standard input is `/dev/null` then: an open duplicate of the socket
/// would hide from the server that the holder has closed it.
///
/// # Errors
/// If the process has no standard input.
pub fn control() -> io::Result<OwnedFd> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(control)
}
