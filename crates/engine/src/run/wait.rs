//! Waiting for the end of a container, in another process than the one that keeps it.
//!
//! A container that is removed when it ends takes its record along. So whoever waits holds a lock in the container's directory, and whoever
//! removes the directory first gives those some time to read the record.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tarpon_store::FileLock;

use super::life::{ContainerStatus, Standing};
use super::place::Place;
use super::{ContainerName, ContainerState};
use crate::flock::{lock_within, open, try_share};
use crate::{Engine, Error, ErrorKind, Result};

const STEP: &str = "wait for the container";

/// Shortest and longest time between two looks at a container.
const LOOK: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(200);

/// How long a removal waits for those who wait: many times as long as they take between two looks.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a container that has ended may take until it is unmounted and nobody keeps it.
const SETTLING: Duration = Duration::from_secs(30);

/// Says that somebody waits for the container. While this lives its directory stays, within [`PATIENCE`]. Whoever removes the container has the lock
/// for a moment, and after that there is nothing to wait for, which is seen at once.
fn waiter(place: &Place) -> io::Result<Option<FileLock>> {
    let began = Instant::now();
    loop {
        match try_share(open(&mark(place))?)? {
            None if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            held => return Ok(held),
        }
    }
}

fn mark(place: &Place) -> PathBuf {
    place.folder().join("waiters")
}

/// Gives those who wait for a container the time to see how it ended, before its directory goes.
pub(super) fn let_waiters_look(place: &Place) {
    // If nobody has ever waited there is no such file.
    if let Ok(file) = File::open(mark(place)) {
        let _they_take_too_long = lock_within(file, PATIENCE);
    }
}

impl Engine {
    /// Waits until a container has ended and is settled: its exit code, if anybody saw it. Blocks for as long as the container runs.
    ///
    /// # Errors
    /// Nobody will know how it ends, because its keeper was killed.
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
        // Whoever has waited may remove it, or run another one under its name.
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
    use super::super::place::Containers;
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
        assert!(error.cause.contains("its keeper was killed") && error.hint.unwrap().contains("tarpon stop web"));
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
        // It has its lock before it looks for the first time.
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
