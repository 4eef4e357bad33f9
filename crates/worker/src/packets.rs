//! The control socket of a worker: packets, of which each may have a descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::message::MESSAGE_BYTES;

/// How long a send waits for a worker that does not read. It reads at once, unless it was stopped.
const SEND: Duration = Duration::from_secs(2);

/// Two connected control sockets.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Two connected sockets of bytes, for a channel.
pub(crate) fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Sends one packet.
pub(crate) fn send(socket: BorrowedFd<'_>, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let until = Instant::now() + SEND;
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        if let Some(descriptors) = &descriptors {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) if Instant::now() < until => wait_for_room(socket, until)?,
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn wait_for_room(socket: BorrowedFd<'_>, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The next packet, with its descriptor; `None` when the other side has closed its end. Waits without end: a worker has nothing else to do.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut packet = vec![0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut packet)];
        match rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let descriptor = descriptors.next();
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet that is too long"));
    }
    packet.truncate(received.bytes);
    Ok(Some((packet, descriptor)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_packet_arrives_whole_with_its_descriptor_and_the_end_is_seen() {
        let (ours, theirs) = pair().unwrap();
        let (near, far) = channel().unwrap();
        send(ours.as_fd(), b"first", Some(far.as_fd())).unwrap();
        send(ours.as_fd(), b"second", None).unwrap();
        drop((ours, far));
        let (packet, descriptor) = receive(&theirs).unwrap().unwrap();
        assert_eq!(packet, b"first");
        UnixStream::from(descriptor.unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        UnixStream::from(near).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        assert!(matches!(receive(&theirs).unwrap(), Some((packet, None)) if packet == b"second"));
        assert!(receive(&theirs).unwrap().is_none());
    }

    #[test]
    fn sending_to_a_closed_end_is_an_error() {
        let (ours, theirs) = pair().unwrap();
        drop(theirs);
        assert!(send(ours.as_fd(), b"packet", None).is_err());
    }
}
