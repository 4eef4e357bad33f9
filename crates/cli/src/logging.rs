//! The program's log: to standard error, which for the background server is `STORE/run/server.log`, or to the journal
//! under systemd. `$RUST_LOG` sets its level.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tarpon_engine::server_log::{self, SERVER_LOG_BYTES};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// The log file behind standard error, if its size is limited.
static SERVER_LOG: Mutex<Option<ServerLog>> = Mutex::new(None);

/// Starts logging; `default` is the filter if `$RUST_LOG` is not set.
pub(crate) fn start(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Log).with_ansi(false);
    // The journal adds timestamps itself. It sets this variable.
    let started = if std::env::var_os("JOURNAL_STREAM").is_some() {
        tracing::subscriber::set_global_default(log.without_time().finish())
    } else {
        tracing::subscriber::set_global_default(log.finish())
    };
    // This fails only on a second start, and then the first one stays in use.
    drop(started);
}

/// Limits the size of the log at `path` from now on, if standard error is that file.
pub(crate) fn bound(path: PathBuf) {
    let log = is_standard_error(&path).then(|| ServerLog { bytes: length(&path), path });
    *SERVER_LOG.lock().unwrap_or_else(PoisonError::into_inner) = log;
}

fn is_standard_error(path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let ours = std::fs::metadata("/proc/self/fd/2").map(identity);
    matches!((ours, std::fs::metadata(path).map(identity)), (Ok(ours), Ok(log)) if ours == log)
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |log| log.len())
}

/// A log file, and the number of bytes known to be written to it: other processes of the server write to it, too.
struct ServerLog {
    path: PathBuf,
    bytes: u64,
}

impl ServerLog {
    fn make_room(&mut self, line: usize) {
        self.bytes = self.bytes.saturating_add(line as u64);
        if self.bytes > SERVER_LOG_BYTES {
            // If the log cannot be restarted, it continues, and the next attempt comes after as many bytes.
            let _retried_later = server_log::rotate(&self.path);
            self.bytes = line as u64;
        }
    }
}

/// Standard error, written line by line.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = SERVER_LOG.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = &mut *log {
            log.make_room(bytes.len());
        }
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_stays_below_its_bound_while_the_server_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.log");
        let mut log = ServerLog { path: path.clone(), bytes: 0 };
        let mut file = std::fs::File::options().create(true).append(true).open(&path).expect("made");
        let line = vec![b'x'; 64 << 10];
        for _ in 0..SERVER_LOG_BYTES / (64 << 10) * 3 {
            log.make_room(line.len());
            file.write_all(&line).expect("written");
            assert!(length(&path) <= SERVER_LOG_BYTES);
        }
        assert_eq!(length(&path.with_extension("log.1")), SERVER_LOG_BYTES);
        assert!(!is_standard_error(&path));
    }
}
