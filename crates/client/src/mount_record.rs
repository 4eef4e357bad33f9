//! [`SavedMount`]: the description of a mount in its record in the store, from which the next server can mount it again.

use serde::{Deserialize, Serialize};
use tarpon_images::Access;
use tarpon_mount::{KernelMount, Mode, Mounted};
use tarpon_oci::Digest;
use tarpon_store::{Mount, MountRecord, Store, StoreError};

use crate::client::Client;
use crate::container_name::ContainerName;
use crate::protocol::{MountRequest, MountStatus, PodmanImage, ScrubStatus};
use crate::{ErrorKind, Result, ResultExt};

/// The text of a mount record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedMount {
    /// The mount request, without secrets.
    pub request: MountRequest,
    /// The mode of the mount; `None` until it is mounted.
    pub mode: Option<Mode>,
    /// Why it could not be mounted again.
    pub problem: Option<String>,
    /// The mount as the kernel knows it; `None` until it is mounted.
    #[serde(default)]
    pub kernel: Option<KernelMount>,
}

impl SavedMount {
    /// The request without its credentials, not mounted yet.
    pub fn new(request: &MountRequest) -> Self {
        let credentials_lost = request.credentials_lost || request.access.creds.is_some();
        let access = Access { creds: None, ..request.access.clone() };
        Self {
            request: MountRequest { access, credentials_lost, ..request.clone() },
            mode: None,
            problem: None,
            kernel: None,
        }
    }

    /// Parses a record. `None` if it is of another version.
    pub fn read(record: &MountRecord) -> Option<Self> {
        serde_json::from_str(&record.request).ok()
    }

    /// Writes it as the record of the mount, owned by this process.
    pub fn write(&self, store: &Store) -> std::result::Result<(), StoreError> {
        let request = &self.request;
        store.record_mount(&request.mountpoint, &request.manifest, &request.image, &self.text()).map(drop)
    }

    /// As [`SavedMount::write`], once it is mounted. Without this, the next server can only mount it again.
    pub fn write_mounted(mut self, mounted: &Mounted, store: &Store) {
        (self.mode, self.kernel) = (Some(mounted.mode()), mounted.kernel_mount());
        if let Err(error) = self.update(store) {
            tracing::debug!(%error, "the record does not describe how it is mounted");
        }
    }

    /// As [`SavedMount::write`], in place of the record that this process wrote before. That protects the image already, so this does not
    /// wait for an eviction.
    fn update(&self, store: &Store) -> std::result::Result<(), StoreError> {
        let request = &self.request;
        match store.update_mount_record(&request.mountpoint, &request.manifest, &self.text())? {
            Some(_) => Ok(()),
            // It is one of an earlier server.
            None => self.write(store),
        }
    }

