//! Operations on existing containers: list, stop, signal, remove, logs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tarpon_client::mount_record::is_served;
use tarpon_store::Store;

use super::container_dir::{ContainerDir, Containers, Holding, container_dir_at};
use super::held::handle;
use super::log::{self, LogLine, LogWish};
use super::record::{ContainerState, now};
use super::signals::signal_name;
use super::{ContainerName, ContainerRecord};
use crate::container::{Handle, forget_all};
use crate::{Engine, Error, ErrorKind, Result};

/// Time limit for a killed container to be settled.
const KILLED: Duration = Duration::from_secs(30);

/// Poll interval of a container that should end.
const LOOK: Duration = Duration::from_millis(20);

/// The status of an existing container.
#[derive(Debug, Clone)]
pub struct ContainerStatus {
    /// The name.
    pub name: ContainerName,
    /// The record, or why it cannot be read.
    pub record: std::result::Result<ContainerRecord, String>,
    /// The lifecycle state.
    pub standing: Standing,
    /// It runs, but the server that fetched its data has ended: data that is not local cannot be read until the container is restarted.
    pub source_lost: bool,
}

/// Whether a process may run on what is mounted at `mountpoint`, because it is the root of a container that has not ended. A container
/// whose keeper was killed may still run: its state is unknown.
pub(crate) fn may_run_on(store: &Store, mountpoint: &Path) -> bool {
    container_dir_at(store, mountpoint)
        .is_some_and(|(name, place)| place.is_mounted() && !ContainerStatus::of(name, &place).has_ended())
}

/// The lifecycle state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is being started.
    Starting,
    /// It runs, or has just ended and is being settled.
    Running,
    /// It has ended, with this exit code if it is known.
    Exited(Option<u8>),
    /// Its keeper was killed: whether it still runs is unknown.
    Lost,
    /// This version cannot read its record.
    Unreadable,
}

impl Standing {
    /// The state as one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Exited(_) => "exited",
            Self::Lost => "lost",
            Self::Unreadable => "unreadable",
        }
    }
}

impl ContainerStatus {
    pub(super) fn of(name: ContainerName, place: &ContainerDir) -> Self {
        // In this order: if the record changes in between, a process holds the lock.
        let is_held = place.is_held();
        let record = place.record();
        let standing = match record.as_ref().map(|record| &record.state) {
            Err(_) => Standing::Unreadable,
            Ok(ContainerState::Exited { code, .. }) if !is_held => Standing::Exited(*code),
            Ok(ContainerState::Created) if is_held => Standing::Starting,
            // This includes a container that has ended while its keeper still cleans up.
            Ok(_) if is_held => Standing::Running,
            Ok(_) => Standing::Lost,
        };
        Self { name, record, standing, source_lost: false }
    }

    /// Adds whether the source is lost, from the records of mounts, which are read after the container's own.
    fn with_source(self, place: &ContainerDir, served: &HashSet<PathBuf>) -> Self {
        let runs = |record: &ContainerRecord| matches!(record.state, ContainerState::Running { .. });
        // A running container is mounted. It is unmounted only after its record states that it has ended.
        let source_lost = self.standing == Standing::Running
            && self.record.as_ref().is_ok_and(runs)
            && !served.contains(&place.rootfs())
            && place.record().is_ok_and(|now| runs(&now));
        Self { source_lost, ..self }
    }

    /// Whether the directory still belongs to this container.
    fn is_at(&self, place: &ContainerDir) -> bool {
        self.record.as_ref().map_or_else(|_| place.exists(), |record| place.is_of(&record.id))
    }

    /// Whether it has ended and is settled.
    pub fn has_ended(&self) -> bool {
        matches!(self.standing, Standing::Exited(_))
    }
}

impl Engine {
    /// All containers of this store, by name.
    pub fn containers(&self) -> Result<Vec<ContainerStatus>> {
        let all = Containers::of(self.store()).list()?;
        let status =
            all.into_iter().map(|(name, place)| (ContainerStatus::of(name, &place), place)).collect::<Vec<_>>();
        let mounts = self.store().mounts();
        let mounts = mounts.map_err(|error| Error::new(ErrorKind::Store, "read the records of mounts", error))?;
        let served = mounts.into_iter().filter(is_served).map(|mount| mount.record.mountpoint).collect();
        let status = status.into_iter().map(|(status, place)| (status.with_source(&place, &served), place));
        // A directory that has disappeared by now was being removed.
        Ok(status.filter(|(_, place)| place.exists()).map(|(status, _)| status).collect())
    }

    /// # Errors
    /// [`ErrorKind::Conflict`] if a container of this name exists.
    pub fn check_container_name(&self, name: &ContainerName) -> Result<()> {
        Containers::of(self.store()).check_free(name)
    }

