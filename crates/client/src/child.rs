//! Child processes that report in one line, and the line of a server that starts.

use std::io::{self, Read};
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// The line that the server prints when it listens on its socket.
pub const READY: &str = "ready";

/// Maximum length of the line.
const LINE_BYTES: u64 = 64 << 10;

/// Waits for the server's one line, written when it listens or cannot. Its end without a line is an error, too.
pub(crate) fn wait_until_ready(child: &mut Child, patience: Duration) -> std::result::Result<(), String> {
    let line = match child.stdout.take() {
        Some(output) => read_line(output, Instant::now() + patience).map_err(|error| {
            format!("process {} has not reported within {} s that it listens: {error}", child.id(), patience.as_secs())
        })?,
        None => String::new(),
    };
    match line.trim_end() {
        READY => Ok(()),
        "" => Err("it exited without output".into()),
        why => Err(why.into()),
    }
}

/// The first line that a child writes, without waiting for more. Empty if it wrote none.
pub fn read_line(mut output: ChildStdout, until: Instant) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let mut piece = [0; 1024];
        let length = output.read(&mut piece)?;
        line.extend_from_slice(&piece[..length]);
        if length == 0 || line.ends_with(b"\n") {
            return Ok(String::from_utf8_lossy(&line).into_owned());
        }
        if line.len() as u64 > LINE_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn outcome(script: &str, patience: Duration) -> std::result::Result<(), String> {
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let outcome = wait_until_ready(&mut child, patience);
        let _ended = child.kill();
        child.wait().unwrap();
        outcome
    }

    #[test]
    fn the_line_of_a_starting_server_is_reported_and_silence_ends_the_wait() {
        let patience = Duration::from_secs(60);
        assert_eq!(outcome("echo ready; exec sleep 60", patience), Ok(()), "it goes on with its output open");
        assert_eq!(outcome("exit 1", patience), Err("it exited without output".into()));
        assert_eq!(outcome("echo the disk is full", patience), Err("the disk is full".into()));
        let silent = outcome("exec sleep 60", Duration::ZERO).unwrap_err();
        assert!(silent.contains("has not reported within 0 s"), "{silent}");
    }
}
