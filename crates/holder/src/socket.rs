//! Sockets of messages: each call returns at once.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::message::{MESSAGE_BYTES, Message};

/// Longest path of a Unix socket, without the NUL at its end.
const ADDRESS_BYTES: usize = 107;

/// The result of [`receive`].
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the holder allocates nothing")]
pub(crate) enum Received {
    Message(Message, Option<OwnedFd>),
    /// There is no message at the moment.
    Blocked,
    /// The other side has closed its end, and everything it sent was received.
    Closed,
    /// A packet that is no message, or with other descriptors than the message has.
    Invalid,
}

/// The result of [`send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Whole,
    /// There is no room at the moment.
    Blocked,
    Closed,
}

/// A new socket that does not pass to other programs.
pub(crate) fn new() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Two connected sockets.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Calls `with` with the address of `path`: for a long path, one through its open directory.
pub(crate) fn with_address<T>(path: &Path, with: impl FnOnce(&SocketAddrUnix) -> io::Result<T>) -> io::Result<T> {
    use std::os::fd::AsRawFd as _;
    if path.as_os_str().as_bytes().len() <= ADDRESS_BYTES {
        return with(&SocketAddrUnix::new(path)?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::NAMETOOLONG.into()) };
    let directory = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    short.push(name);
    with(&SocketAddrUnix::new(short)?)
}

pub(crate) fn send(socket: BorrowedFd<'_>, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Sent {
    match send_packet(socket, &message.encode(), descriptor) {
        Ok(()) => Sent::Whole,
        // The last one: too many descriptors of this user are under way.
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Sent::Blocked,
        Err(_) => Sent::Closed,
    }
}

/// Sends one packet, with a descriptor if there is one.
pub(crate) fn send_packet(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

pub(crate) fn receive(socket: BorrowedFd<'_>) -> Received {
    let mut packet = [0; MESSAGE_BYTES];
    // Room for more than one descriptor, so that a second one is noticed.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags) {
            Ok(received) => break received,
            // The other side closed its end and had not read everything. Its own messages come after this error.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return Received::Blocked,
            Err(_) => return Received::Closed,
        }
    };
    let (mut first, mut further) = (None, false);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                further |= first.replace(descriptor).is_some();
            }
        }
    }
    if received.bytes == 0 {
        return Received::Closed;
    }
    let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    match Message::decode(&packet[..received.bytes.min(MESSAGE_BYTES)]) {
        Some(message) if !is_cut && !further && message.has_descriptor() == first.is_some() => {
            Received::Message(message, first)
        }
        _ => Received::Invalid,
    }
}

/// Whether the other side has closed its end.
pub(crate) fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    is_ready(socket, PollFlags::empty()).contains(PollFlags::HUP)
}

/// Whether the process of this pidfd has ended.
pub(crate) fn has_ended(process: BorrowedFd<'_>) -> bool {
    is_ready(process, PollFlags::IN).contains(PollFlags::IN)
}

/// Whether the kernel reports an error of the descriptor: it does for a FUSE connection that has ended.
pub(crate) fn has_error(descriptor: BorrowedFd<'_>) -> bool {
    is_ready(descriptor, PollFlags::empty()).contains(PollFlags::ERR)
}

fn is_ready(descriptor: BorrowedFd<'_>, flags: PollFlags) -> PollFlags {
    let mut polled = [PollFd::from_borrowed_fd(descriptor, flags)];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(_) => polled[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

/// Waits until the other side has closed its end, whether everything was received or not.
pub(crate) fn wait_for_hang_up(socket: BorrowedFd<'_>, until: Instant) -> bool {
    wait(socket, PollFlags::empty(), until)
}

/// Waits until the descriptor is ready; false if it is not at `until`.
pub(crate) fn wait(descriptor: impl AsFd, flags: PollFlags, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), flags)];
        match poll(&mut polled, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
    }
}

/// The timeout of a poll.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 })
}
