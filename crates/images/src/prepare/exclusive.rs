//! Of several processes that want the same image one does the work. The others wait for a lock that ends with it: then they find the image
//! in the store, or do what the previous one left undone.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tarpon_oci::Digest;
use tarpon_store::{FileLock, Store, flock};

use crate::error::{ErrorKind, Result, ResultExt};
use crate::image::ImageRequest;
use crate::progress::Progress;

/// How long to wait for another process: as long as a large image takes over a slow link. A stopped or hanging process must not prevent the
/// image: the lock only avoids duplicate work.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// First interval between two attempts on the lock: an image that is prepared already is found in a few milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Longest interval between two attempts: no user notices it after a download of minutes, and hundreds of waiting processes do not keep a
/// processor busy.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Prefix of the lock names.
const PREFIX: &str = "prepare-";

/// The exclusive right to some work, as long as this lives.
#[derive(Debug)]
pub(super) struct ExclusiveLock {
    path: PathBuf,
    _lock: FileLock,
}

/// Waits until no other process prepares the image or name with this digest. `None`: another process took too long, and the wait was
/// given up.
pub(super) async fn lock(store: &Store, what: &Digest, progress: &dyn Progress) -> Result<Option<ExclusiveLock>> {
    // A tenant's work blocks no other tenant.
    let what = store.tenant_id().map_or(*what, |tenant| Digest::of(format!("{tenant}\n{what}").as_bytes()));
    let path = store.run_folder().join(format!("{PREFIX}{}", what.hex()));
    let began = Instant::now();
    let mut is_noted = false;
    loop {
        if let Some(lock) = ExclusiveLock::try_new(&path).context(ErrorKind::Store, "lock the preparation")? {
            return Ok(Some(lock));
        }
        if began.elapsed() >= MAX_WAIT {
            progress.note(&format!(
                "another process has been preparing it for {} s: not waiting any longer",
                MAX_WAIT.as_secs()
            ));
            return Ok(None);
        }
        if !std::mem::replace(&mut is_noted, true) {
            progress.note("it is being prepared already: waiting for that");
        }
        tokio::time::sleep(pause_after(began.elapsed())).await;
    }
}

/// The interval after this time: short against the time that was waited already.
fn pause_after(waited: Duration) -> Duration {
    (waited / 8).clamp(FIRST_PAUSE, LONGEST_PAUSE)
}

impl ExclusiveLock {
    /// `None`: another process holds it.
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

impl Drop for ExclusiveLock {
    fn drop(&mut self) {
        // While it is locked: processes that opened it before notice that it no longer has a name.
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "the lock of an image that was prepared stays behind");
        }
    }
}

/// The lock key for a name of an image on a platform.
pub(super) fn key_of_name(request: &ImageRequest) -> Digest {
    // Neither contains a line break, so the pair is unambiguous.
    Digest::of(format!("{}\n{}", request.source, request.platform).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::images::open_store;
    use crate::progress::Silent;

    #[test]
    fn a_short_preparation_is_noticed_soon_and_a_long_one_is_polled_rarely() {
        let pause = |millis| pause_after(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 80, 800, 1_600, 60_000].map(pause), [10, 10, 100, 200, 200]);
    }

    #[tokio::test]
    async fn a_killed_process_blocks_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let store = open_store(&folder.path().join("store")).unwrap();
        let what = Digest::of(b"image");
        let path = store.run_folder().join(format!("{PREFIX}{}", what.hex()));
        let mut command = Command::new("flock");
        command.arg("--no-fork").arg(&path).args(["sh", "-c", "echo held; exec sleep 1000"]);
        let mut other = match command.stdout(Stdio::piped()).spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return println!("skipped: flock is not installed");
            }
            spawned => spawned.unwrap(),
        };
        BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let beside = ExclusiveLock::try_new(&path).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(beside.is_none());
        let held = lock(&store, &what, &Silent).await.unwrap();
        assert!(ExclusiveLock::try_new(&path).unwrap().is_none());
        drop(held);
        assert!(!path.exists());
    }
}
