//! When a start is over.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use regex::bytes::Regex;

use super::http_probe::{HttpProbe, connect};
use crate::oci::Running;
use crate::{Error, ErrorKind, Result, ResultExt};

/// Poll interval for the end of the start.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long the last output of an ended container may take to arrive.
const LAST_WORD: Duration = Duration::from_secs(5);
/// Bytes of a line of output that are examined.
const LINE_BYTES: u64 = 64 << 10;

/// When a start is over.
#[derive(Debug, Clone)]
pub enum Until {
    /// When the container ends.
    Exit,
    /// When it accepts connections on this port of this host, whose network it shares.
    Port(u16),
    /// When it has answered this request.
    Http(HttpProbe),
    /// When a line of its output matches.
    Log(Regex),
    /// After this time.
    Elapsed(Duration),
}

impl Until {
    /// Checks made before the container runs: later, its own port would be mistaken for another process's.
    pub(super) fn check(&self) -> Result<()> {
        let port = match self {
            Self::Port(port) => *port,
            Self::Http(probe) => probe.port(),
            Self::Exit | Self::Log(_) | Self::Elapsed(_) => return Ok(()),
        };
        if answers(port) {
            let cause = format!("something listens on port {port} already");
            return Err(Error::new(ErrorKind::Other, "record", cause));
        }
        Ok(())
    }

    /// Whether the container's output has to go through this process.
    pub(super) fn reads_output(&self) -> bool {
        matches!(self, Self::Log(_))
    }
}

/// Watches for the end of a start.
pub(super) struct Watcher {
    until: Until,
    enough: Arc<AtomicBool>,
    began: Instant,
    lines: Option<Receiver<Instant>>,
    answered: Option<Receiver<Instant>>,
    /// As long as it lives, requests are sent.
    _asks: Arc<()>,
}

impl Watcher {
    /// Starts watching. `to_stderr`: all output read for it is passed on to standard error.
    pub(super) fn new(until: &Until, enough: Arc<AtomicBool>, running: &mut Running, to_stderr: bool) -> Result<Self> {
        let lines = match until {
            Until::Log(pattern) => {
                let (out, err) = running.output();
                let (send, receive) = sync_channel(1);
                if let Some(out) = out {
                    let to: Box<dyn Write + Send> =
                        if to_stderr { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };
                    follow(out, to, pattern.clone(), send.clone())?;
                }
                if let Some(err) = err {
                    follow(err, std::io::stderr(), pattern.clone(), send)?;
                }
                Some(receive)
            }
            _ => None,
        };
        let asks = Arc::default();
        let answered = match until {
            Until::Http(probe) => Some(probe.repeat(&asks)?),
            _ => None,
        };
        Ok(Self { until: until.clone(), enough, began: Instant::now(), lines, answered, _asks: asks })
    }

    /// Waits until the start is over, which is an error if it takes longer than `patience`, or until `is_stopped`.
    pub(super) fn wait(
        &self,
        running: &mut Running,
        patience: Duration,
        is_stopped: impl Fn() -> bool,
    ) -> Result<Instant> {
        let step = "record";
        loop {
            if let Some(ready) = self.is_over() {
                return Ok(ready);
            }
            if let Some(status) = running.ended()? {
                return match self.until {
                    Until::Exit => Ok(Instant::now()),
                    // Its last output may still be on its way.
                    _ => self.last_word().ok_or_else(|| Error::new(ErrorKind::Other, step, too_early(status))),
                };
            }
            if is_stopped() {
                return Ok(Instant::now());
            }
            if self.began.elapsed() > patience {
                let hint = "give it more time with --timeout";
                return Err(
                    Error::new(ErrorKind::Other, step, format!("not ready after {} s", patience.as_secs())).hint(hint)
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn is_over(&self) -> Option<Instant> {
        if self.enough.load(Ordering::Relaxed) {
            return Some(Instant::now());
        }
        match &self.until {
            Until::Exit => None,
            Until::Port(port) => answers(*port).then(Instant::now),
            Until::Http(_) => self.answered.as_ref()?.try_recv().ok(),
            Until::Log(_) => self.lines.as_ref()?.try_recv().ok(),
            Until::Elapsed(time) => (self.began.elapsed() >= *time).then(Instant::now),
        }
    }

    fn last_word(&self) -> Option<Instant> {
        self.lines.as_ref()?.recv_timeout(LAST_WORD).ok()
    }
}

/// Describes the exit. A runtime returns the exit code of its container: 128 plus the number of the signal if a signal ended it.
fn too_early(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("the container ended with exit code {code} before it was ready"),
        None => format!("the container's runtime ended before the container was ready: {status}"),
    }
}

fn answers(port: u16) -> bool {
    connect(port).is_ok()
}

/// A line without its terminator, which no pattern includes.
fn text(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Passes output on, line by line, and reports the first match. Ends with the output.
fn follow(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    pattern: Regex,
    matched: std::sync::mpsc::SyncSender<Instant>,
) -> Result<()> {
    let follow = move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line), Ok(1..)) {
            if pattern.is_match(text(&line)) {
                let _known_already = matched.try_send(Instant::now());
            }
            let _reader_ended = to.write_all(&line).and_then(|()| to.flush());
            line.clear();
        }
    };
    let spawned = std::thread::Builder::new().name("container-output".to_owned()).spawn(follow);
    spawned.map(drop).context(ErrorKind::Other, "follow the container's output")
}
