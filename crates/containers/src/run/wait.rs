//! Waits for the end of a container in a process other than its keeper.

use std::time::{Duration, Instant};

use super::containers::Containers;
use super::record::ContainerState;
use super::status::{ContainerStatus, Lifecycle};
use super::waiters::waiter;
use crate::{Error, ErrorKind, Result, ResultExt};
use tarpon_client::ContainerName;

const STEP: &str = "wait for the container";

/// Shortest and longest interval between two checks of a container.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

/// Time limit for a container that has ended to be unmounted and released.
const SETTLING: Duration = Duration::from_secs(30);

impl Containers {
    /// Waits until a container has ended and is settled. Returns its exit code if it is known. Blocks as long as the container runs.
    ///
    /// # Errors
    /// The exit code will never be known, because the keeper was killed.
    pub fn wait(&self, name: &ContainerName) -> Result<Option<u8>> {
        let (place, record) = self.known(name)?;
        let waiter = waiter(place.folder()).context(ErrorKind::Store, STEP)?;
        let mut pause = POLL_INTERVAL;
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
            if ContainerStatus::of(name.clone(), &place).standing == Lifecycle::Lost {
                let error =
                    Error::new(ErrorKind::Other, STEP, "its keeper was killed, so its exit code will stay unknown");
                return Err(error.hint(format!("tarpon stop {name} ends what is left of it")));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_INTERVAL);
        };
        drop(waiter);
        // The caller may remove the container next, or run another one under its name.
        let began = Instant::now();
        while place.is_of(&record.id) && place.is_held() && began.elapsed() < SETTLING {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(code)
    }
}

fn removed() -> Error {
    Error::new(ErrorKind::NotFound, STEP, "it was removed before it was seen how it ended")
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tarpon_store::flock::lock_within;

    use super::super::container_dir::ContainerDirs;
    use super::super::containers::tests::containers;
    use super::super::record::ContainerRecord;
    use super::super::record::tests::record;
    use super::super::waiters::mark;
    use super::*;

    fn ended(code: u8) -> ContainerRecord {
        ContainerRecord { state: ContainerState::Exited { code: Some(code), at: 7 }, ..record("web") }
    }

    #[test]
    fn a_container_that_has_ended_needs_no_waiting_and_a_lost_one_cannot_be_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let name = "web".parse().unwrap();
        let (place, lock) = ContainerDirs::of(containers.store()).create(&record("web")).unwrap();
        drop(lock);
        let error = containers.wait(&name).unwrap_err();
        assert!(
            error.cause().to_string().contains("its keeper was killed")
                && error.hint.unwrap().contains("tarpon stop web")
        );
        place.write(&ended(3)).unwrap();
        assert_eq!(containers.wait(&name).unwrap(), Some(3));
        assert_eq!(containers.wait(&"db".parse().unwrap()).unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn a_waiter_sees_the_end_of_a_container_that_is_removed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let directories = ContainerDirs::of(containers.store());
        let (place, lock) = directories.create(&record("web")).unwrap();
        let waiting = {
            let containers = containers.clone();
            std::thread::spawn(move || containers.wait(&"web".parse().unwrap()))
        };
        // The waiter takes its lock before its first check.
        while !mark(place.folder()).exists() {
            std::thread::yield_now();
        }
        let is_waiting = || lock_within(File::open(mark(place.folder())).unwrap(), Duration::ZERO).unwrap().is_none();
        while !is_waiting() {
            std::thread::yield_now();
        }
        place.write(&ended(42)).unwrap();
        directories.remove(&place, &lock).unwrap();
        drop(lock);
        assert_eq!(waiting.join().unwrap().unwrap(), Some(42));
        assert!(!place.exists());
    }
}
