//! Waits for the end of a container in a process other than its keeper.
//!
//! A container that is removed when it ends takes its record along. So a waiter holds a lock in the container's directory, and a removal
//! first gives waiters some time to read the record.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tarpon_store::FileLock;
use tarpon_store::flock::{lock_within, open, try_share};

use super::container_dir::ContainerDir;
use super::life::{ContainerStatus, Standing};
use super::{ContainerName, ContainerState};
use crate::{Engine, Error, ErrorKind, Result};

const STEP: &str = "wait for the container";

/// Shortest and longest interval between two checks of a container.
const LOOK: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(200);

/// How long a removal waits for waiters: many times their longest check interval.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time limit for a container that has ended to be unmounted and released.
const SETTLING: Duration = Duration::from_secs(30);

/// Marks the container as waited for. While this lives its directory stays, within [`PATIENCE`]. The process that removes the container
/// holds the lock for a moment. After that there is nothing to wait for, which the next check shows.
fn waiter(place: &ContainerDir) -> io::Result<Option<FileLock>> {
    let began = Instant::now();
    loop {
        match try_share(open(&mark(place))?)? {
            None if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            held => return Ok(held),
        }
    }
}

fn mark(place: &ContainerDir) -> PathBuf {
    place.folder().join("waiters")
}

/// Gives waiters time to see how a container ended, before its directory is removed.
pub(super) fn let_waiters_look(place: &ContainerDir) {
    // The file does not exist if no process has ever waited.
    if let Ok(file) = File::open(mark(place)) {
        let _they_take_too_long = lock_within(file, PATIENCE);
    }
}

impl Engine {
    /// Waits until a container has ended and is settled. Returns its exit code if it is known. Blocks as long as the container runs.
    ///
    /// # Errors
    /// The exit code will never be known, because the keeper was killed.
    pub fn wait_container(&self, name: &ContainerName) -> Result<Option<u8>> {
        let (place, record) = self.known(name)?;
        let failed = |error: io::Error| Error::new(ErrorKind::Store, STEP, error);
        let waiter = waiter(&place).map_err(failed)?;
        let mut pause = LOOK;
        let code = loop {
            match place.record() {
                Ok(now) if now.id != record.id => return Err(removed()),
                Ok(now) => {
                    if let ContainerState::Exited { code, .. } = now.state {
                        break code;
                    }
                }
                Err(_) if !place.exists() => return Err(removed()),
                Err(cause) => return Err(Error::new(ErrorKind::Refused, STEP, cause)),
            }
            if ContainerStatus::of(name.clone(), &place).standing == Standing::Lost {
                let error = Error::new(ErrorKind::Other, STEP, "its keeper was killed, and nobody sees how it ends");
                return Err(error.hint(format!("tarpon stop {name} ends what is left of it")));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(SELDOM);
        };
        drop(waiter);
        // The caller may remove the container next, or run another one under its name.
        let began = Instant::now();
        while place.is_of(&record.id) && place.is_held() && began.elapsed() < SETTLING {
            std::thread::sleep(LOOK);
        }
        Ok(code)
    }
}

fn removed() -> Error {
    Error::new(ErrorKind::NotFound, STEP, "it was removed before it was seen how it ended")
}

#[cfg(test)]
mod tests {
    use super::super::container_dir::Containers;
    use super::super::record::tests::record;
    use super::*;
    use crate::EngineOptions;
    use crate::run::ContainerRecord;

    fn engine(folder: &std::path::Path) -> Engine {
        Engine::open(EngineOptions { store: folder.join("store"), server_command: Vec::new() }).unwrap()
    }

    fn ended(code: u8) -> ContainerRecord {
        ContainerRecord { state: ContainerState::Exited { code: Some(code), at: 7 }, ..record("web") }
    }

    #[test]
    fn a_container_that_has_ended_needs_no_waiting_and_a_lost_one_cannot_be_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let name = "web".parse().unwrap();
        let (place, lock) = Containers::of(engine.store()).create(&record("web")).unwrap();
        drop(lock);
        let error = engine.wait_container(&name).unwrap_err();
        assert!(
            error.cause().to_string().contains("its keeper was killed")
                && error.hint.unwrap().contains("tarpon stop web")
        );
        place.write(&ended(3)).unwrap();
        assert_eq!(engine.wait_container(&name).unwrap(), Some(3));
        assert_eq!(engine.wait_container(&"db".parse().unwrap()).unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn whoever_waits_sees_the_end_of_a_container_that_is_removed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let containers = Containers::of(engine.store());
        let (place, lock) = containers.create(&record("web")).unwrap();
        let waiting = {
            let engine = engine.clone();
            std::thread::spawn(move || engine.wait_container(&"web".parse().unwrap()))
        };
        // The waiter takes its lock before its first check.
        while !mark(&place).exists() {
            std::thread::yield_now();
        }
        let is_waiting = || lock_within(File::open(mark(&place)).unwrap(), Duration::ZERO).unwrap().is_none();
        while !is_waiting() {
            std::thread::yield_now();
        }
        place.write(&ended(42)).unwrap();
        containers.remove(&place, &lock).unwrap();
        drop(lock);
        assert_eq!(waiting.join().unwrap().unwrap(), Some(42));
        assert!(!place.exists());
    }
}
