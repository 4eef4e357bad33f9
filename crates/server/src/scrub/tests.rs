//! The scrub thread: it starts, ends with its server, and its successor continues.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tarpon_blob::ObjectStore as _;
use tarpon_client::Client;
use tarpon_images::Images;
use tarpon_oci::{Digest, Hasher, Verified};
use tarpon_store::SCRUB_RATE;
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::*;
use crate::ServerSetup;
use crate::mount_table::MountTable;

/// Longest wait for a thread, which normally takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

struct ScrubFixture {
    folder: TempDir,
}

impl ScrubFixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn images(&self) -> Images {
        Images::open(&self.folder.path().join("store")).unwrap()
    }

    fn mounts(&self) -> Arc<MountTable> {
        Arc::new(MountTable::alone(&ServerSetup::of(&self.images()), Handle::current()).unwrap())
    }

    fn put(&self, bytes: &[u8]) -> Digest {
        use std::io::Write as _;
        let (object, mut hasher) = (Digest::of(bytes), Hasher::new());
        hasher.update(bytes);
        let mut writer = self.images().store().writer(bytes.len() as u64).unwrap();
        writer.write_all(bytes).unwrap();
        writer.publish(Verified::check_stream(&object, hasher).unwrap()).unwrap();
        object
    }

    fn damage(&self, object: &Digest) {
        let hex = object.hex();
        let path = self.images().store().objects_folder().join(&hex[..2]).join(&hex[2..]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(path, "damage").unwrap();
    }
}

async fn until(mounts: &Arc<MountTable>, is_so: impl FnMut(&ScrubStatus) -> bool) -> ScrubStatus {
    let mut status = mounts.scrub.watch();
    let found = tokio::time::timeout(PATIENCE, status.wait_for(is_so)).await;
    *found.expect("in time").expect("as long as the server is there")
}

async fn stop(mounts: &Arc<MountTable>) -> bool {
    let mounts = mounts.clone();
    tokio::task::spawn_blocking(move || {
        mounts.scrub.stop();
        mounts.scrub.0.state.lock().is_there
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_that_waits_for_hours_ends_with_its_server_and_the_next_one_goes_on() {
    let fixture = ScrubFixture::new();
    let objects: Vec<_> = (0..10_u8).map(|seed| fixture.put(&[seed; 1000])).collect();
    let mounts = fixture.mounts();
    assert_eq!(mounts.scrub.status(), None, "there never was any");
    mounts.begin_scrub(NonZeroU64::MIN).unwrap();
    let status = until(&mounts, |status| status.running).await;
    assert_eq!((status.rate, status.last), (Some(NonZeroU64::MIN), None));
    assert!(!stop(&mounts).await, "the thread has ended");
    let status = Client::new(fixture.images().store().clone(), Vec::new()).scrub_status().unwrap().unwrap();
    assert!(!status.running && status.under_way.is_some() && status.last.is_none(), "{status:?}");
    fixture.damage(&objects[3]);
    let next = fixture.mounts();
    next.begin_scrub(NonZeroU64::MAX).unwrap();
    let status = until(&next, |status| status.last.is_some() && !status.running).await;
    let last = status.last.unwrap();
    assert_eq!((last.objects, last.damaged, status.under_way), (10, 1, None));
    assert!(!stop(&next).await);
    assert!(next.begin_scrub(SCRUB_RATE).is_ok() && !stop(&next).await, "none begins after the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_ends_when_its_server_is_dropped() {
    let fixture = ScrubFixture::new();
    fixture.put(b"object");
    let mounts = fixture.mounts();
    mounts.begin_scrub(NonZeroU64::MIN).unwrap();
    let mut status = mounts.scrub.watch();
    drop(mounts);
    let ended = async { while status.changed().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the thread lets go of its status");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_that_is_not_due_is_not_begun() {
    let fixture = ScrubFixture::new();
    fixture.put(b"object");
    let (first, second) = (fixture.mounts(), fixture.mounts());
    first.begin_scrub(NonZeroU64::MAX).unwrap();
    let last = until(&first, |status| status.last.is_some()).await.last;
    second.begin_scrub(NonZeroU64::MAX).unwrap();
    assert!(!stop(&second).await);
    assert_eq!(fixture.images().store().scrub_record().last, last);
}
