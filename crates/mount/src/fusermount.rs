//! The helper `fusermount3`, by which unprivileged users mount and unmount FUSE file systems.
//!
//! It opens `/dev/fuse` and mounts with its own privileges, and sends the open device back over a socket. The variable
//! `_FUSE_COMMFD` holds the number of that socket (libfuse's protocol; here it is standard input).

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::kernel::{StepError, io_step};
use crate::table::SUBTYPE;

/// Name of the helper.
pub(crate) const PROGRAM: &str = "fusermount3";

/// Whether the helper is installed.
pub(crate) fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(PROGRAM).is_file())
}

/// Mounts at `mountpoint`; returns the device to serve it through.
pub(crate) fn mount(source: &OsStr, mountpoint: &Path) -> Result<OwnedFd, StepError> {
    let failed = |error: io::Error| io_step(&format!("run {PROGRAM}"), &error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut options = OsString::from(format!("ro,nosuid,nodev,default_permissions,subtype={SUBTYPE},fsname="));
    options.push(escaped(source));
    let helper = Command::new(PROGRAM)
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let device = receive(&ours);
    let output = helper.wait_with_output().map_err(failed)?;
    match device {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Ok(_) => Err(refusal("mount", &output.stderr, Errno::PERM)),
        Err(errno) => Err(StepError::new(format!("receive the device from {PROGRAM}"), errno)),
    }
}

/// Escapes commas and backslashes, which the helper interprets in options.
fn escaped(value: &OsStr) -> OsString {
    let escape = |byte: &u8| if matches!(byte, b',' | b'\\') { vec![b'\\', *byte] } else { vec![*byte] };
    OsString::from_vec(value.as_bytes().iter().flat_map(escape).collect())
}

/// Unmounts `mountpoint`; `EBUSY` if it is in use and `lazily` is false.
pub(crate) fn unmount(mountpoint: &Path, lazily: bool) -> Result<(), StepError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output().map_err(|error| io_step(&format!("run {PROGRAM}"), &error))?;
    if output.status.success() {
        return Ok(());
    }
    let busy = String::from_utf8_lossy(&output.stderr).contains("busy");
    Err(refusal("unmount", &output.stderr, if busy { Errno::BUSY } else { Errno::PERM }))
}

fn refusal(doing: &str, stderr: &[u8], errno: Errno) -> StepError {
    let words = String::from_utf8_lossy(stderr);
    let words = words.trim().trim_start_matches(PROGRAM).trim_start_matches([':', ' ']);
    StepError::new(format!("{doing} with {PROGRAM}"), errno).with(PROGRAM, words)
}

/// Receives the one descriptor sent over the socket; `None` if the socket is closed without one.
fn receive(socket: &UnixStream) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
    })?;
    let device = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(device)
}
