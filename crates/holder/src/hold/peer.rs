//! [`Peer`]: the attached server.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::table::Table;
use crate::message::{Message, OLDEST_VERSION, VERSION};
use crate::socket::{self, Sent};

pub(super) struct Peer {
    socket: OwnedFd,
    /// Its pidfd; `None` if the kernel has none.
    process: Option<OwnedFd>,
    pub(super) pid: Pid,
    /// The server that started this holder: no successor.
    pub(super) is_first: bool,
    pub(super) is_attached: bool,
    /// When it began to serve.
    pub(super) serving: Option<Instant>,
    /// It has announced its end: a successor is running.
    pub(super) has_successor: bool,
    /// The pidfd of that successor, if it is known.
    pub(super) successor: Option<OwnedFd>,
    /// Position in the table of the next descriptor to send to it.
    next_sent: Option<usize>,
    /// Time of its last message.
    pub(super) heard: Instant,
    pub(super) killed: Option<Instant>,
}

impl Peer {
    /// `None` if the other side is not of this user.
    pub(super) fn new(socket: OwnedFd, is_first: bool, now: Instant) -> Option<Self> {
        let credentials = rustix::net::sockopt::socket_peercred(&socket).ok()?;
        if credentials.uid != rustix::process::geteuid() && !credentials.uid.is_root() {
            return None;
        }
        let process = rustix::process::pidfd_open(credentials.pid, PidfdFlags::empty()).ok();
        Some(Self {
            socket,
            process,
            pid: credentials.pid,
            is_first,
            is_attached: false,
            serving: None,
            has_successor: false,
            successor: None,
            next_sent: None,
            heard: now,
            killed: None,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }

    /// Whether its process has ended. A program that it started may still have its end of the socket open.
    pub(super) fn has_ended(&self) -> bool {
        self.process().is_some_and(socket::has_ended)
    }

    pub(super) fn is_hung_up(&self) -> bool {
        socket::is_hung_up(self.socket()) || self.has_ended()
    }

    pub(super) fn kill(&mut self, now: Instant) {
        self.killed = Some(now);
        if let Some(process) = &self.process {
            let _has_ended = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Notes that this process is its successor.
    pub(super) fn announce(&mut self, successor: u32) {
        let pid = i32::try_from(successor).ok().and_then(Pid::from_raw);
        match pid.map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
            // It has ended already.
            Some(Err(Errno::SRCH)) => self.has_successor = false,
            opened => {
                self.has_successor = true;
                self.successor = opened.and_then(Result::ok);
            }
        }
    }

    /// Answers `Attach`. Returns false if it speaks no version of the protocol that this holder speaks.
    pub(super) fn greet(&mut self, version: u32) -> bool {
        self.is_attached = true;
        self.next_sent = Some(0);
        let pid = std::process::id();
        self.answer(Message::Hello { version: VERSION, pid }) && version >= OLDEST_VERSION
    }

    /// Sends a message. If it has no room, the server has left many unread and misses nothing by this one.
    pub(super) fn answer(&self, message: Message) -> bool {
        socket::send(self.socket(), &message, None) != Sent::Closed
    }

    pub(super) fn is_receiving(&self) -> bool {
        self.next_sent.is_some()
    }

    /// Sends what it has not received yet, as far as there is room. Returns false if it is gone.
    pub(super) fn send_on(&mut self, table: &Table) -> bool {
        while let Some(at) = self.next_sent {
            let sent = match table.get(at) {
                Some((name, descriptor)) => socket::send(self.socket(), &Message::Retained(name), Some(descriptor)),
                None => socket::send(self.socket(), &Message::End, None),
            };
            match sent {
                Sent::Whole => self.next_sent = table.get(at).map(|_| at + 1),
                Sent::Blocked => return true,
                Sent::Closed => return false,
            }
        }
        true
    }
}
