//! Operations on existing containers: list, stop, signal, remove, logs.

use std::time::{Duration, Instant};

use super::container_dir::{ContainerDir, ContainerDirs, Holding};
use super::containers::Containers;
use super::kept::handle;
use super::log::{self, LogLine, LogRequest};
use super::record::{ContainerRecord, ContainerState, now};
use super::signals::signal_name;
use super::status::{ContainerStatus, Lifecycle};
use crate::network::Connection;
use crate::oci::{Handle, forget_all};
use crate::{Error, ErrorKind, Result, ResultExt};
use tarpon_client::ContainerName;
use tarpon_client::mount_record::is_served;

/// Time limit for a killed container to be settled.
const KILLED: Duration = Duration::from_secs(30);

/// Poll interval of a container that should end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Containers {
    /// All containers of this store, by name.
    pub fn list(&self) -> Result<Vec<ContainerStatus>> {
        let all = ContainerDirs::of(self.store()).list()?;
        let status =
            all.into_iter().map(|(name, place)| (ContainerStatus::of(name, &place), place)).collect::<Vec<_>>();
        let mounts = self.store().mounts();
        let mounts = mounts.context(ErrorKind::Store, "read the records of mounts")?;
        let served = mounts.into_iter().filter(is_served).map(|mount| mount.record.mountpoint).collect();
        let status = status.into_iter().map(|(status, place)| (status.with_source(&place, &served), place));
        // A directory that has disappeared by now was being removed.
        Ok(status.filter(|(_, place)| place.exists()).map(|(status, _)| status).collect())
    }

    /// # Errors
    /// [`ErrorKind::Conflict`] if a container of this name exists.
    pub fn check_name(&self, name: &ContainerName) -> Result<()> {
        ContainerDirs::of(self.store()).check_free(name)
    }

    /// Sends a container its stop signal, and kills it if it still runs after `patience`. Zero patience kills it at once, as in Podman.
    /// Returns when the container is settled. Success if it has already ended. A new container of the same name is left alone.
    pub fn stop(&self, name: &ContainerName, patience: Duration) -> Result<()> {
        let (place, record) = self.known(name)?;
        if ContainerStatus::of(name.clone(), &place).has_ended() {
            return Ok(());
        }
        let handle = handle(&place, &record);
        handle.resume_if_left();
        let is_there = || place.is_held() && place.is_of(&record.id);
        if !patience.is_zero() {
            ask(&handle, &record.stop_signal, patience, is_there);
        }
        if !wait(&place, &record, patience)? {
            ask(&handle, "KILL", KILLED, is_there);
        }
        if !wait(&place, &record, KILLED)? {
            return Err(still_there("stop the container"));
        }
        self.settle_lost(&place, &record)
    }

    /// Sends a container a signal.
    pub fn kill(&self, name: &ContainerName, signal: &str) -> Result<()> {
        let (place, record) = self.known(name)?;
        let step = "send a signal to the container";
        let signal = signal_name(signal).map_err(|cause| Error::new(ErrorKind::Other, step, cause))?;
        if ContainerStatus::of(name.clone(), &place).has_ended() {
            return Err(Error::new(ErrorKind::Conflict, step, "it does not run"));
        }
        let handle = handle(&place, &record);
        handle.resume_if_left();
        handle.signal(&signal)
    }

    /// Removes a container with all its data. `force`: even if it runs or its record cannot be read.
    pub fn remove(&self, name: &ContainerName, force: bool) -> Result<()> {
        let step = "remove the container";
        let place = self.place(name)?;
        let status = ContainerStatus::of(name.clone(), &place);
        if !force {
            match &status.record {
                Err(cause) => {
                    return Err(Error::new(ErrorKind::Refused, step, cause.as_str())
                        .hint("tarpon rm -f removes it all the same"));
                }
                Ok(_) if !status.has_ended() => {
                    return Err(Error::new(ErrorKind::Conflict, step, "it has not ended")
                        .hint(format!("tarpon stop {name} stops it, tarpon rm -f {name} kills and removes it")));
                }
                Ok(_) => {}
            }
        }
        if let Ok(record) = &status.record
            && !status.has_ended()
        {
            let is_there = || place.is_held() && place.is_of(&record.id);
            let handle = handle(&place, record);
            handle.resume_if_left();
            ask(&handle, "KILL", KILLED, is_there);
        }
        let lock = match hold(&place)? {
            Holding::Ours(lock) => lock,
            Holding::Theirs if status.is_at(&place) => return Err(still_there(step)),
            // The container is removed when it ends.
            Holding::Theirs | Holding::Gone => return Ok(()),
        };
        if !status.is_at(&place) {
            return Ok(());
        }
        match &status.record {
            Ok(record) => {
                handle(&place, record).forget()?;
                record.disconnect()?;
            }
            Err(_) => forget_all(&place.runtime())?,
        }
        self.client().release(&place.rootfs())?;
        ContainerDirs::of(self.store()).remove(&place, &lock)
    }

    /// Removes the networks of containers that have ended without their keepers, and of those that are gone.
    pub fn recover_networks(&self) -> Result<()> {
        for status in self.list()?.iter().filter(|status| status.standing == Lifecycle::Lost) {
            let (place, Ok(record)) = (self.place(&status.name)?, &status.record) else { continue };
            if let Holding::Ours(_lock) = hold(&place)?
                && place.is_of(&record.id)
                && !handle(&place, record).is_running()?
            {
                record.disconnect()?;
            }
        }
        Connection::recover(self.store())
    }

    /// Passes the requested part of the output of a detached container to `sink`, oldest first. With `follow`, waits for more until the
    /// container ends or the function returns `true`.
    pub fn logs(
        &self,
        name: &ContainerName,
        request: &LogRequest,
        follow: Option<&dyn Fn() -> bool>,
        sink: &mut dyn FnMut(&LogLine<'_>) -> std::io::Result<()>,
    ) -> Result<()> {
        let (place, record) = self.known(name)?;
        let step = "read the container's log";
        if !record.detached {
            let cause = "its output went to where it was started: only of detached containers (-d) a log is kept";
            return Err(Error::new(ErrorKind::NotFound, step, cause));
        }
        let is_over = follow.map(|is_enough| || is_enough() || !place.is_held());
        let is_over = is_over.as_ref().map(|is_over| is_over as &dyn Fn() -> bool);
        log::read(place.folder(), request, is_over, sink).context(ErrorKind::Store, step)
    }

    /// Records the end of a container whose keeper was killed, without an exit code: how it ended is unknown.
    fn settle_lost(&self, place: &ContainerDir, known: &ContainerRecord) -> Result<()> {
        if !place.is_of(&known.id) {
            return Ok(());
        }
        let Holding::Ours(lock) = hold(place)? else { return Ok(()) };
        let Ok(mut record) = place.record() else { return Ok(()) };
        if record.id != known.id || matches!(record.state, ContainerState::Exited { .. }) {
            return Ok(());
        }
        handle(place, &record).forget()?;
        record.disconnect()?;
        self.client().release(&place.rootfs())?;
        if record.remove {
            return ContainerDirs::of(self.store()).remove(place, &lock);
        }
        record.state = ContainerState::Exited { code: None, at: now() };
        let written = place.write(&record);
        written.context(ErrorKind::Store, "write down how the container ended")
    }

    fn place(&self, name: &ContainerName) -> Result<ContainerDir> {
        let place = ContainerDirs::of(self.store()).place(name);
        if place.exists() {
            return Ok(place);
        }
        let error = Error::new(ErrorKind::NotFound, "find the container", format!("there is no container {name}"));
        Err(error.hint("tarpon ps -a lists them"))
    }

    /// A container with a readable record.
    pub(super) fn known(&self, name: &ContainerName) -> Result<(ContainerDir, ContainerRecord)> {
        let place = self.place(name)?;
        let unreadable = |cause| {
            Error::new(ErrorKind::Refused, "find the container", cause).hint(format!("tarpon rm -f {name} removes it"))
        };
        let record = place.record().map_err(unreadable)?;
        Ok((place, record))
    }
}

