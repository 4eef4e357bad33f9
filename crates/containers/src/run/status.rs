//! [`ContainerStatus`]: the state of an existing container.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tarpon_store::Store;

use super::container_dir::{ContainerDir, container_dir_at};
use super::record::{ContainerRecord, ContainerState};
use tarpon_client::ContainerName;

/// The status of an existing container.
#[derive(Debug, Clone)]
pub struct ContainerStatus {
    /// The name.
    pub name: ContainerName,
    /// The record, or why it cannot be read.
    pub record: std::result::Result<ContainerRecord, String>,
    /// The lifecycle state.
    pub standing: Lifecycle,
    /// It runs, but the server that fetched its data has ended: data that is not local cannot be read until the container is restarted.
    pub source_lost: bool,
}

/// Whether a process may run on what is mounted at `mountpoint`, because it is the root of a container that has not ended. A container
/// whose keeper was killed may still run: its state is unknown.
pub fn may_run_on(store: &Store, mountpoint: &Path) -> bool {
    container_dir_at(store, mountpoint)
        .is_some_and(|(name, place)| place.is_mounted() && !ContainerStatus::of(name, &place).has_ended())
}

/// The lifecycle state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
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

impl Lifecycle {
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
            Err(_) => Lifecycle::Unreadable,
            Ok(ContainerState::Exited { code, .. }) if !is_held => Lifecycle::Exited(*code),
            Ok(ContainerState::Created) if is_held => Lifecycle::Starting,
            // This includes a container that has ended while its keeper still cleans up.
            Ok(_) if is_held => Lifecycle::Running,
            Ok(_) => Lifecycle::Lost,
        };
        Self { name, record, standing, source_lost: false }
    }

    /// Adds whether the source is lost, from the records of mounts, which are read after the container's own.
    pub(super) fn with_source(self, place: &ContainerDir, served: &HashSet<PathBuf>) -> Self {
        let runs = |record: &ContainerRecord| matches!(record.state, ContainerState::Running { .. });
        // A running container is mounted. It is unmounted only after its record states that it has ended.
        let source_lost = self.standing == Lifecycle::Running
            && self.record.as_ref().is_ok_and(runs)
            && !served.contains(&place.rootfs())
            && place.record().is_ok_and(|now| runs(&now));
        Self { source_lost, ..self }
    }

    /// Whether the directory still belongs to this container.
    pub(super) fn is_at(&self, place: &ContainerDir) -> bool {
        self.record.as_ref().map_or_else(|_| place.exists(), |record| place.is_of(&record.id))
    }

    /// Whether it has ended and is settled.
    pub fn has_ended(&self) -> bool {
        matches!(self.standing, Lifecycle::Exited(_))
    }
}
