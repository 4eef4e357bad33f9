//! Images are written into OCI layouts whole or not at all, and existing content stays.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bytes::Bytes;
use common::{World, blob, blob_bytes};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tarpon_blob::{Fault as Class, SourceError};
use tarpon_oci::media_type::{OCI_CONFIG, OCI_MANIFEST};
use tarpon_oci::{Blob, Compression, Digest, Platform, Source};
use tarpon_registry::{AccessOptions, Destination, Error, open, open_destination};

fn source(directory: &Path, tag: &str) -> Source {
    format!("oci:{}{tag}", directory.display()).parse().unwrap()
}

fn destination(directory: &Path) -> Destination {
    open_destination(&source(directory, ""), &AccessOptions::default()).unwrap()
}

/// Pushes an image whose only layer is `layer`.
async fn push_image(destination: &Destination, layer: Blob, tag: Option<&str>) -> Digest {
    let platform = Platform::host();
    let config = format!(
        r#"{{"os":"linux","architecture":"{}","rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
        platform.architecture(),
        layer.digest
    );
    let config = destination.push_bytes(config.into()).await.unwrap();
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{{"mediaType":"{OCI_CONFIG}","digest":"{}","size":{}}},"layers":[{{"mediaType":"{}","digest":"{}","size":{}}}]}}"#,
        config.digest,
        config.size,
        Compression::None.layer_media_type(),
        layer.digest,
        layer.size
    );
    destination.push_manifest(OCI_MANIFEST, manifest.into(), tag).await.unwrap()
}

async fn resolved(directory: &Path, tag: &str) -> Result<Digest, Error> {
    let repository = open(&source(directory, tag), &AccessOptions::default()).await?;
    let image = repository.resolve(&Platform::host()).await?;
    repository.config(&image).await?;
    let layer = image.manifest.layers[0].blob();
    let bytes: Vec<Bytes> = repository.blobs().read(layer, 0..layer.size).await.unwrap().try_collect().await.unwrap();
    assert_eq!(Digest::of(&bytes.concat()), layer.digest);
    Ok(*image.manifest.digest())
}

/// Names in `directory` that a layout does not have.
fn leftovers(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !["blobs", "index.json", "oci-layout"].contains(&name.as_str())).collect()
}

#[tokio::test]
async fn an_image_that_was_pushed_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let to = destination(folder.path());
    let streamed = stream::iter(blob_bytes().chunks(999).map(Bytes::copy_from_slice).map(Ok).collect::<Vec<_>>());
    assert_eq!(to.push_stream(streamed.boxed()).await.unwrap(), blob());
    assert!(to.has_blob(blob()).await.unwrap());
    assert!(!to.has_blob(Blob { size: 1, ..blob() }).await.unwrap());
    let pushed = push_image(&to, blob(), to.tag()).await;
    assert_eq!(resolved(folder.path(), "").await.unwrap(), pushed);
    assert_eq!(resolved(folder.path(), ":latest").await.unwrap(), pushed);
    assert_eq!(leftovers(folder.path()), [] as [&str; 0]);
    let mode = fs::metadata(folder.path().join("index.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600);
}

#[tokio::test]
async fn a_tag_is_replaced_and_the_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let to = destination(folder.path());
    let layers = [to.push_bytes("one".into()).await.unwrap(), to.push_bytes("two".into()).await.unwrap()];
    let one = push_image(&to, layers[0], Some("a")).await;
    push_image(&to, layers[0], Some("b")).await;
    let two = push_image(&to, layers[1], Some("b")).await;
    assert_eq!(resolved(folder.path(), ":a").await.unwrap(), one);
    assert_eq!(resolved(folder.path(), ":b").await.unwrap(), two);
    let index = fs::read_to_string(folder.path().join("index.json")).unwrap();
    assert_eq!(index.matches("ref.name").count(), 2, "{index}");
    // An image without a name exists, and is found by its digest.
    let unnamed = push_image(&to, layers[1], None).await;
    assert_eq!(fs::read_to_string(folder.path().join("index.json")).unwrap(), index);
    let repository = open(&source(folder.path(), ""), &AccessOptions::default()).await.unwrap();
    assert_eq!(repository.manifest(&unnamed).await.unwrap().digest(), &unnamed);
}

#[tokio::test]
async fn a_copy_must_match_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let to = destination(folder.path());
    let from = World::open().repository.blobs();
    to.copy_blob(blob(), from.clone()).await.unwrap();
    let other = World::open();
    other.transport.script([tarpon_testkit::registry::Fault::FlipBit]);
    fs::remove_dir_all(folder.path().join("blobs")).unwrap();
    let error = to.copy_blob(blob(), other.repository.blobs()).await.unwrap_err();
    assert!(matches!(&error, Error::Source(error) if error.fault == Class::BadData), "{error:?}");
    assert_eq!(fs::read_dir(folder.path().join("blobs/sha256")).unwrap().count(), 0);
    assert_eq!(leftovers(folder.path()), [] as [&str; 0]);
}

#[tokio::test]
async fn a_source_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pieces = [Ok(Bytes::from_static(b"some")), Err(SourceError::new(Class::Timeout, "too slow"))];
    let error = destination(folder.path()).push_stream(stream::iter(pieces).boxed()).await.unwrap_err();
    assert!(matches!(error, Error::Source(_)), "{error:?}");
    assert_eq!(fs::read_dir(folder.path().join("blobs/sha256")).unwrap().count(), 0);
    assert_eq!(leftovers(folder.path()), [] as [&str; 0]);
}

#[tokio::test]
async fn an_unwritable_target_is_reported_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for archive in ["oci-archive:/x.tar", "docker-archive:/x.tar:a"] {
        let error = open_destination(&archive.parse().unwrap(), &AccessOptions::default()).map(drop).unwrap_err();
        assert!(matches!(error, Error::ReadOnly(_)) && error.to_string().contains("oci:DIR"), "{error}");
    }
    let file = folder.path().join("file");
    fs::write(&file, b"a file").unwrap();
    let error = destination(&file).push_bytes("x".into()).await.unwrap_err();
    assert!(matches!(error, Error::Push(_)) && error.to_string().contains("writing a blob"), "{error}");
    assert!(!error.to_string().contains('\n'));
    let odd = folder.path().join("odd");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("index.json"), b"[]").unwrap();
    let to = destination(&odd);
    let layer = to.push_bytes("one".into()).await.unwrap();
    push_image(&to, layer, None).await;
    let manifest = fs::read(odd.join("blobs/sha256").join(push_image(&to, layer, None).await.hex())).unwrap();
    let error = to.push_manifest(OCI_MANIFEST, manifest.into(), Some("a")).await.unwrap_err();
    assert!(error.to_string().contains("index.json"), "{error}");
    assert_eq!(fs::read(odd.join("index.json")).unwrap(), b"[]", "it is left as it was");
    let error = to.push_manifest(OCI_MANIFEST, "{}".into(), Some("a")).await.unwrap_err();
    assert!(matches!(error, Error::Manifest { .. }), "{error:?}");
}