fn hold(place: &ContainerDir) -> Result<Holding> {
    let held = place.hold(KILLED);
    held.context(ErrorKind::Store, "take the container from its keeper")
}

fn still_there(step: &str) -> Error {
    let cause = format!("it was killed, and is not gone after {} s", KILLED.as_secs());
    Error::new(ErrorKind::Other, step, cause).hint("a process that waits for a disk or a network cannot be killed")
}

/// Sends a container a signal, with retries because it may be just starting. A container that has ended takes none, which is no error.
fn ask(container: &Handle, signal: &str, patience: Duration, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while container.signal(signal).is_err() && is_there() && began.elapsed() < patience {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits up to `patience` until the container is released and nothing of it runs. The keeper releases the lock when the container is
/// settled. A different container under the same name counts as ended.
fn wait(place: &ContainerDir, record: &ContainerRecord, patience: Duration) -> Result<bool> {
    let began = Instant::now();
    loop {
        if !place.is_of(&record.id) || !place.is_held() && !handle(place, record).is_running()? {
            return Ok(true);
        }
        if began.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::super::containers::tests::containers;
    use super::super::record::tests::record;
    use super::*;

    fn standing(containers: &Containers) -> Lifecycle {
        containers.list().unwrap()[0].standing
    }

    #[test]
    fn a_container_whose_keeper_was_killed_is_lost_until_it_is_stopped_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let name = "web".parse().unwrap();
        let (_, lock) = ContainerDirs::of(containers.store()).create(&record("web")).unwrap();
        assert_eq!(standing(&containers), Lifecycle::Running);
        drop(lock);
        assert_eq!(standing(&containers), Lifecycle::Lost);
        let error = containers.remove(&name, false).unwrap_err();
        assert!(error.cause().to_string().contains("has not ended") && error.hint.unwrap().contains("rm -f web"));
        containers.stop(&name, Duration::ZERO).unwrap();
        assert_eq!(standing(&containers), Lifecycle::Exited(None));
        containers.stop(&name, Duration::ZERO).unwrap();
        assert!(containers.kill(&name, "TERM").unwrap_err().cause().to_string().contains("does not run"));
        containers.remove(&name, false).unwrap();
        assert!(containers.list().unwrap().is_empty());
        assert_eq!(containers.remove(&name, true).unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn waiting_for_a_container_ends_when_another_one_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let next = ContainerRecord { id: "ba9876543210".to_owned(), ..record("web") };
        let (place, _keeper) = ContainerDirs::of(containers.store()).create(&next).unwrap();
        assert!(!wait(&place, &next, Duration::ZERO).unwrap(), "it is kept");
        assert!(wait(&place, &record("web"), Duration::ZERO).unwrap());
        containers.settle_lost(&place, &record("web")).unwrap();
        assert_eq!(standing(&containers), Lifecycle::Running, "the other one is left alone");
    }

    #[test]
    fn a_container_has_ended_when_its_keeper_is_done_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let ended = ContainerRecord { state: ContainerState::Exited { code: Some(3), at: 7 }, ..record("web") };
        let (_, keeper) = ContainerDirs::of(containers.store()).create(&ended).unwrap();
        assert_eq!(standing(&containers), Lifecycle::Running);
        drop(keeper);
        assert_eq!(standing(&containers), Lifecycle::Exited(Some(3)));
    }

    #[test]
    fn a_record_of_another_version_is_shown_and_removed_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let name = "web".parse().unwrap();
        let (place, _) = ContainerDirs::of(containers.store()).create(&record("web")).unwrap();
        std::fs::write(place.folder().join("container.json"), "{\"version\":9}").unwrap();
        assert_eq!(standing(&containers), Lifecycle::Unreadable);
        assert!(containers.stop(&name, Duration::ZERO).unwrap_err().cause().to_string().contains("version 9"));
        assert!(containers.remove(&name, false).unwrap_err().cause().to_string().contains("version 9"));
        containers.remove(&name, true).unwrap();
        assert!(containers.list().unwrap().is_empty());
    }

    #[test]
    fn what_may_still_run_is_not_removed_below_its_feet() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let name = "web".parse().unwrap();
        let (place, _) = ContainerDirs::of(containers.store()).create(&record("web")).unwrap();
        let remembered = place.runtime().join("tarpon-0123456789ab");
        std::fs::create_dir(&remembered).unwrap();
        let error = containers.remove(&name, true).unwrap_err();
        assert!(error.cause().to_string().contains("/nonexistent/runc") && place.upper().exists(), "{error}");
        assert!(containers.stop(&name, Duration::ZERO).is_err());
        std::fs::remove_dir(remembered).unwrap();
        containers.remove(&name, true).unwrap();
    }

    #[test]
    fn a_container_in_the_foreground_has_no_log() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let attached = ContainerRecord { detached: false, ..record("web") };
        ContainerDirs::of(containers.store()).create(&attached).unwrap();
        let error =
            containers.logs(&"web".parse().unwrap(), &LogRequest::default(), None, &mut |_| Ok(())).unwrap_err();
        assert!(error.cause().to_string().contains("only of detached containers"));
    }
}
