//! Indexes of an image in a layout, from a reader's perspective.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tarpon_images::index::artifact::{self, Indexed};
use tarpon_images::progress::{Progress, Silent};
use tarpon_images::{Access, ImageRequest, Images, IndexChoice, LockFile, access};
use tarpon_layer::Allowance;
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Digest, IndexLock, NewDescriptor, Source};
use tarpon_policy::SigningKey;
use tarpon_testkit::layers::{Dialect, ImageBuilder, Item, Layer, tar};
use tarpon_trace::{Header, Touch, Trace};
use tempfile::TempDir;

use super::*;
use crate::ErrorKind;

const FILE: u64 = 400_000;

/// A new key.
pub(crate) fn key() -> SigningKey {
    let random = ring::rand::SystemRandom::new();
    let pkcs8 =
        ring::signature::EcdsaKeyPair::generate_pkcs8(&ring::signature::ECDSA_P256_SHA256_ASN1_SIGNING, &random);
    let text = STANDARD.encode(pkcs8.unwrap().as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    SigningKey::from_pem(pem.as_bytes(), None).unwrap()
}

/// Its public key in PEM.
pub(crate) fn public_key(key: &SigningKey) -> String {
    let text = STANDARD.encode(key.public_key().unwrap().into_der());
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

/// A layout with an image of one plain layer, with a small and a large file.
struct IndexFixture {
    folder: TempDir,
}

fn large() -> Vec<u8> {
    (0..FILE).map(|n| (n % 251) as u8).collect()
}

impl IndexFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let items = [Item::file("small", "a few bytes"), Item::file("large", large())];
        let layer = Layer::plain(&tar(&items, Dialect::Pax), tarpon_oci::Compression::Gzip);
        for (path, bytes) in ImageBuilder::new().layer(layer).build().layout("v1") {
            let path = folder.path().join("layout").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        Self { folder }
    }

    /// The images of a store of this name.
    fn images(&self, store: &str) -> Images {
        Images::open(&self.folder.path().join(store)).unwrap()
    }

    fn request(&self) -> ImageRequest {
        let text = format!("oci:{}:v1", self.folder.path().join("layout").display());
        ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap())
    }

    /// The index made with a trace of a start that touched the middle of the large file.
    async fn cut(&self) -> ImageIndexArtifact {
        let object = Digest::of(&large());
        let touch = Touch {
            object,
            size: FILE,
            range: 100_000..120_000,
            at: Duration::ZERO,
            layer: None,
            path: None,
            from: None,
            stall: Duration::ZERO,
        };
        let header = Header::new("", object, "default");
        let trace = Trace { header, touches: vec![touch] };
        make_index(&self.images("maker"), &self.request(), &[trace], &Silent).await.unwrap()
    }

    fn layout(&self) -> Source {
        Source::OciLayout { directory: self.folder.path().join("layout"), tag: None }
    }

    async fn publish(&self, index: &ImageIndexArtifact) {
        publish_index(index, &self.layout(), &Access::default(), None).await.unwrap();
    }

    async fn check(&self, images: &Images, index: &ImageIndexArtifact) -> IndexCheck {
        check_index(images, &self.request(), &index.index_digest, &Silent).await.unwrap()
    }
}

/// The index as published with other claims about the layers.
fn altered(index: &ImageIndexArtifact, alter: impl FnOnce(&mut [Indexed])) -> ImageIndexArtifact {
    let mut layers = artifact::read(&index.blob, |_| true, &Allowance::default()).unwrap();
    alter(&mut layers);
    let blob = artifact::blob(&layers).unwrap();
    let honest = tarpon_oci::Artifact::parse(tarpon_oci::Verified::seal(index.manifest.clone())).unwrap();
    let subject = honest.subject.unwrap();
    let subject = NewDescriptor::new(OCI_MANIFEST, subject.blob());
    let manifest = artifact::manifest(&blob, [], subject, None).unwrap();
    ImageIndexArtifact { index_digest: *manifest.digest(), manifest: manifest.into_inner(), blob, ..index.clone() }
}

/// The middle one of the chunks of the large file.
fn middle(layers: &mut [Indexed]) -> &mut tarpon_layer::Chunk {
    let index = &mut layers[0].index;
    let large = index.entries.iter().find_map(|entry| match &entry.node {
        tarpon_layer::Node::File(content) if content.size == FILE => Some(**content),
        _ => None,
    });
    let large = large.unwrap();
    assert!(large.chunk_count >= 3, "cut around what was touched");
    &mut index.chunks[large.first_chunk as usize + 1]
}

#[tokio::test]
async fn an_index_that_is_cut_for_a_trace_is_right_about_the_layers() {
    let fixture = IndexFixture::new();
    let index = fixture.cut().await;
    fixture.publish(&index).await;
    let check = fixture.check(&fixture.images("checker"), &index).await;
    assert_eq!((check.layers, check.differences, check.unchecked), (1, Vec::new(), Vec::new()));
}

#[tokio::test]
async fn an_index_that_cannot_be_signed_is_not_found() {
    let fixture = IndexFixture::new();
    let index = fixture.cut().await;
    let published = publish_index(&index, &fixture.layout(), &Access::default(), Some(&key())).await;
    assert_eq!(published.unwrap_err().kind, ErrorKind::Refused, "layouts have no signatures");
    // Opened again each time: a layout that is open does not change.
    let found = async || {
        let repository = access::open_later(&fixture.request().text, &Access::default()).unwrap();
        newest::newest(&repository, &index.manifest_digest).await.unwrap().index.is_some()
    };
    assert!(!found().await);
    fixture.publish(&index).await;
    assert!(found().await);
}

