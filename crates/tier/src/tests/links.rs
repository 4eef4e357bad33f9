//! Symbolic links in the folder of a tier, and files that no tier has: neither is read, written nor removed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;
use object_store::path::Path as Name;
use tarpon_blob::BlobSource as _;
use tarpon_oci::Verified;
use tarpon_testkit::source::MemorySource;
use tempfile::TempDir;

use super::{blob, bytes, layer, proof};
use crate::{LayerState, Tier, TierLocation, TierOptions, TieredBlobs};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A tier in a folder, and a folder elsewhere that has a file of each name that a tier has, as old as files become.
struct Setup {
    tier: Arc<Tier>,
    folder: TempDir,
    elsewhere: TempDir,
    bytes: Bytes,
}

impl Setup {
    fn new() -> Self {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let location = TierLocation::of_folder(folder.path().to_owned()).unwrap();
        let tier = Tier::open(&location, &TierOptions::default()).unwrap();
        let setup = Self { tier, folder, elsewhere, bytes: bytes(1_000) };
        setup.fill(setup.elsewhere.path());
        setup
    }

    /// Makes files of these names, with the bytes of the blob.
    fn fill(&self, folder: &Path) {
        for name in names() {
            let file = fs::File::create(folder.join(name)).unwrap();
            std::io::Write::write_all(&mut &file, &self.bytes).unwrap();
            file.set_modified(SystemTime::now() - 400 * DAY).unwrap();
        }
    }

    fn layers(&self) -> PathBuf {
        self.folder.path().join("v1/layers")
    }

    fn layer(&self) -> PathBuf {
        self.layers().join(blob(&self.bytes).digest.hex())
    }

    /// The files elsewhere, which nothing may change.
    fn assert_elsewhere_is_whole(&self, place: &Path) {
        for name in names() {
            assert!(fs::read(place.join(&name)).unwrap() == self.bytes, "{name}");
        }
        assert_eq!(fs::read_dir(place).unwrap().count(), names().len());
    }

    /// Does all that a tier can do; nothing is found, and nothing is written.
    async fn assert_nothing_is_there(&self) {
        let shared = layer(&self.tier, &self.bytes);
        let state = shared.look().await.unwrap();
        assert_eq!((state.has_blob, &*state.indexes, &state.claim), (false, &[][..], &None));
        let usage = self.tier.usage().await.unwrap();
        assert_eq!(usage.layers, []);
        self.tier.collect_garbage(&usage, DAY, false).await.unwrap();
        self.tier.collect_leftovers(DAY, false).await.unwrap();
        let source = Arc::new(MemorySource::new([self.bytes.clone()]));
        let read = TieredBlobs::new(self.tier.clone(), source.clone()).read(blob(&self.bytes), 0..10).await.unwrap();
        read.try_collect::<Vec<_>>().await.unwrap();
        assert_eq!(source.requests().len(), 1, "the blob is not read through a link");
        assert_eq!(self.tier.is_resting(), None);
    }
}

/// The names of objects of a layer.
fn names() -> Vec<String> {
    let hex = blob(&bytes(1_000)).digest.hex();
    vec!["blob".into(), "used".into(), format!("index-{hex}"), "claim-0".into(), "blob#1".into(), "notes".into()]
}

#[tokio::test]
async fn the_folder_of_a_layer_that_is_a_link_is_not_followed() {
    let setup = Setup::new();
    fs::create_dir_all(setup.layers()).unwrap();
    symlink(setup.elsewhere.path(), setup.layer()).unwrap();
    setup.assert_nothing_is_there().await;
    let shared = layer(&setup.tier, &setup.bytes);
    assert!(shared.keep_index(&Verified::seal(Bytes::from_static(b"x"))).await.is_err());
    let error = shared.claim(&LayerState::default()).await.unwrap_err().to_string();
    assert!(error.ends_with("is a symbolic link, which no tier has: remove it"), "{error}");
    assert_eq!(setup.tier.is_resting(), None, "other layers are not affected");
    setup.assert_elsewhere_is_whole(setup.elsewhere.path());
}

#[tokio::test]
async fn a_folder_above_the_layers_that_is_a_link_is_not_followed() {
    for link in ["v1", "v1/layers"] {
        let setup = Setup::new();
        let hex = blob(&setup.bytes).digest.hex();
        let behind = setup.elsewhere.path().join("x");
        let place = if link == "v1" { behind.join("layers").join(&hex) } else { behind.join(&hex) };
        fs::create_dir_all(&place).unwrap();
        setup.fill(&place);
        let link = setup.folder.path().join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&behind, link).unwrap();
        setup.assert_nothing_is_there().await;
        assert!(layer(&setup.tier, &setup.bytes).claim(&LayerState::default()).await.is_err());
        setup.assert_elsewhere_is_whole(&place);
    }
}

#[tokio::test]
async fn an_object_that_is_a_link_is_neither_read_nor_written_nor_removed() {
    let setup = Setup::new();
    fs::create_dir_all(setup.layer()).unwrap();
    for name in names() {
        symlink(setup.elsewhere.path().join(&name), setup.layer().join(&name)).unwrap();
    }
    setup.assert_nothing_is_there().await;
    for name in names().into_iter().filter(|name| !name.contains('#')) {
        let path = Name::from(format!("v1/layers/{}/{name}", blob(&setup.bytes).digest.hex()));
        assert!(setup.tier.store().put(&path, "x".into()).await.is_err(), "{name}");
        assert!(setup.tier.store().put_multipart(&path).await.is_err(), "{name}");
        assert!(setup.tier.store().delete(&path).await.is_err(), "{name}");
        assert!(setup.layer().join(&name).is_symlink(), "{name}");
    }
    setup.assert_elsewhere_is_whole(setup.elsewhere.path());
}

#[tokio::test]
async fn a_link_beside_a_layer_does_not_keep_the_layer_from_being_removed() {
    let setup = Setup::new();
    fs::create_dir_all(setup.layer()).unwrap();
    setup.fill(&setup.layer());
    let other = setup.layers().join(tarpon_oci::Digest::of(b"other").hex());
    symlink(setup.elsewhere.path(), &other).unwrap();
    symlink(setup.elsewhere.path().join("blob"), setup.layer().join("claim-7")).unwrap();
    let usage = setup.tier.usage().await.unwrap();
    assert_eq!((usage.layers.len(), usage.bytes()), (1, 2_000));
    setup.tier.collect_garbage(&usage, DAY, false).await.unwrap();
    let mut left: Vec<_> = fs::read_dir(setup.layer()).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["blob#1", "claim-7", "notes"], "a file that no tier has stays");
    assert!(other.is_symlink());
    setup.assert_elsewhere_is_whole(setup.elsewhere.path());
}

#[tokio::test]
async fn a_layer_in_a_folder_is_written_below_folders_that_do_not_exist_yet() {
    let setup = Setup::new();
    let shared = layer(&setup.tier, &setup.bytes);
    let claim = shared.claim(&LayerState::default()).await.unwrap().unwrap();
    let mut upload = shared.upload(&claim);
    upload.push(&setup.bytes).await;
    upload.finish(&proof(&setup.bytes)).await.unwrap();
    assert!(shared.look().await.unwrap().has_blob);
    claim.release().await;
}
