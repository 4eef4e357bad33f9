//! The line protocol on a socket: one JSON object per line, limited in length and time.

use std::io::{self, BufRead, BufReader, Read as _, Take, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::ANSWER;

/// Name of the socket in the store's `run` directory.
pub(crate) const SOCKET: &str = "server.sock";

/// How long a client waits for a slot in the queue of the socket. It is full when the server accepts no clients: it is stopped, or out of
/// descriptors.
pub(crate) const QUEUE: Duration = Duration::from_secs(10);

/// How often a client that waits for a response checks if the server is still running.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Longest path of a Unix socket, without the NUL at its end.
const ADDRESS_BYTES: usize = 107;

/// Writes one message.
pub fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(&line)
}

/// Reads one message of at most `longest` bytes; `None` when the other side closed the connection.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream, longest: u64) -> io::Result<Option<T>> {
    receive_within(stream, longest, ANSWER, || Ok(()))
}

/// As [`receive`], within `patience`, as long as `goes_on` succeeds, which is called every [`POLL_INTERVAL`].
pub(crate) fn receive_within<T: DeserializeOwned>(
    stream: &UnixStream,
    longest: u64,
    patience: Duration,
    goes_on: impl FnMut() -> io::Result<()>,
) -> io::Result<Option<T>> {
    Messages::new(stream, longest)?.next_within(patience, goes_on)
}

/// Several messages on one connection.
pub(crate) struct Messages<'s> {
    reader: BufReader<Take<&'s UnixStream>>,
    longest: u64,
}

impl<'s> Messages<'s> {
    /// Messages of at most `longest` bytes each.
    pub(crate) fn new(stream: &'s UnixStream, longest: u64) -> io::Result<Self> {
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        Ok(Self { reader: BufReader::new(stream.take(longest)), longest })
    }

    /// As [`receive_within`], for the next message.
    pub(crate) fn next_within<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
        mut goes_on: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Option<T>> {
        let until = Instant::now() + patience;
        let mut line = Vec::new();
        // Bytes that arrived with the last message count too.
        let buffered = self.reader.buffer().len() as u64;
        self.reader.get_mut().set_limit(self.longest.saturating_sub(buffered));
        loop {
            // The bytes before an error are already in the line.
            match self.reader.read_until(b'\n', &mut line) {
                Ok(_) => break,
                Err(error) if is_late(&error) && Instant::now() < until => goes_on()?,
                Err(error) => return Err(error),
            }
        }
        match line.last() {
            None => Ok(None),
            Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end")),
        }
    }
}

/// Whether the other side has closed the connection: a client that has reported a failure must not get the work done later.
pub fn is_closed(stream: &UnixStream) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    rustix::event::poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Whether the error is a timeout.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Connects to the socket in `run`, within [`QUEUE`].
pub fn connect(run: &Path) -> io::Result<UnixStream> {
    connect_within(run, QUEUE)
}

pub(crate) fn connect_within(run: &Path, patience: Duration) -> io::Result<UnixStream> {
    let directory = std::fs::File::open(run)?;
    let address = SocketAddrUnix::new(address(run, &directory))?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    // The kernel does not restart this call after a signal, because it has a timeout.
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket.into())
}

/// The process at the other end.
pub fn peer(stream: &UnixStream) -> Option<Pid> {
    rustix::net::sockopt::socket_peercred(stream).ok().map(|peer| peer.pid)
}

/// Whether a read would not wait. Of a pidfd: whether the process has ended.
pub(crate) fn is_readable(descriptor: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// As [`connect`], for the listening side. Removes what a dead server left. The caller must hold the server lock.
pub fn listen(run: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::remove_file(run.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let directory = std::fs::File::open(run)?;
    std::os::unix::net::UnixListener::bind(address(run, &directory))
}

/// The path of the socket. If it is too long for an address, a path through the open directory, which requires `/proc`.
fn address(run: &Path, directory: &std::fs::File) -> PathBuf {
    use std::os::fd::AsRawFd;
    let path = run.join(SOCKET);
    if path.as_os_str().as_bytes().len() <= ADDRESS_BYTES {
        return path;
    }
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_at_paths_of_any_length() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&long).unwrap();
        for run in [folder.path(), &long] {
            let _listener = listen(run).unwrap();
            connect(run).unwrap();
        }
    }

    #[test]
    fn a_connection_is_closed_when_the_other_side_has_closed_it_even_with_a_message_in_the_queue() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&theirs, &"hello").unwrap();
        assert!(!is_closed(&ours));
        drop(theirs);
        assert!(is_closed(&ours));
    }

    #[test]
    fn messages_that_arrive_together_are_read_one_by_one_and_each_may_have_the_full_length() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let texts = ["a".repeat(90), "b".repeat(90), "c".repeat(110)];
        texts.iter().for_each(|text| send(&theirs, text).unwrap());
        let mut messages = Messages::new(&ours, 100).unwrap();
        let mut next = || messages.next_within::<String>(ANSWER, || Ok(()));
        assert_eq!((next().unwrap().as_ref(), next().unwrap().as_ref()), (Some(&texts[0]), Some(&texts[1])));
        assert!(next().is_err(), "too long");
    }

    #[test]
    fn a_message_in_pieces_is_read_and_one_that_never_ends_is_given_up() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut looks = 0;
        let read: Option<String> = receive_within(&ours, 100, ANSWER, || {
            looks += 1;
            let pieces: [&[u8]; 2] = [b"\"he", b"llo\"\n"];
            (&theirs).write_all(pieces[looks - 1])
        })
        .unwrap();
        assert_eq!((read.as_deref(), looks), (Some("hello"), 2));
        let late = receive_within::<String>(&ours, 100, Duration::ZERO, || Ok(())).unwrap_err();
        assert!(is_late(&late), "{late}");
        let given_up = receive_within::<String>(&ours, 100, ANSWER, || Err(io::Error::other("enough"))).unwrap_err();
        assert_eq!(given_up.to_string(), "enough");
    }
}