    /// Sends a container its stop signal, and kills it if it still runs after `patience`. Zero patience kills it at once, as in Podman.
    /// Returns when the container is settled. Success if it has already ended. A new container of the same name is left alone.
    pub fn stop_container(&self, name: &ContainerName, patience: Duration) -> Result<()> {
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
    pub fn kill_container(&self, name: &ContainerName, signal: &str) -> Result<()> {
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
    pub fn remove_container(&self, name: &ContainerName, force: bool) -> Result<()> {
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
            Ok(record) => handle(&place, record).forget()?,
            Err(_) => forget_all(&place.runtime())?,
        }
        self.client().release(&place.rootfs())?;
        Containers::of(self.store()).remove(&place, &lock)
    }

    /// Passes the requested part of the output of a detached container to `sink`, oldest first. With `follow`, waits for more until the
    /// container ends or the function returns `true`.
    pub fn container_logs(
        &self,
        name: &ContainerName,
        wish: &LogWish,
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
        log::read(place.folder(), wish, is_over, sink).map_err(|error| Error::new(ErrorKind::Store, step, error))
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
        self.client().release(&place.rootfs())?;
        if record.remove {
            return Containers::of(self.store()).remove(place, &lock);
        }
        record.state = ContainerState::Exited { code: None, at: now() };
        let written = place.write(&record);
        written.map_err(|error| Error::new(ErrorKind::Store, "write down how the container ended", error))
    }

    fn place(&self, name: &ContainerName) -> Result<ContainerDir> {
        let place = Containers::of(self.store()).place(name);
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
    held.map_err(|error| Error::new(ErrorKind::Store, "take the container from its keeper", error))
}

fn still_there(step: &str) -> Error {
    let cause = format!("it was killed, and is not gone after {} s", KILLED.as_secs());
    Error::new(ErrorKind::Other, step, cause).hint("a process that waits for a disk or a network cannot be killed")
}

/// Sends a container a signal, with retries because it may be just starting. A container that has ended takes none, which is no error.
fn ask(container: &Handle, signal: &str, patience: Duration, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while container.signal(signal).is_err() && is_there() && began.elapsed() < patience {
        std::thread::sleep(LOOK);
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
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use crate::EngineOptions;

    fn engine(folder: &std::path::Path) -> Engine {
        Engine::open(EngineOptions { store: folder.join("store"), server_command: Vec::new() }).unwrap()
    }

    fn standing(engine: &Engine) -> Standing {
        engine.containers().unwrap()[0].standing
    }

    #[test]
    fn a_container_whose_keeper_was_killed_is_lost_until_it_is_stopped_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let name = "web".parse().unwrap();
        let (_, lock) = Containers::of(engine.store()).create(&record("web")).unwrap();
        assert_eq!(standing(&engine), Standing::Running);
        drop(lock);
        assert_eq!(standing(&engine), Standing::Lost);
        let error = engine.remove_container(&name, false).unwrap_err();
        assert!(error.cause().to_string().contains("has not ended") && error.hint.unwrap().contains("rm -f web"));
        engine.stop_container(&name, Duration::ZERO).unwrap();
        assert_eq!(standing(&engine), Standing::Exited(None));
        engine.stop_container(&name, Duration::ZERO).unwrap();
        assert!(engine.kill_container(&name, "TERM").unwrap_err().to_string().contains("does not run"));
        engine.remove_container(&name, false).unwrap();
        assert!(engine.containers().unwrap().is_empty());
        assert_eq!(engine.remove_container(&name, true).unwrap_err().kind, ErrorKind::NotFound);
    }

    #[test]
    fn waiting_for_a_container_ends_when_another_one_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let next = ContainerRecord { id: "ba9876543210".to_owned(), ..record("web") };
        let (place, _keeper) = Containers::of(engine.store()).create(&next).unwrap();
        assert!(!wait(&place, &next, Duration::ZERO).unwrap(), "it is kept");
        assert!(wait(&place, &record("web"), Duration::ZERO).unwrap());
        engine.settle_lost(&place, &record("web")).unwrap();
        assert_eq!(standing(&engine), Standing::Running, "the other one is left alone");
    }

    #[test]
    fn a_container_has_ended_when_its_keeper_is_done_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let ended = ContainerRecord { state: ContainerState::Exited { code: Some(3), at: 7 }, ..record("web") };
        let (_, keeper) = Containers::of(engine.store()).create(&ended).unwrap();
        assert_eq!(standing(&engine), Standing::Running);
        drop(keeper);
        assert_eq!(standing(&engine), Standing::Exited(Some(3)));
    }

    #[test]
    fn a_record_of_another_version_is_shown_and_removed_only_by_force() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let name = "web".parse().unwrap();
        let (place, _) = Containers::of(engine.store()).create(&record("web")).unwrap();
        std::fs::write(place.folder().join("container.json"), "{\"version\":9}").unwrap();
        assert_eq!(standing(&engine), Standing::Unreadable);
        assert!(engine.stop_container(&name, Duration::ZERO).unwrap_err().to_string().contains("version 9"));
        assert!(engine.remove_container(&name, false).unwrap_err().to_string().contains("version 9"));
        engine.remove_container(&name, true).unwrap();
        assert!(engine.containers().unwrap().is_empty());
    }

    #[test]
    fn what_may_still_run_is_not_removed_below_its_feet() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let name = "web".parse().unwrap();
        let (place, _) = Containers::of(engine.store()).create(&record("web")).unwrap();
        let remembered = place.runtime().join("tarpon-0123456789ab");
        std::fs::create_dir(&remembered).unwrap();
        let error = engine.remove_container(&name, true).unwrap_err();
        assert!(error.cause().to_string().contains("/nonexistent/runc") && place.upper().exists(), "{error}");
        assert!(engine.stop_container(&name, Duration::ZERO).is_err());
        std::fs::remove_dir(remembered).unwrap();
        engine.remove_container(&name, true).unwrap();
    }

    #[test]
    fn a_container_in_the_foreground_has_no_log() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path());
        let attached = ContainerRecord { detached: false, ..record("web") };
        Containers::of(engine.store()).create(&attached).unwrap();
        let error =
            engine.container_logs(&"web".parse().unwrap(), &LogWish::default(), None, &mut |_| Ok(())).unwrap_err();
        assert!(error.cause().to_string().contains("only of detached containers"));
    }
}
