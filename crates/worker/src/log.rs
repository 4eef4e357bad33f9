//! What a worker logs, in the log of its user: line by line, within limits.

use std::os::fd::OwnedFd;
use std::process::ChildStderr;

use tarpon_blob::LogLimit;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;

use crate::message::one_line;

/// Longest line.
const LINE_BYTES: u64 = 4 << 10;

/// The limit of lines: a worker can write any number.
static LINES: LogLimit = LogLimit::new();

/// Copies the lines until the worker ends. Runs on a thread of a runtime.
pub(crate) fn copy(log: ChildStderr) {
    match Receiver::from_owned_fd(OwnedFd::from(log)) {
        Ok(log) => drop(tokio::spawn(copy_lines(log))),
        Err(error) => tracing::debug!("the log of a worker is not read: {error}"),
    }
}

async fn copy_lines(log: Receiver) {
    let mut log = BufReader::new(log);
    loop {
        let mut line = Vec::new();
        match (&mut log).take(LINE_BYTES).read_until(b'\n', &mut line).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let line = one_line(String::from_utf8_lossy(&line).trim_end());
        if let Some(left_out) = LINES.admit() {
            tracing::warn!("a worker: {line}{left_out}");
        }
    }
}
