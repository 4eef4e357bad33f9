//! `/dev/fuse`: the devices of a connection, and which one a server reads from.
//!
//! The kernel (`fs/fuse/dev.c`) keeps a request that was read and not answered in the queue of the device that it was read
//! from. Duplicates of a descriptor are one device, a clone is another device of the same connection. When the last
//! duplicate of a device is closed, the kernel fails the requests in its queue (`ECONNABORTED`); when the last device is
//! closed, it ends the connection. Requests that were not read yet are in one queue of the connection.
//!
//! A holder keeps the device of a connection beyond the death of its server. Where the kernel sends the requests in its
//! queue again, the server reads from this device too. Elsewhere they could never be answered, so each server reads from a
//! clone of its own, which ends with it.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use fuser::InitFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::DupFlags;
use rustix::ioctl::{Opcode, Setter, opcode};

use crate::kernel::{StepError, io_step};

/// Device that opens FUSE connections.
const PATH: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE` in `<linux/fuse.h>`: `_IOR(229, 0, uint32_t)`, although the kernel reads the number.
const CLONE: Opcode = opcode::read::<u32>(229, 0);
/// `FUSE_DEV_IOC_BACKING_CLOSE` there: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: Opcode = opcode::write::<u32>(229, 2);

/// Opens `/dev/fuse`; the error explains what to do.
pub(crate) fn open() -> Result<File, StepError> {
    open_file().map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "load the module fuse, or pass the device into this container",
            io::ErrorKind::PermissionDenied => "everybody may open it on most systems: chmod 0666 /dev/fuse",
            _ => "",
        };
        io_step("open /dev/fuse", &error).with("try", advice)
    })
}

fn open_file() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(PATH)
}

/// Whether a kernel with these capabilities sends requests again that a dead server has read and not answered (Linux 6.9).
pub(crate) fn repeats(offered: InitFlags) -> bool {
    offered.contains(InitFlags::FUSE_HAS_RESEND)
}

/// The device that a server reads from while a holder keeps `held`, the device of an initialised connection. The kernel
/// offered these capabilities.
pub(crate) fn for_server(held: BorrowedFd<'_>, offered: InitFlags) -> io::Result<OwnedFd> {
    if repeats(offered) { held.try_clone_to_owned() } else { clone(held) }
}

/// Another device of the same connection (Linux 4.2).
pub(crate) fn clone(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // Of a descriptor that is open for the life of the borrow.
    let number = u32::try_from(device.as_raw_fd()).map_err(io::Error::other)?;
    let clone = open_file()?;
    give_number::<CLONE>(clone.as_fd(), number)?;
    Ok(clone.into())
}

/// Closes the backing file with this number of the device's connection. No open file may use it, and no other value may close it.
pub(crate) fn close_backing(device: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    give_number::<BACKING_CLOSE>(device, number)
}

/// Makes a call of [`CLONE`] and [`BACKING_CLOSE`].
#[expect(unsafe_code, reason = "the libraries have no such calls")]
fn give_number<const CALL: Opcode>(device: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    // SAFETY: in both calls the kernel reads a `u32` behind the pointer, and writes nothing there. Another file than a FUSE device is
    // an error.
    unsafe { rustix::ioctl::ioctl(device, Setter::<CALL, u32>::new(number)) }?;
    Ok(())
}

/// Whether the connection of this device has ended.
pub(crate) fn has_ended(device: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(device, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// Makes the descriptor `old` refer to what `new` refers to.
#[expect(unsafe_code, reason = "the descriptor belongs to the session, which lends it for reading only")]
pub(crate) fn replace(old: BorrowedFd<'_>, new: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `old` is open for the life of the borrow. The value is never dropped, so the number stays the session's own.
    let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(old.as_raw_fd()) });
    rustix::io::dup3(new, &mut old, DupFlags::CLOEXEC)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn a_replaced_descriptor_refers_to_the_other_file_under_its_number() {
        let (mut first, mut second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        let number = first.as_raw_fd();
        replace(first.as_fd(), second.as_fd()).unwrap();
        assert_eq!(first.as_raw_fd(), number);
        let mut text = String::new();
        first.rewind().unwrap();
        first.read_to_string(&mut text).unwrap();
        assert_eq!(text, "second");
    }

    #[test]
    fn a_file_that_is_no_connection_is_not_cloned_and_has_no_backing_files() {
        let file = tempfile::tempfile().unwrap();
        assert!(close_backing(file.as_fd(), 1).is_err());
        assert!(for_server(file.as_fd(), InitFlags::empty()).is_err());
        assert!(for_server(file.as_fd(), InitFlags::FUSE_HAS_RESEND).is_ok(), "a duplicate");
    }

    #[test]
    fn the_kernel_knows_the_call_that_closes_a_backing_file() {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let Ok(device) = open_file() else { return println!("skipped: it needs /dev/fuse") };
        if crate::overlay::kernel_version(&release) < (6, 9) {
            return println!("skipped: Linux passes files of FUSE through since 6.9");
        }
        let error = close_backing(device.as_fd(), 1).expect_err("there is no connection yet");
        assert_ne!(error.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error()));
    }
}
