//! Effects of another thread's fork on this process's open files, and how a test avoids them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Copies all descriptors of this process that are open below `folder`, like a process between fork and exec.
///
/// # Errors
/// The kernel lacks pidfd_getfd(2), or there is no `/proc`.
pub fn copies_below(folder: &Path) -> io::Result<Vec<OwnedFd>> {
    let folder = folder.canonicalize()?;
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut copies = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        // Other threads open and close descriptors meanwhile.
        let is_below = std::fs::read_link(&path).is_ok_and(|target| target.starts_with(&folder));
        if let Some(number) = number.filter(|_| is_below) {
            copies.extend(pidfd_getfd(&process, number, PidfdGetfdFlags::empty()));
        }
    }
    Ok(copies)
}

/// Writes a program that can be started at once. Another process writes it: if this one had it open for writing, a fork
/// of another thread would copy that descriptor, and the kernel refuses to start a program that is open for writing
/// (`ETXTBSY`).
///
/// # Errors
/// `sh` cannot be started, or cannot write there.
pub fn write_program(path: &Path, text: &str) -> io::Result<()> {
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .arg(text)
        .status()?;
    if written.success() { Ok(()) } else { Err(io::Error::other(format!("{} was not written", path.display()))) }
}
