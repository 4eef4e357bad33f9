//! [`Slot`]: the place of a worker, and the attempts of a request.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::policy::Policy;
use crate::process::{Ended, Process, is_gone};
use crate::supervise::{self, Credentials};

/// Attempts of a request whose worker ends by itself each time: it should not die of one request for ever.
const TRIES: u32 = 6;
/// How long a request is attempted while its workers are killed by others. A reader waits 28 s at most.
const KILLED: Duration = Duration::from_secs(20);
/// Pause before the third attempt; it doubles with each further one, up to the longest.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The place of a worker, which has at most one process at a time.
#[derive(Debug)]
pub(crate) struct Slot {
    command: Arc<[OsString]>,
    policy: Policy,
    current: Mutex<Option<Arc<Process>>>,
    started: AtomicU64,
    /// Its images, with their credentials.
    images: supervise::Images,
}

impl Slot {
    pub(crate) fn new(command: Arc<[OsString]>, policy: Policy) -> Self {
        let (current, started, images) = Default::default();
        Self { command, policy, current, started, images }
    }

    /// The running process, or a new one. Runs on a thread of a runtime.
    pub(crate) fn process(&self) -> io::Result<Arc<Process>> {
        let mut current = self.current.lock();
        if let Some(process) = current.as_ref().filter(|process| process.is_usable()) {
            return Ok(process.clone());
        }
        *current = None;
        let generation = self.started.fetch_add(1, Ordering::Relaxed);
        let setup = self.policy.setup();
        let watched = self.policy.watched(&setup);
        let process = Arc::new(Process::start(&self.command, &setup, generation)?);
        supervise::begin(&process, self.images.clone(), watched)?;
        *current = Some(process.clone());
        Ok(process)
    }

    /// An image is going to be read.
    pub(crate) fn add(&self, image: u64, credentials: Credentials) {
        self.images.add(image, credentials);
    }

    /// An image is not read any more.
    pub(crate) fn forget(&self, image: u64) {
        self.images.remove(image);
        if let Some(process) = self.current.lock().as_ref() {
            // A worker that is gone knows no image.
            let _sent = process.forget(image);
        }
    }
}

/// The attempts of one request.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    /// All of them without progress.
    attempts: u32,
    /// Those whose worker was not killed by another process.
    failures: u32,
    /// When the first one failed.
    since: Option<Instant>,
}

impl Tries {
    /// The process has failed during the request. Returns the pause before the next attempt, or the error.
    pub(crate) fn failed(
        &mut self,
        process: Option<&Process>,
        error: &io::Error,
    ) -> std::result::Result<Duration, String> {
        let ended = process.filter(|_| concerns_worker(error)).map(Process::end);
        let was_killed = ended.as_ref().is_some_and(|ended| ended.was_killed && !is_our_finding(error));
        self.attempts += 1;
        self.failures += u32::from(!was_killed);
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.failures < TRIES && since.elapsed() < KILLED {
            let doublings = self.attempts.saturating_sub(2).min(8);
            return Ok(if self.attempts < 2 { Duration::ZERO } else { LONGEST_PAUSE.min(PAUSE * (1 << doublings)) });
        }
        Err(match ended {
            Some(Ended { how, .. }) => {
                format!("the worker process has failed {} times: {error}; {how}", self.attempts)
            }
            None => format!("cannot use a worker process: {error}"),
        })
    }
}

/// Whether the error is the end or the fault of a worker, and not a lack of descriptors here, for example.
fn concerns_worker(error: &io::Error) -> bool {
    is_our_finding(error) || is_gone(error) || error.kind() == io::ErrorKind::UnexpectedEof
}

/// Whether the worker was ended for what it did, and not found dead.
fn is_our_finding(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
