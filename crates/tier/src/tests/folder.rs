//! A tier in a folder, as it is opened for a `file://` location.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tarpon_blob::BlobSource as _;
use tarpon_testkit::source::MemorySource;
use tempfile::TempDir;

use super::{blob, bytes, layer, proof};
use crate::{ErrorKind, LayerState, Tier, TierLocation, TierOptions, TieredBlobs};

/// Enough for any test on a slow machine.
const LONG: Duration = Duration::from_secs(120);

fn open(folder: &Path) -> crate::Result<Arc<Tier>> {
    Tier::open(&TierLocation::of_folder(folder.to_owned()).unwrap(), &TierOptions::default())
}

/// Keeps a layer with an index, as a host that streams it.
async fn keep(tier: &Arc<Tier>, blob: &Bytes) {
    let layer = layer(tier, blob);
    let claim = layer.claim(&LayerState::default()).await.unwrap().unwrap();
    let mut upload = layer.upload(&claim);
    for piece in blob.chunks(256 << 10) {
        upload.push(&Bytes::copy_from_slice(piece)).await;
    }
    upload.finish(&proof(blob)).await.unwrap();
    layer.keep_index(&tarpon_oci::Verified::seal(Bytes::from_static(b"index"))).await.unwrap();
    layer.note_use(&layer.look().await.unwrap()).await;
    claim.release().await;
}

/// All files below a folder, by their names.
fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_one_host_keeps_in_a_folder_another_one_reads() {
    for size in [100_000, 9 << 20] {
        // A name that a URL writes in another way.
        let (folder, blob_bytes) = (TempDir::with_prefix("a b#1%41é").unwrap(), bytes(size));
        keep(&open(folder.path()).unwrap(), &blob_bytes).await;

        let tier = open(folder.path()).unwrap();
        let layer = layer(&tier, &blob_bytes);
        let state = layer.look().await.unwrap();
        assert_eq!((state.has_blob, state.indexes.len(), &state.claim), (true, 1, &None));
        assert_eq!(&layer.index(state.indexes[0]).await.unwrap()[..], b"index");
        let source = Arc::new(MemorySource::new([]));
        let blobs = TieredBlobs::new(tier.clone(), source.clone());
        for range in [0..blob_bytes.len(), 70_000..70_001, blob_bytes.len() - 1..blob_bytes.len()] {
            let pieces = blobs.read(blob(&blob_bytes), range.start as u64..range.end as u64).await.unwrap();
            assert!(pieces.try_collect::<Vec<_>>().await.unwrap().concat() == blob_bytes[range]);
        }
        assert_eq!(source.requests(), []);

        let below = folder.path().join("v1/layers").join(blob(&blob_bytes).digest.hex());
        let index = format!("index-{}", tarpon_oci::Digest::of(b"index").hex());
        assert_eq!(files(&below), ["blob".to_owned(), index, "used".to_owned()]);
    }
}

#[tokio::test]
async fn the_rest_of_a_file_that_becomes_shorter_during_a_read_comes_from_the_source() {
    let (folder, blob_bytes) = (tempfile::tempdir().unwrap(), bytes(2 << 20));
    let tier = open(folder.path()).unwrap();
    keep(&tier, &blob_bytes).await;
    let source = Arc::new(MemorySource::new([blob_bytes.clone()]));
    let blobs = TieredBlobs::new(tier, source.clone());
    let mut pieces = blobs.read(blob(&blob_bytes), 0..2 << 20).await.unwrap();
    let first = pieces.try_next().await.unwrap().unwrap();
    let path = folder.path().join("v1/layers").join(blob(&blob_bytes).digest.hex()).join("blob");
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
    let rest = pieces.try_collect::<Vec<_>>().await.unwrap().concat();
    assert!([&first[..], &rest].concat() == blob_bytes);
    assert_eq!(source.requests(), [(blob(&blob_bytes).digest, 1 << 20..2 << 20)]);
}

#[tokio::test]
async fn a_folder_that_does_not_exist_is_an_error_and_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = open(&missing).unwrap_err();
    assert_eq!(
        (error.kind(), &*error.to_string()),
        (ErrorKind::Missing, "cannot open the tier: its folder does not exist")
    );
    fs::write(&missing, "a file").unwrap();
    assert!(open(&missing).is_err());
}

#[tokio::test]
async fn a_folder_that_disappears_has_no_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let tier = open(folder.path()).unwrap();
    fs::remove_dir(folder.path()).unwrap();
    let layer = layer(&tier, &bytes(10));
    assert!(!layer.look().await.unwrap().has_blob);
    assert_eq!(tier.usage().await.unwrap().layers, []);
}

/// A folder in which opening the blob of a layer never returns, as in one of a server that is away.
fn hanging(blob_bytes: &Bytes) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let layer = folder.path().join("v1/layers").join(blob(blob_bytes).digest.hex());
    fs::create_dir_all(&layer).unwrap();
    let pipe = layer.join("blob");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    (folder, pipe)
}

/// Reads 40 times from such a folder, and uses a thread of the program after each; whether the tier rests then.
fn read_often(folder: &Path, blob_bytes: &Bytes) -> bool {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let tier = open(folder).unwrap();
        let blobs = TieredBlobs::new(tier.clone(), Arc::new(MemorySource::new([blob_bytes.clone()])));
        for _ in 0..40 {
            let pieces = blobs.read(blob(blob_bytes), 0..10).await.unwrap();
            assert!(pieces.try_collect::<Vec<_>>().await.unwrap().concat() == blob_bytes[..10]);
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            assert!(tier.is_resting().is_some());
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        tier.is_resting().is_none()
    })
}

#[test]
fn a_folder_that_hangs_costs_no_thread_of_the_program_and_does_not_keep_it_from_ending() {
    let blob_bytes = bytes(10);
    let (folder, pipe) = hanging(&blob_bytes);
    let (sender, receiver) = mpsc::channel();
    let path = folder.path().to_owned();
    std::thread::spawn(move || sender.send(read_often(&path, &blob_bytes)));
    let ended = receiver.recv_timeout(LONG);
    // Lets the calls return.
    let _open = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    assert_eq!(ended, Ok(true));
}
