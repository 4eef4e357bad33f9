//! The file into which a runtime writes the PID of the process that it started, and the kernel's notice that it may be there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// Shortest and longest interval between two checks of the file; see [`PidFile::interval`].
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);
/// Room for the events of one wake-up: more than the files that a runtime writes until it has started its process.
const EVENT_BYTES: usize = 4096;

/// A PID file that may not exist yet.
pub(super) struct PidFile {
    path: PathBuf,
    /// Events of its folder. `None` where the user has no more inotify instances (`fs.inotify.max_user_instances`): then the file is polled.
    events: Option<Receiver>,
}

impl PidFile {
    pub(super) fn at(path: &Path) -> Self {
        let events = path.parent().and_then(|folder| watch(folder).ok());
        Self { path: path.to_owned(), events }
    }

    /// The PID, once the runtime has written it.
    pub(super) fn read(&self) -> Option<u32> {
        // crun writes the file in place, runc writes it under another name first.
        std::fs::read_to_string(&self.path).ok()?.trim().parse().ok()
    }

    /// Returns when a file in the folder was written; never without events.
    pub(super) async fn changed(&self) {
        let Some(events) = &self.events else { return std::future::pending().await };
        loop {
            match events.readable().await.and_then(|()| events.try_read(&mut [0; EVENT_BYTES])) {
                Ok(_) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The interval remains.
                Err(_) => return std::future::pending().await,
            }
        }
    }

    /// Ends the events: the folder may also have the log of the container, which is written all the time.
    pub(super) fn unwatch(&mut self) {
        self.events = None;
    }

    /// How long to wait for the next check, after a start has taken this long. A quarter of that without events: containers that start
    /// concurrently slow each other down enough without 100 checks per second each, which took a quarter of the processor with 64
    /// containers. With events, checks are only a precaution.
    pub(super) fn interval(&self, taken: Duration) -> Duration {
        if self.events.is_some() { LONGEST_INTERVAL } else { (taken / 4).clamp(POLL_INTERVAL, LONGEST_INTERVAL) }
    }
}

fn watch(folder: &Path) -> io::Result<Receiver> {
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&events, folder, WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO)?;
    // Events are read as bytes are read from a pipe.
    Receiver::from_owned_fd_unchecked(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long for an event, short for a test that fails.
    const IN_TIME: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_file_that_is_written_or_renamed_wakes_its_reader() {
        let folder = tempfile::tempdir().unwrap();
        let file = PidFile::at(&folder.path().join("pid"));
        assert_eq!(file.read(), None);
        std::fs::write(folder.path().join("pid"), "17").unwrap();
        tokio::time::timeout(IN_TIME, file.changed()).await.unwrap();
        assert_eq!(file.read(), Some(17));
        std::fs::write(folder.path().join(".pid"), "18").unwrap();
        tokio::time::timeout(IN_TIME, file.changed()).await.unwrap();
        std::fs::rename(folder.path().join(".pid"), folder.path().join("pid")).unwrap();
        tokio::time::timeout(IN_TIME, file.changed()).await.unwrap();
        assert_eq!(file.read(), Some(18));
    }

    #[tokio::test(start_paused = true)]
    async fn without_events_the_file_is_polled_and_a_slow_start_rarely() {
        let file = PidFile::at(Path::new("/nowhere/at/all"));
        assert!(tokio::time::timeout(IN_TIME, file.changed()).await.is_err(), "there is no event to wait for");
        assert_eq!(
            [0, 40, 100, 60_000].map(|taken| file.interval(Duration::from_millis(taken)).as_millis()),
            [10, 10, 25, 200]
        );
        let (mut taken, mut looks) = (Duration::ZERO, 0);
        while taken < Duration::from_secs(4) {
            taken += file.interval(taken);
            looks += 1;
        }
        assert!(looks < 40, "{looks}");
    }
}
