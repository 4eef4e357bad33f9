//! A tier: layers that one host has streamed are not fetched from the registry by others, and nothing depends on it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::PathBuf;

use futures::StreamExt as _;
use support::{EngineFixture as _, Notes};
use tarpon_engine::oci::{Compression, Digest};
use tarpon_engine::store::Isolation;
use tarpon_engine::{Access, Engine, ErrorKind, ImageRequest, IndexChoice, Prepared, TierLocation};
use tarpon_images::sources::{InProcess, Sources as _};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};

/// Bytes that do not compress, so that the layer is large enough to be shared.
fn noise(seed: u32) -> Vec<u8> {
    let words = (1..40_000_u32).map(|n| n.wrapping_mul(2_654_435_761).rotate_left(seed % 31) ^ n.wrapping_mul(seed));
    words.flat_map(u32::to_le_bytes).collect()
}

fn layer(name: &str, seed: u32) -> Layer {
    Layer::plain(&tar(&[Item::file(name, noise(seed))], Dialect::Pax), Compression::Gzip)
}

fn image() -> Image {
    Image::of([layer("one", 3), layer("two", 5), layer("three", 7)])
}

/// A registry with `app:v1`, whose layers have no table of contents, and a folder that hosts share.
struct Hosts {
    fixture: Fixture,
    image: Image,
    notes: Notes,
}

impl Hosts {
    async fn new() -> Self {
        let image = image();
        let fixture = Fixture::with_image(&image).await;
        let hosts = Self { fixture, image, notes: Notes::default() };
        std::fs::create_dir(hosts.folder()).unwrap();
        hosts
    }

    fn folder(&self) -> PathBuf {
        self.fixture.path("shared")
    }

    fn request(&self) -> ImageRequest {
        let tier = Some(TierLocation::of_folder(self.folder()).unwrap());
        let access = Access { tier, ..Access::default() };
        ImageRequest { index: IndexChoice::Unset, access, ..self.fixture.request("app:v1") }
    }

    /// Prepares the image on the host of this name.
    async fn start(&self, host: &str, request: &ImageRequest) -> (Engine, Prepared) {
        let engine = self.fixture.engine(host);
        let prepared = engine.prepare(request, &self.notes).await.unwrap();
        (engine, prepared)
    }

    /// Requests that the registry received.
    fn requests(&self) -> u64 {
        self.fixture.registry().stats().requests
    }

    /// The object of the first layer whose name begins so.
    fn object(&self, name: &str) -> PathBuf {
        let layer = self.folder().join("v1/layers").join(self.image.layers[0].descriptor().digest.hex());
        let mut objects = std::fs::read_dir(&layer).unwrap().map(|entry| entry.unwrap());
        objects.find(|object| object.file_name().to_str().unwrap().starts_with(name)).unwrap().path()
    }
}

fn states(prepared: &Prepared) -> Vec<String> {
    prepared.record.layers.iter().map(|layer| layer.verification.to_string()).collect()
}

/// The first layer's blob, as a server reads it.
async fn read(hosts: &Hosts, request: &ImageRequest) -> Vec<u8> {
    let opened = InProcess.open_later(&request.text, &request.access).unwrap();
    let (blobs, blob) = (opened.blobs(), hosts.image.layers[0].descriptor());
    let mut body = blobs.read(blob, 0..blob.size).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    if Digest::of(&bytes) != blob.digest && blobs.distrust(&blob.digest) {
        return Box::pin(async { blobs.read(blob, 0..blob.size).await.unwrap() })
            .await
            .fold(Vec::new(), async |all, piece| [all, piece.unwrap().to_vec()].concat())
            .await;
    }
    bytes
}

#[tokio::test]
async fn what_one_host_has_streamed_others_read_from_the_tier() {
    let hosts = Hosts::new().await;
    let request = hosts.request();
    assert_eq!(states(&hosts.start("first", &request).await.1), ["diffID-verified"; 3]);
    let before = hosts.requests();
    let (_, second) = hosts.start("second", &request).await;
    assert_eq!(states(&second), ["index-trusted"; 3]);
    assert_eq!(hosts.requests() - before, 2, "manifest and config");
    assert_eq!(read(&hosts, &request).await, hosts.image.layers[0].blob);
    assert_eq!(hosts.requests() - before, 2, "the blob is in the tier");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_start_together_fetch_each_layer_once() {
    let hosts = Hosts::new().await;
    let request = hosts.request();
    let names = ["one", "two", "three", "four"];
    let started = futures::future::join_all(names.map(|host| hosts.start(host, &request))).await;
    let streamed = started.iter().flat_map(|(_, prepared)| states(prepared)).filter(|state| state == "diffID-verified");
    assert_eq!(streamed.count(), 3, "each layer by one host");
    let per_host = 2;
    assert_eq!(hosts.requests(), names.len() as u64 * per_host + 3);
}

#[tokio::test]
async fn the_claim_of_a_host_that_died_is_replaced() {
    let hosts = Hosts::new().await;
    for layer in &hosts.image.layers {
        let folder = hosts.folder().join("v1/layers").join(layer.descriptor().digest.hex());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("claim-0"), "dead").unwrap();
    }
    let (_, prepared) = hosts.start("next", &hosts.request()).await;
    assert_eq!(states(&prepared), ["diffID-verified"; 3]);
}