#[tokio::test]
async fn a_wrong_digest_of_a_piece_is_named() {
    let fixture = IndexFixture::new();
    let honest = fixture.cut().await;
    let index = altered(&honest, |layers| middle(layers).digest = Digest::of(b"forged"));
    fixture.publish(&index).await;
    let check = fixture.check(&fixture.images("checker"), &index).await;
    assert_eq!(check.differences.len(), 1);
    assert!(check.differences[0].ends_with("the index is wrong about /large"), "{:?}", check.differences);
}

#[tokio::test]
async fn a_piece_of_an_object_that_the_store_lost_is_reported_as_unchecked() {
    let fixture = IndexFixture::new();
    let index = fixture.cut().await;
    fixture.publish(&index).await;
    let checker = fixture.images("checker");
    fixture.check(&checker, &index).await;
    let hex = Digest::of(&large()).hex();
    std::fs::remove_file(checker.store().objects_folder().join(&hex[..2]).join(&hex[2..])).unwrap();
    let check = fixture.check(&checker, &index).await;
    assert_eq!((check.differences.len(), check.unchecked.len()), (0, 1));
    assert!(check.unchecked[0].contains("/large"), "{:?}", check.unchecked);
}

/// Collects the messages to the user.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

impl IndexFixture {
    /// The outcome for the image's layer in a new store with this lock, and the messages to the user.
    async fn by_lock(&self, store: &str, lock: &IndexLock) -> (String, Vec<String>) {
        let request = ImageRequest { index: IndexChoice::Locked(Arc::new(lock.clone())), ..self.request() };
        let notes = Notes::default();
        let prepared = self.images(store).prepare(&request, &notes).await.unwrap();
        (prepared.record.layers[0].verification.to_string(), notes.0.into_inner().unwrap())
    }
}

#[tokio::test]
async fn an_index_that_the_lock_pins_is_used_as_one_that_the_user_names() {
    let fixture = IndexFixture::new();
    let index = fixture.cut().await;
    fixture.publish(&index).await;
    let file = LockFile::at(fixture.folder.path().join("team.lock"));
    file.check().unwrap();
    file.pin(&index.image, index.manifest_digest, index.index_digest).unwrap();
    let lock = file.read().unwrap();
    assert_eq!(lock.index_of(&index.manifest_digest), Some(&index.index_digest));
    let (verification, notes) = fixture.by_lock("reader", &lock).await;
    assert_eq!(verification, "index-pinned");
    assert_eq!(notes, [format!("the index {} is used, as the lock file pins it", index.index_digest)]);
}

#[tokio::test]
async fn a_lock_that_does_not_name_the_image_changes_nothing_and_one_that_names_another_index_is_not_enough() {
    let fixture = IndexFixture::new();
    let index = fixture.cut().await;
    fixture.publish(&index).await;
    let mut lock = IndexLock::default();
    lock.pin(Digest::of(b"another image"), "another", index.index_digest);
    assert_eq!(fixture.by_lock("without", &lock).await, ("diffID-verified".to_owned(), Vec::new()));
    let other = Digest::of(b"not published");
    lock.pin(index.manifest_digest, "app:v1", other);
    let (verification, notes) = fixture.by_lock("other", &lock).await;
    assert_eq!(verification, "diffID-verified", "streamed, and not by the index that is there");
    assert!(notes.iter().any(|note| note.starts_with(&format!("the index {other} is not used: "))), "{notes:?}");
}

#[tokio::test]
async fn a_pin_replaces_that_of_its_image_and_leaves_the_others() {
    let fixture = IndexFixture::new();
    let file = LockFile::at(fixture.folder.path().join("team.lock"));
    let first = fixture.cut().await;
    let second = ImageIndexArtifact { manifest_digest: Digest::of(b"other"), ..first.clone() };
    let again = ImageIndexArtifact { index_digest: Digest::of(b"made anew"), ..first.clone() };
    for index in [&first, &second, &again] {
        file.pin(&index.image, index.manifest_digest, index.index_digest).unwrap();
    }
    let lock = file.read().unwrap();
    assert_eq!(lock.index_of(&first.manifest_digest), Some(&again.index_digest));
    assert_eq!(lock.index_of(&second.manifest_digest), Some(&first.index_digest));
}

#[test]
fn pins_that_are_made_at_the_same_time_are_all_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = LockFile::at(folder.path().join("team.lock"));
    let images: Vec<Digest> = (0..8_u8).map(|number| Digest::of(&[number])).collect();
    std::thread::scope(|scope| {
        for manifest_digest in images.iter().copied() {
            let index = ImageIndexArtifact {
                image: "app".to_owned(),
                manifest_digest,
                index_digest: manifest_digest,
                index_size: 0,
                layers_size: 0,
                layers: Vec::new(),
                boots: Vec::new(),
                manifest: Bytes::new(),
                blob: Bytes::new(),
            };
            let file = &file;
            scope.spawn(move || file.pin(&index.image, index.manifest_digest, index.index_digest).unwrap());
        }
    });
    let lock = file.read().unwrap();
    assert!(images.iter().all(|image| lock.index_of(image).is_some()));
}
