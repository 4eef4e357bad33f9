//! A log of the requests over the link, with times: lines in an unlinked file, which the command reads at `$TARPON_LINK_LOG`.
//!
//! ```text
//!   MICROS CONNECTION > METHOD PATH        a request was forwarded
//!   MICROS CONNECTION < BYTES              so many bytes of a response were forwarded
//! ```
//!
//! MICROS is the time of day in microseconds. A response ends in the log when its last bytes were passed to the sending end, which
//! buffers at most [`SENDING`] of them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};

/// Bytes of a response that a connection may buffer before they are sent: more than fills any link of the benchmarks, and little
/// enough that the log is not early.
pub(super) const SENDING: usize = 512 * 1024;

/// The beginnings of logged requests.
const METHODS: [&[u8]; 6] = [b"GET /", b"HEAD /", b"POST /", b"PUT /", b"PATCH /", b"DELETE /"];

/// The log of all relays of a link.
pub(super) struct Log {
    file: File,
    connections: AtomicU64,
}

impl Log {
    pub(super) fn new() -> Result<Self> {
        let file = memfd_create("tarpon-link-log", MemfdFlags::CLOEXEC).context("cannot keep a log of the link")?;
        Ok(Self { file: file.into(), connections: AtomicU64::new(0) })
    }

    /// The path at which other processes of this user can read it, as long as this program runs.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// A number for a new connection.
    pub(super) fn connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// Logs a request if one begins in these bytes. Registry clients do not send a request before they have the answer to
    /// the previous one, so requests begin where a read does.
    pub(super) fn asked(&self, connection: u64, bytes: &[u8]) {
        if let Some(request) = request_line(bytes) {
            self.line(connection, '>', &request);
        }
    }

    pub(super) fn answered(&self, connection: u64, bytes: usize) {
        self.line(connection, '<', &bytes.to_string());
    }

    fn line(&self, connection: u64, way: char, what: &str) {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
        // One write per line, so that lines of several threads do not mix.
        let line = format!("{micros} {connection} {way} {what}\n");
        (&self.file).write_all(line.as_bytes()).ok();
    }
}

/// Method and path of a request that begins here.
fn request_line(bytes: &[u8]) -> Option<String> {
    METHODS.iter().find(|method| bytes.starts_with(method))?;
    let line = bytes.split(|byte| *byte == b'\r' || *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    Some(line.rsplit_once(" HTTP/").map_or(&*line, |(request, _)| request).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_distinguished_from_the_rest_of_a_body() {
        assert_eq!(request_line(b"GET /v2/ HTTP/1.1\r\nHost: a\r\n\r\n").as_deref(), Some("GET /v2/"));
        assert!(request_line(b"and GET / more").is_none() && request_line(b"").is_none());
    }

    #[test]
    fn others_read_what_is_logged() {
        let log = Log::new().unwrap();
        let (first, second) = (log.connection(), log.connection());
        log.asked(first, b"HEAD /v2/a/manifests/b HTTP/1.1\r\n\r\n");
        log.answered(second, 17);
        let text = std::fs::read_to_string(log.path()).unwrap();
        let lines: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert_eq!(lines, ["0 > HEAD /v2/a/manifests/b", "1 < 17"]);
    }
}
