//! The work of preparing an image is done once, however many want it at the same time.
//!
//! - In one process whoever asks for the same joins what is under way, and gets what comes of it ([`Preparations`]).
//! - Of several processes one does it, and the others wait for a lock that ends with it ([`Engine::alone`]): then they find the image in the store,
//!   or do what the one before them did not come to do.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tarpon_oci::Digest;
use tarpon_store::FileLock;
use tokio::sync::watch;

use crate::image::{ImageRequest, Prepared};
use crate::progress::Progress;
use crate::{Engine, Error, ErrorKind, Result, flock};

/// How long another process is waited for: as long as a large image takes over a slow link. One that was stopped, or hangs, is no reason to
/// have no image: the lock keeps from doing work twice, and from nothing else.
const PATIENCE: Duration = Duration::from_secs(600);

/// How the names of the locks begin.
const PREFIX: &str = "prepare-";

/// What this process is preparing.
#[derive(Debug, Default)]
pub(crate) struct Preparations(Mutex<Vec<Flight>>);

type Outcome = Option<Result<Prepared>>;

#[derive(Debug)]
struct Flight {
    request: ImageRequest,
    outcome: watch::Receiver<Outcome>,
}

/// Whoever does the work. Dropped before the end, somebody else does it.
struct Leader<'f> {
    flights: &'f Preparations,
    request: &'f ImageRequest,
    outcome: watch::Sender<Outcome>,
}

impl Preparations {
    /// What comes of `work`, or of the same that is under way already.
    pub(super) async fn join(
        &self,
        request: &ImageRequest,
        work: impl Future<Output = Result<Prepared>>,
    ) -> Result<Prepared> {
        loop {
            let mut under_way = match self.begin(request) {
                Ok(leader) => {
                    let outcome = work.await;
                    leader.outcome.send_replace(Some(outcome.clone()));
                    return outcome;
                }
                Err(under_way) => under_way,
            };
            // An error means that whoever did it was told to stop, and left no outcome.
            let landed = under_way.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
            if let Some(outcome) = landed {
                return outcome;
            }
        }
    }

    /// `Err`: somebody else is at it.
    fn begin<'f>(&'f self, request: &'f ImageRequest) -> std::result::Result<Leader<'f>, watch::Receiver<Outcome>> {
        let mut flights = self.0.lock();
        if let Some(flight) = flights.iter().find(|flight| flight.request == *request) {
            return Err(flight.outcome.clone());
        }
        let (sender, receiver) = watch::channel(None);
        flights.push(Flight { request: request.clone(), outcome: receiver });
        Ok(Leader { flights: self, request, outcome: sender })
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        // Whoever comes from now on finds it in the store, or tries anew.
        self.flights.0.lock().retain(|flight| flight.request != *self.request);
    }
}

/// The right to do something that others wait for, as long as this lives.
#[derive(Debug)]
pub(super) struct Alone {
    path: PathBuf,
    _lock: FileLock,
}

impl Engine {
    /// Waits until no other process prepares what this digest stands for. `None`: somebody else has been at it for too long, and is no
    /// longer waited for.
    pub(super) async fn alone(&self, what: &Digest, progress: &dyn Progress) -> Result<Option<Alone>> {
        let failed = |error: io::Error| Error::new(ErrorKind::Store, "see whether somebody else prepares it", error);
        // What one tenant prepares keeps no other waiting.
        let what = self.store().tenant_id().map_or(*what, |tenant| Digest::of(format!("{tenant}\n{what}").as_bytes()));
        let path = self.store().run_folder().join(format!("{PREFIX}{}", what.hex()));
        let began = Instant::now();
        let mut is_told = false;
        loop {
            if let Some(lock) = Alone::try_new(&path).map_err(failed)? {
                return Ok(Some(lock));
            }
            if began.elapsed() >= PATIENCE {
                progress
                    .note(&format!("somebody else has been preparing it for {} s: not waiting", PATIENCE.as_secs()));
                return Ok(None);
            }
            if !std::mem::replace(&mut is_told, true) {
                progress.note("it is being prepared already: waiting for that");
            }
            tokio::time::sleep(flock::LOOK).await;
        }
    }
}

impl Alone {
    /// `None`: somebody else is at it.
    fn try_new(path: &std::path::Path) -> io::Result<Option<Self>> {
        loop {
            let file = flock::open(path)?;
            let Some(lock) = flock::try_lock(file)? else { return Ok(None) };
            if flock::has_name(&lock)? {
                return Ok(Some(Self { path: path.to_owned(), _lock: lock }));
            }
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // While it is locked: whoever opened it before takes note that it has no name any more.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "the lock of an image that was prepared stays behind");
        }
    }
}

/// What stands for a name of an image on a platform.
pub(super) fn key_of_name(request: &ImageRequest) -> Digest {
    // Neither of them holds a line break, so the two cannot run into each other.
    Digest::of(format!("{}\n{}", request.source, request.platform).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use crate::{EngineOptions, Silent};

    use super::*;

    #[tokio::test]
    async fn a_process_that_is_killed_holds_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let options = EngineOptions { store: folder.path().join("store"), server_command: Vec::new() };
        let engine = Engine::open(options).unwrap();
        let what = Digest::of(b"image");
        let path = engine.store().run_folder().join(format!("{PREFIX}{}", what.hex()));
        let mut command = Command::new("flock");
        command.arg("--no-fork").arg(&path).args(["sh", "-c", "echo held; exec sleep 1000"]);
        let mut other = match command.stdout(Stdio::piped()).spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return println!("skipped: flock is not installed");
            }
            spawned => spawned.unwrap(),
        };
        BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let beside = Alone::try_new(&path).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(beside.is_none());
        let alone = engine.alone(&what, &Silent).await.unwrap();
        assert!(Alone::try_new(&path).unwrap().is_none());
        drop(alone);
        assert!(!path.exists());
    }
}
