//! Tests with real processes and sockets.

mod dead_mounts;
mod hold;
mod holder;
mod roles;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};

use crate::message::{Message, Name, VERSION};
use crate::socket::{self, Received};

/// Far beyond everything that a test waits for.
const FAR: Duration = Duration::from_secs(60);

fn far() -> Instant {
    Instant::now() + FAR
}

/// A folder for a socket, and the path of that.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("holder.sock");
    (folder, socket)
}

/// Both ends of a pipe: what is read, and what is kept.
fn pipe() -> (File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    (read.into(), write)
}

/// Waits for the next bytes; empty at the end.
fn read_some(pipe: &mut File) -> String {
    assert!(socket::wait(&*pipe, PollFlags::IN, far()), "nothing to read");
    let mut bytes = [0; 64];
    let count = pipe.read(&mut bytes).unwrap();
    String::from_utf8(bytes[..count].to_vec()).unwrap()
}

fn write_to(descriptor: &OwnedFd, text: &str) {
    File::from(descriptor.try_clone().unwrap()).write_all(text.as_bytes()).unwrap();
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A server that speaks the protocol message by message.
struct Server(OwnedFd);

impl Server {
    /// Connects to a holder that may not listen there yet.
    fn connect(path: &Path) -> Self {
        let until = far();
        loop {
            let socket = socket::new().unwrap();
            let connected = socket::with_address(path, |address| Ok(rustix::net::connect(&socket, address)?));
            match connected {
                Ok(()) => return Self(socket),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    fn send(&self, message: Message) {
        self.send_with(message, None);
    }

    /// Sends a message as soon as there is room. The holder may have closed its end.
    fn send_with(&self, message: Message, descriptor: Option<&OwnedFd>) {
        while socket::send(self.0.as_fd(), &message, descriptor.map(AsFd::as_fd)) == socket::Sent::Blocked {
            std::thread::yield_now();
        }
    }

    /// The next message; `None` at the end of the connection.
    fn receive(&self) -> Option<(Message, Option<OwnedFd>)> {
        loop {
            match socket::receive(self.0.as_fd()) {
                Received::Message(message, descriptor) => return Some((message, descriptor)),
                Received::Blocked => assert!(socket::wait(&self.0, PollFlags::IN, far()), "no answer"),
                Received::Closed => return None,
                Received::Invalid => panic!("no message"),
            }
        }
    }

    /// Attaches as the first server, which has nothing to take.
    fn attach(&self) {
        self.send(Message::Attach { version: VERSION });
        assert!(matches!(self.receive().unwrap().0, Message::Hello { version: VERSION, .. }));
        assert_eq!(self.receive().unwrap().0, Message::End);
    }

    /// Connects and sends a first message; returns the answer. Tries again while the holder takes the last server for alive: another
    /// test may have duplicated its socket for a moment, when it started a process.
    fn begin(path: &Path, message: Message) -> (Self, Option<Message>) {
        loop {
            let server = Self::connect(path);
            server.send(message);
            match server.receive() {
                Some((Message::Busy, _)) => std::thread::yield_now(),
                other => return (server, other.map(|(message, _)| message)),
            }
        }
    }

    /// Attaches as a successor; returns what the holder has, by name.
    fn succeed(path: &Path) -> (Self, Vec<(String, OwnedFd)>) {
        let (server, hello) = Self::begin(path, Message::Attach { version: VERSION });
        assert!(matches!(hello, Some(Message::Hello { version: VERSION, .. })), "{hello:?}");
        let mut held = Vec::new();
        while let (Message::Retained(name), Some(descriptor)) = server.receive().unwrap() {
            held.push((name.as_str().to_owned(), descriptor));
        }
        held.sort_by(|(a, _), (b, _)| a.cmp(b));
        (server, held)
    }

    fn keep(&self, text: &str, descriptor: &OwnedFd) {
        self.send_with(Message::Keep(name(text)), Some(descriptor));
    }

    fn confirm(&self) {
        self.send(Message::Confirm(7));
        assert_eq!(self.receive().unwrap().0, Message::Confirmed(7));
    }
}

fn names(held: &[(String, OwnedFd)]) -> Vec<&str> {
    held.iter().map(|(name, _)| name.as_str()).collect()
}

/// The holder that listens here.
fn holder_of(path: &Path) -> Pid {
    let server = Server::connect(path);
    rustix::net::sockopt::socket_peercred(&server.0).unwrap().pid
}

/// A pidfd, by which the end of the process is noticed.
fn process(pid: Pid) -> OwnedFd {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

fn wait_for_end(process: &OwnedFd) {
    assert!(socket::wait(process, PollFlags::IN, far()), "the process has not ended");
}

fn command(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
