//! Programs of the host that are expected to end soon, run before this process may have a thread.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Bytes of its output that are read: a few lines.
const OUTPUT_BYTES: u64 = 64 << 10;

/// Runs a program to its end, for at most `limit`; then it is killed. It gets no input.
pub(super) fn output(mut command: Command, limit: Duration) -> io::Result<Output> {
    // Through files: what the program leaves in the background has its output, and is not waited for.
    let (mut stdout, mut stderr) = (in_memory()?, in_memory()?);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = command.spawn()?;
    if !is_over_within(&child, limit)? {
        child.kill()?;
        // One that waits for a disk ends when that answers. It is not waited for.
        let _status = child.try_wait();
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end within {} s", limit.as_secs())));
    }
    Ok(Output { status: child.wait()?, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
}

fn in_memory() -> io::Result<File> {
    // Hardened hosts refuse files in memory that might be executed. Linux before 6.3 does not know the flag.
    let made = match memfd_create("tarpon-program", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("tarpon-program", MemfdFlags::CLOEXEC),
        made => made,
    };
    Ok(made?.into())
}

fn text(file: &mut File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Waits until the program has ended. Returns `false` if it has not after `limit`.
fn is_over_within(child: &Child, limit: Duration) -> io::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let until = Instant::now() + limit;
    loop {
        let rest = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&rest)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_leaves_running_is_not_waited_for() {
        let script = "echo good; echo odd >&2; sleep 1000 & echo $! >&2; exit 3";
        let output = output(shell(script), Duration::from_secs(60)).expect("it ends");
        assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"good\n"[..]));
        let said = String::from_utf8(output.stderr).expect("text");
        let left = said.lines().nth(1).and_then(|id| id.parse().ok()).and_then(Pid::from_raw).expect("an ID");
        rustix::process::kill_process(left, rustix::process::Signal::KILL).expect("it runs");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_at_its_limit() {
        let error = output(shell("exec sleep 1000"), Duration::from_secs(1)).expect_err("it does not end");
        assert_eq!(error.to_string(), "it did not end within 1 s");
    }
}
