//! Programs of the host that are expected to end soon: the commands of an OCI runtime about its containers, and those that connect networks
//! or load a profile. Each has a time limit, because its caller may hold the lock of a container.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

/// Time limit of a program. Each takes milliseconds, unless another process holds the lock of the firewall, or a container has very many
/// processes to kill.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a killed program may take to end. One that waits for a disk does not end before that answers; then it stays a zombie until this
/// process ends.
const KILLED: Duration = Duration::from_secs(5);

/// Bytes of its output that are read: descriptions and messages of a few lines.
const OUTPUT_BYTES: u64 = 64 << 10;

/// Finds a program in these folders, or on the path.
pub(crate) fn find(name: &str, folders: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folders.iter().map(PathBuf::from).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Runs a program of the network to its end, with `input` as its standard input.
pub(crate) fn run(program: &Path, arguments: &[String], input: &[u8]) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(filled(tempfile::tempfile()?, input)?);
    // Profiles of AppArmor for such programs have /tmp, and no files in memory.
    captured(command, [tempfile::tempfile()?, tempfile::tempfile()?], TIMEOUT)
}

/// Runs a command to its end, for at most `limit`; then it is killed. The caller sets its standard input. Starts no thread, and reads at most
/// 64 KiB of each output.
///
/// # Errors
/// It cannot be started, or has not ended by then.
pub fn output(command: Command, limit: Duration) -> io::Result<Output> {
    // A container can be stopped where no temporary file can be written.
    captured(command, [in_memory()?, in_memory()?], limit)
}

/// A standard input with this content.
pub(crate) fn input(content: &[u8]) -> io::Result<Stdio> {
    filled(in_memory()?, content)
}

fn in_memory() -> io::Result<File> {
    // Hardened hosts refuse files in memory that might be executed. Linux before 6.3 does not know the flag.
    let made = match memfd_create("tarpon-program", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("tarpon-program", MemfdFlags::CLOEXEC),
        made => made,
    };
    Ok(made?.into())
}

fn filled(mut file: File, content: &[u8]) -> io::Result<Stdio> {
    file.write_all(content)?;
    file.rewind()?;
    Ok(OwnedFd::from(file).into())
}

/// Output goes through files, so that a process that the program leaves in the background is not waited for.
fn captured(mut command: Command, [mut stdout, mut stderr]: [File; 2], limit: Duration) -> io::Result<Output> {
    let mut child = command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).spawn()?;
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    if !is_over_within(process, limit)? {
        end(&mut child, process)?;
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not done after {} s", limit.as_secs_f32())));
    }
    let status = child.wait()?;
    Ok(Output { status, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
}

fn end(child: &mut Child, process: Pid) -> io::Result<()> {
    child.kill()?;
    if is_over_within(process, KILLED)? {
        child.wait()?;
    }
    Ok(())
}

fn text(file: &mut File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Waits until a process has ended. Returns `false` if it has not after `patience`.
pub(crate) fn is_over_within(process: Pid, patience: Duration) -> io::Result<bool> {
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
    fn a_program_that_does_not_end_is_killed_and_reaped_at_its_limit() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ > \"$0\"; exec sleep 1000"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        command.arg(file.path()).stdin(input(b"").unwrap());
        let began = Instant::now();
        // Long enough for the shell to write its ID on a busy machine.
        let error = output(command, Duration::from_secs(2)).unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string() == "not done after 2 s", "{error}");
        assert!(began.elapsed() < TIMEOUT);
        let process = std::fs::read_to_string(file.path()).unwrap();
        assert!(!Path::new("/proc").join(process.trim()).exists(), "not even a zombie is left");
    }

    #[test]
    fn a_command_gets_the_input_that_its_caller_chose() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "cat; echo odd >&2; exit 3"]).stdin(input(b"hello").unwrap());
        let output = output(command, TIMEOUT).unwrap();
        assert_eq!((output.status.code(), &*output.stdout, &*output.stderr), (Some(3), &b"hello"[..], &b"odd\n"[..]));
    }

    #[test]
    fn programs_are_found_in_their_folders_first() {
        assert_eq!(find("sh", &["/nonexistent", "/bin"]), Some(PathBuf::from("/bin/sh")));
        assert!(find("sh", &[]).is_some());
        assert_eq!(find("no-such-program", &["/bin"]), None);
    }
}