    fn text(&self) -> String {
        // The request is JSON on the wire, so serialization cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether a live server serves the mount.
pub fn is_served(mount: &Mount) -> bool {
    mount.live && SavedMount::read(&mount.record).is_some_and(|saved| saved.problem.is_none())
}

/// The status of a mount whose server is dead. A record that cannot be read leaves fields of the status empty.
pub fn dead(store: &Store, record: &MountRecord) -> MountStatus {
    let image = store.of_mount(record).image(&record.image).ok().flatten();
    let saved = SavedMount::read(record);
    let mode = saved.as_ref().map(|saved| match saved.mode {
        Some(mode) => mode.to_string(),
        None => saved.request.mode.to_string(),
    });
    let problem = saved.as_ref().and_then(|saved| saved.problem.clone());
    let request = saved
        .map(|saved| saved.request)
        .unwrap_or_else(|| MountRequest::new(record.reference.clone(), record.image, record.mountpoint.clone()));
    MountStatus {
        image: record.reference.clone(),
        manifest: record.image,
        mountpoint: record.mountpoint.clone(),
        mode: mode.unwrap_or_else(|| "unknown".to_owned()),
        podman: request.podman.as_ref().and_then(|podman| {
            let id = record.mountpoint.file_name()?.to_str().and_then(|id| Digest::from_hex(id).ok())?;
            Some(PodmanImage { id, names: podman.names.clone() })
        }),
        container: ContainerName::of_mount(store, &record.mountpoint).map(String::from),
        fallbacks: Vec::new(),
        problem,
        image_bytes: image.as_ref().map_or(0, tarpon_store::ImageRecord::compressed_size),
        prepared_bytes: image.map_or(0, |image| image.prepared_bytes),
        ..described(&request)
    }
}

/// The status of a mount as far as the request defines it.
pub fn described(request: &MountRequest) -> MountStatus {
    MountStatus {
        image: request.image.clone(),
        manifest: request.manifest,
        mountpoint: request.mountpoint.clone(),
        mode: request.mode.to_string(),
        writable: request.writable.clone(),
        podman: None,
        container: None,
        layers: request.layers.clone(),
        verification: Vec::new(),
        backfill: None,
        fallbacks: request.fallbacks.clone(),
        problem: None,
        damage: None,
        credentials_lost: request.credentials_lost,
        alive: false,
        server: 0,
        image_bytes: 0,
        prepared_bytes: 0,
        fetched_bytes: 0,
        requests: 0,
        failed_reads: 0,
        last_error: None,
        endpoints: Vec::new(),
        metrics: None,
        scrub: None,
        counters: serde_json::Value::Null,
    }
}

impl Client {
    /// All mounts of this store: those of the running server, else those left by a dead one.
    pub fn mounts(&self) -> Result<Vec<MountStatus>> {
        if let Some(mounts) = self.status()? {
            return Ok(mounts);
        }
        let mounts = self.store().mounts();
        let mounts = mounts.context(ErrorKind::Store, "read the records of mounts")?;
        let scrub = Some(ScrubStatus::of_store(self.store())).filter(ScrubStatus::is_known);
        Ok(mounts.iter().map(|mount| MountStatus { scrub, ..dead(self.store(), &mount.record) }).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, SystemTime};

    use rustix::fs::{FlockOperation, flock};
    use tarpon_store::{Clock, StoreConfig};

    use super::*;
    use crate::protocol::Backfill;

    fn request() -> MountRequest {
        MountRequest {
            access: Access { creds: Some("alice:0pen-sesame".into()), ..Access::default() },
            backfill: Backfill::Idle,
            ..MountRequest::new("localhost:5000/a:v1".into(), Digest::of(b"m"), "/mnt".into())
        }
    }

    #[test]
    fn a_record_holds_no_secret_but_notes_that_there_was_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), tarpon_store::StoreConfig::default()).unwrap();
        SavedMount { mode: Some(Mode::Native), ..SavedMount::new(&request()) }.write(&store).unwrap();
        let record = store.mounts().unwrap().remove(0).record;
        assert!(!record.request.contains("sesame"));
        let status = dead(&store, &record);
        assert!(status.credentials_lost && !status.alive);
        assert_eq!(status.mode, "native", "as it was mounted, not as it was asked for");
    }

    /// A clock that advances by a second with each reading: no wait by it takes long.
    #[derive(Debug, Default)]
    struct HurriedClock(AtomicU64);

    impl Clock for HurriedClock {
        fn wall(&self) -> SystemTime {
            SystemTime::now()
        }

        fn steady(&self) -> Duration {
            Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
        }
    }

    #[test]
    fn the_record_of_a_mount_that_was_made_is_written_without_a_wait_for_an_eviction() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(HurriedClock::default());
        let config = StoreConfig { clock: clock.clone(), ..StoreConfig::default() };
        let store = Store::open(folder.path(), config).unwrap();
        let asked = SavedMount::new(&request());
        let mounted = SavedMount { mode: Some(Mode::Fuse), ..asked.clone() };
        let recorded = || SavedMount::read(&store.mounts().unwrap().remove(0).record).unwrap().mode;
        mounted.update(&store).unwrap();
        assert_eq!(recorded(), Some(Mode::Fuse), "there was none");
        asked.write(&store).unwrap();
        assert_eq!(recorded(), None);
        // An eviction that does not end.
        let lock = std::fs::File::create(store.run_folder().join("eviction.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let before = clock.0.load(Ordering::Relaxed);
        mounted.update(&store).unwrap();
        let looks = clock.0.load(Ordering::Relaxed) - before;
        assert!(looks < 5, "it does not wait: {looks} looks at the clock");
        assert_eq!(recorded(), Some(Mode::Fuse));
    }

    #[test]
    fn a_record_of_before_images_were_completed_is_one_of_a_mount_that_is_not() {
        let saved = SavedMount::new(&request());
        let mut text = serde_json::to_value(&saved).unwrap();
        for name in ["backfill", "backfill_rate"] {
            assert!(text["request"].as_object_mut().unwrap().remove(name).is_some());
        }
        let read: SavedMount = serde_json::from_value(text).unwrap();
        assert_eq!(read.request, MountRequest { backfill: Backfill::Off, ..saved.request });
    }

    #[test]
    fn a_record_that_cannot_be_read_is_still_described() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), tarpon_store::StoreConfig::default()).unwrap();
        let record = store.record_mount("/mnt".as_ref(), &Digest::of(b"m"), "a", "{}").unwrap();
        assert_eq!((dead(&store, &record).mode.as_str(), SavedMount::read(&record).is_none()), ("unknown", true));
    }
}
