//! The line protocol on a socket: one JSON object a line, bounded in length and time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::protocol::ANSWER;

/// Name of the socket in the store's `run` directory.
pub(crate) const SOCKET: &str = "server.sock";

/// Writes one message.
pub(crate) fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(&line)
}

/// Reads one message of at most `longest` bytes; `None` when the other side closed the connection.
pub(crate) fn receive<T: DeserializeOwned>(stream: &UnixStream, longest: u64) -> io::Result<Option<T>> {
    stream.set_read_timeout(Some(ANSWER))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(longest)).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a message without an end")),
    }
}

/// Connects to the socket in `run`, whatever the length of its path: a Unix address holds 107 bytes only, so the
/// directory is named through `/proc/self/fd`.
pub(crate) fn connect(run: &Path) -> io::Result<UnixStream> {
    let directory = std::fs::File::open(run)?;
    UnixStream::connect(through(&directory))
}

/// As [`connect`], for the listening side. Removes what a dead server left behind: callers hold the server lock.
pub(crate) fn listen(run: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::remove_file(run.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let directory = std::fs::File::open(run)?;
    std::os::unix::net::UnixListener::bind(through(&directory))
}

fn through(directory: &std::fs::File) -> std::path::PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()).into()
}
