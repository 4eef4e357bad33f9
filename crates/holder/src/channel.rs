//! [`Channel`]: messages with descriptors over a socket that keeps their boundaries.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::Pid;

use crate::message::{MESSAGE_BYTES, Message};

/// Clients that wait to be accepted. More than one server at a time has no business here.
const BACKLOG: i32 = 8;

/// One end of a connection between a server and its holder.
pub(crate) struct Channel(OwnedFd);

/// A message with its descriptor; `None`: the other end is closed.
pub(crate) type Received = Option<(Message, Option<OwnedFd>)>;

impl Channel {
    pub(crate) fn of(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// A channel and its other end, which is passed to a child as its standard input.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(pair.0), pair.1))
    }

    /// Connects to the listener at `path`.
    pub(crate) fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        let channel = Self(new_socket()?);
        channel.limit(patience)?;
        rustix::net::connect(&channel.0, &SocketAddrUnix::new(path)?)?;
        Ok(channel)
    }

    /// Bounds the waits of later sends and receives.
    pub(crate) fn limit(&self, patience: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.0, Timeout::Send, Some(patience))?;
        Ok(sockopt::set_socket_timeout(&self.0, Timeout::Recv, Some(patience))?)
    }

    /// Process at the other end, and its user.
    pub(crate) fn peer(&self) -> io::Result<(Pid, u32)> {
        let peer = sockopt::socket_peercred(&self.0)?;
        Ok((peer.pid, peer.uid.as_raw()))
    }

    pub(crate) fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let descriptors = [descriptor.unwrap_or_else(|| self.0.as_fd())];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if descriptor.is_some() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = message.encode();
        let data = [IoSlice::new(&bytes)];
        match rustix::io::retry_on_intr(|| rustix::net::sendmsg(&self.0, &data, &mut control, SendFlags::NOSIGNAL))? {
            MESSAGE_BYTES => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Receives one message. Waits for it, as long as [`Channel::limit`] allows.
    pub(crate) fn receive(&self) -> io::Result<Received> {
        self.receive_with(RecvFlags::empty())
    }

    /// Receives one message if there is one; else `WouldBlock`.
    pub(crate) fn receive_now(&self) -> io::Result<Received> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    fn receive_with(&self, flags: RecvFlags) -> io::Result<Received> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET) => return Ok(None),
                other => break other?.bytes,
            }
        };
        let mut descriptor = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptor = descriptors.last();
            }
        }
        match received {
            0 => Ok(None),
            MESSAGE_BYTES => Ok(Some((Message::decode(&bytes)?, descriptor))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path`, in place of an earlier listener.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let new = path.with_extension(std::process::id().to_string());
    let _left_by_another = std::fs::remove_file(&new);
    rustix::net::bind(&socket, &SocketAddrUnix::new(&new)?)?;
    // For its owner only: a process that connects gets the descriptors.
    rustix::fs::chmod(&new, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    std::fs::rename(&new, path)?;
    Ok(socket)
}

/// Accepts a connection.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Channel> {
    Ok(Channel(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?))
}
