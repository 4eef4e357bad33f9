//! Programs of the host that connect networks.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

/// Time limit of a program. Each takes milliseconds, unless another process holds the lock of the firewall.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of its output that are read: descriptions and messages of a few lines.
const OUTPUT_BYTES: u64 = 64 << 10;

/// What a program has written.
pub(super) struct Output {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Finds a program in these folders, or on the path.
pub(super) fn find(name: &str, folders: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folders.iter().map(PathBuf::from).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Runs a program to its end, with `input` as its standard input. Output goes through files, so that a process that the program leaves
/// in the background is not waited for.
pub(super) fn run(program: &Path, arguments: &[String], input: &[u8]) -> io::Result<Output> {
    let mut stdin = tempfile::tempfile()?;
    stdin.write_all(input)?;
    stdin.rewind()?;
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::from(OwnedFd::from(stdin)));
    command.stdout(Stdio::from(stdout.try_clone()?)).stderr(Stdio::from(stderr.try_clone()?));
    let mut child = command.spawn()?;
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    if !is_over_within(process, TIMEOUT)? {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not done after {} s", TIMEOUT.as_secs())));
    }
    let status = child.wait()?;
    Ok(Output { status, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
}

fn text(file: &mut File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Waits until a process has ended. Returns `false` if it has not after `patience`.
pub(super) fn is_over_within(process: Pid, patience: Duration) -> io::Result<bool> {
    let process = match pidfd_open(process, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(true),
        process => process?,
    };
    let began = Instant::now();
    loop {
        let rest = Timespec::try_from(patience.saturating_sub(began.elapsed())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&rest)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_its_input_and_its_output_does_not_wait_for_what_it_leaves_running() {
        let script = "cat; echo oops >&2; sleep 1000 & echo $! >&2; exit 3";
        let began = Instant::now();
        let output = run(Path::new("/bin/sh"), &["-c".to_owned(), script.to_owned()], b"hello").unwrap();
        assert!(began.elapsed() < TIMEOUT);
        assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"hello"[..]));
        let left = String::from_utf8(output.stderr).unwrap();
        let process = Pid::from_raw(left.lines().nth(1).unwrap().parse().unwrap()).unwrap();
        assert!(left.starts_with("oops\n") && !is_over_within(process, Duration::ZERO).unwrap());
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        // Its parent is gone, and it may remain unreaped here.
        is_over_within(process, TIMEOUT).unwrap();
    }

    #[test]
    fn programs_are_found_in_their_folders_first() {
        assert_eq!(find("sh", &["/nonexistent", "/bin"]), Some(PathBuf::from("/bin/sh")));
        assert!(find("sh", &[]).is_some());
        assert_eq!(find("no-such-program", &["/bin"]), None);
    }
}
