//! Which requests crossed the link, and when: lines in a file without a name, which the command reads at `$TARPON_LINK_LOG`.
//!
//! ```text
//!   MICROS CONNECTION > METHOD PATH        a request was passed on
//!   MICROS CONNECTION < BYTES              so many bytes of an answer were passed on
//! ```
//!
//! MICROS is the time of day in microseconds. The end of an answer is when its last bytes were given to the sending end, which keeps
//! at most [`SENDING`] of them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};

/// What a connection may hold of an answer that is not on its way yet: more than fills any link that a benchmark uses, and little
/// enough that the log is not early.
pub(super) const SENDING: usize = 512 * 1024;

/// What begins a request that is counted.
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

    /// Where other processes of this user read it, as long as this program runs.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// A number for a new connection.
    pub(super) fn connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes what a client sent, if a request begins there. Clients of registries do not send a request before they have the answer to
    /// the last one, so requests begin where a read does.
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
        // One write for each line: those of other threads come before or after it.
        let line = format!("{micros} {connection} {way} {what}\n");
        (&self.file).write_all(line.as_bytes()).ok();
    }
}

/// Method and path of the request that begins here, if one does.
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
    fn a_request_is_told_from_the_rest_of_a_body() {
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