#[tokio::test]
async fn a_user_who_trusts_no_index_streams_the_blobs_of_the_tier() {
    let hosts = Hosts::new().await;
    hosts.start("first", &hosts.request()).await;
    for index in [IndexChoice::None, IndexChoice::Signed] {
        let before = hosts.requests();
        let (_, prepared) = hosts.start(&format!("{index:?}"), &ImageRequest { index, ..hosts.request() }).await;
        assert_eq!(states(&prepared), ["diffID-verified"; 3]);
        assert_eq!(hosts.requests() - before, 2);
    }
}

#[tokio::test]
async fn a_missing_index_is_made_again_by_the_next_host() {
    let hosts = Hosts::new().await;
    hosts.start("first", &hosts.request()).await;
    std::fs::remove_file(hosts.object("index")).unwrap();
    let before = hosts.requests();
    let state = async |host: &str| states(&hosts.start(host, &hosts.request()).await.1).remove(0);
    assert_eq!((state("second").await, state("third").await), ("diffID-verified".into(), "index-trusted".into()));
    assert_eq!(hosts.requests() - before, 4, "the blob is in the tier");
}

#[tokio::test]
async fn a_pulled_image_is_shared_and_pulled_from_the_tier() {
    let hosts = Hosts::new().await;
    let pull = async |host: &str| hosts.fixture.engine(host).pull(&hosts.request(), &hosts.notes).await.unwrap();
    pull("first").await;
    let before = hosts.requests();
    let pulled = pull("second").await;
    assert_eq!(hosts.requests() - before, 2);
    assert!(pulled.record.layers.iter().all(|layer| layer.verification.to_string() == "diffID-verified"));
}

#[tokio::test]
async fn a_pull_also_copies_layers_that_are_here_already() {
    let hosts = Hosts::new().await;
    let alone = ImageRequest { access: Access::default(), ..hosts.request() };
    hosts.start("first", &alone).await;
    hosts.fixture.engine("first").pull(&hosts.request(), &hosts.notes).await.unwrap();
    let before = hosts.requests();
    hosts.start("second", &hosts.request()).await;
    assert_eq!(hosts.requests() - before, 2, "all layers are in the tier");
}

#[tokio::test]
async fn layers_that_are_known_locally_count_as_used_too() {
    let hosts = Hosts::new().await;
    hosts.start("first", &hosts.request()).await;
    let layer = hosts.folder().join("v1/layers").join(hosts.image.layers[0].descriptor().digest.hex());
    let used = layer.join("used");
    let _noted_by_the_first = std::fs::remove_file(&used);
    // The same layers under another name: their indexes are kept.
    let engine = hosts.fixture.engine("first");
    engine.store().remove_image(&hosts.image.digest()).unwrap();
    engine.prepare(&hosts.request(), &hosts.notes).await.unwrap();
    assert!(used.exists());
}

#[tokio::test]
async fn wrong_objects_of_the_tier_are_not_used() {
    let hosts = Hosts::new().await;
    let request = hosts.request();
    hosts.start("first", &request).await;
    for name in ["index", "blob"] {
        let object = hosts.object(name);
        let mut bytes = std::fs::read(&object).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&object, bytes).unwrap();
    }
    // Both are wrong: the layer comes from the registry. Of the others nothing does.
    let before = hosts.requests();
    let (_, prepared) = hosts.start("second", &request).await;
    assert_eq!(states(&prepared), ["diffID-verified", "index-trusted", "index-trusted"]);
    assert_eq!(hosts.requests() - before, 3);
    assert_eq!(read(&hosts, &request).await, hosts.image.layers[0].blob);
}

#[tokio::test]
async fn without_its_tier_an_image_starts_from_its_registry_and_the_user_learns_why() {
    let hosts = Hosts::new().await;
    std::fs::remove_dir(hosts.folder()).unwrap();
    let (_, prepared) = hosts.start("alone", &hosts.request()).await;
    assert_eq!(states(&prepared), ["diffID-verified"; 3]);
    let notes = hosts.notes.take();
    assert!(notes.iter().any(|note| note.contains("is not used: cannot open the tier: its folder does not exist")));
}

#[tokio::test]
async fn an_isolated_store_uses_no_tier() {
    let hosts = Hosts::new().await;
    let engine = hosts.fixture.engine("isolated");
    engine.images().set_isolation(Isolation::Tenant).unwrap();
    let error = engine.prepare(&hosts.request(), &hosts.notes).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused);
    assert!(error.to_string().contains("proves no access"), "{error}");
    assert!(engine.pull(&hosts.request(), &hosts.notes).await.is_err());
}
