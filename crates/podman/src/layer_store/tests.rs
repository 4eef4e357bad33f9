//! Images from a scripted registry, with use counts of their layers, and servers that restart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tarpon_client::Client;
use tarpon_client::mount_record::SavedMount;
use tarpon_client::protocol::{DiffIds, LayersPart, MountRequest};
use tarpon_fs::Errno;
use tarpon_images::{ImageRequest, Images, PolicyChoice, Prepared, Pull, Silent};
use tarpon_oci::Digest;
use tarpon_registry::serve::Contents;
use tarpon_server::{Exhibit, ExhibitHost};
use tarpon_testkit::layers::{EstargzOptions, Image as TestImage, ImageBuilder, Item, Layer, estargz};
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::server::TestServer;
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::exhibit::UNUSED;
use super::store::LayerStore;
use crate::Result;
use crate::forms::keep_forms;
use crate::layer_store_fs::{LayerKey, Layers, Use};

fn lazy(name: &str) -> Layer {
    estargz(&[Item::file(name, name.as_bytes().repeat(1000))], EstargzOptions::default())
}

fn image(layers: &[&str]) -> TestImage {
    layers.iter().fold(ImageBuilder::new(), |image, name| image.layer(lazy(name))).build()
}

/// A registry with some images, and a store.
struct LayerStoreFixture {
    folder: TempDir,
    server: TestServer,
    images: Images,
}

impl LayerStoreFixture {
    async fn new(images: &[(&str, &TestImage)]) -> Self {
        let mut contents = Contents::new();
        for (tag, image) in images {
            for (_, blob) in image.blobs() {
                contents.add_blob(blob);
            }
            contents.add_manifest(Some(("app", tag)), tarpon_oci::media_type::OCI_MANIFEST, image.manifest.clone());
        }
        let server = TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let images = Images::open(&store).unwrap();
        Self { folder, server, images }
    }

    fn name(&self, tag: &str) -> String {
        format!("{}/app:{tag}", self.server.host())
    }

    async fn prepare(&self, tag: &str) -> Result<Prepared> {
        let text = self.name(tag);
        let request = ImageRequest {
            pull: Pull::Always,
            ..ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap())
        };
        let prepared = self.images.prepare_without_streaming(&request, &Silent).await?;
        keep_forms(&self.images, &request, &prepared.record, true, &Silent).await?;
        Ok(prepared)
    }

    /// Prepares the image, and requests its layers under the name `shown`.
    async fn request(&self, tag: &str, shown: &str) -> MountRequest {
        let prepared = Prepared { text: self.name(shown), ..self.prepare(tag).await.unwrap() };
        let layers = Some(LayersPart::Image { uses: BTreeMap::new() });
        MountRequest { layers, ..MountRequest::for_image(&prepared, self.folder.path().to_owned()) }
    }

    /// A server that shows what is on record, without the kernel.
    fn server(&self) -> Arc<LayerStore> {
        let host = ExhibitHost::new(&Client::new(self.images.store().clone(), Vec::new()), Handle::current()).unwrap();
        let layers = LayerStore::new(host);
        let settings = Some(LayersPart::Store { diff_ids: DiffIds::Hashed, policy: None });
        let request =
            MountRequest { layers: settings, ..MountRequest::new(String::new(), Digest::of(b""), PathBuf::new()) };
        layers.state.write().settings = Some(request);
        for mount in self.images.store().mounts().unwrap() {
            layers.show(SavedMount::read(&mount.record).unwrap().request).unwrap();
        }
        layers
    }

    fn key(&self, shown: &str, digest: Digest) -> LayerKey {
        LayerKey { image: self.name(shown).parse().unwrap(), digest }
    }
}

/// Number of uses of each layer, summed over all images.
fn uses(layers: &LayerStore) -> BTreeMap<Digest, u64> {
    let mut all = BTreeMap::new();
    for status in layers.status() {
        let Some(LayersPart::Image { uses }) = status.layers else { continue };
        uses.into_iter().for_each(|(digest, count)| *all.entry(digest).or_default() += count);
    }
    all
}

/// A deterministic random number.
fn dice(state: &mut u64, sides: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::from(state.to_be_bytes()[0]) % sides
}

#[tokio::test(flavor = "multi_thread")]
async fn uses_are_those_of_podman_across_restarts_of_servers() {
    // The name moves from one image to the other, and they share a layer.
    let (old, new) = (image(&["base", "old"]), image(&["base", "new"]));
    let fixture = LayerStoreFixture::new(&[("old", &old), ("new", &new)]).await;
    let requests = [fixture.request("old", "v1").await, fixture.request("new", "v1").await];
    let digests: Vec<Digest> = old.layers.iter().chain(&new.layers[1..]).map(|layer| Digest::of(&layer.blob)).collect();
    for seed in 0..8 {
        let mut state = seed;
        let mut model: BTreeMap<Digest, u64> = BTreeMap::new();
        let mut server = fixture.server();
        for _ in 0..50 {
            // Podman looks a layer up before it uses it, so both images exist then.
            requests.iter().for_each(|request| server.show(request.clone()).unwrap());
            let digest = digests[dice(&mut state, digests.len())];
            let key = fixture.key("v1", digest);
            match dice(&mut state, 5) {
                0 => server = fixture.server(),
                1 | 2 => {
                    server.used(&key, Use::More).await;
                    *model.entry(digest).or_default() += 1;
                }
                _ => {
                    server.used(&key, Use::Less).await;
                    model.entry(digest).and_modify(|count| *count = count.saturating_sub(1));
                    model.retain(|_, count| *count > 0);
                }
            }
            assert_eq!(uses(&server), model, "seed {seed}");
            for digest in model.keys() {
                assert!(server.get(&fixture.key("v1", *digest)).is_some(), "what is used is shown");
            }
        }
        for (digest, count) in model {
            for _ in 0..count {
                server.used(&fixture.key("v1", digest), Use::Less).await;
            }
        }
        let left = server.state.read().images.iter().filter(|entry| entry.uses() > 0).count();
        assert_eq!(left, 0, "seed {seed}");
        for record in fixture.images.store().mounts().unwrap() {
            fixture.images.store().forget_mount(&record.record.mountpoint).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_use_takes_an_image_away_and_its_record() {
    let image = image(&["base"]);
    let fixture = LayerStoreFixture::new(&[("v1", &image)]).await;
    let server = fixture.server();
    server.show(fixture.request("v1", "v1").await).unwrap();
    let key = fixture.key("v1", Digest::of(&image.layers[0].blob));
    let shown = server.get(&key).unwrap();
    assert!(!String::from_utf8_lossy(&shown.info).contains("toc-digest"));
    assert!(server.get(&fixture.key("v2", key.digest)).is_none(), "another name");
    for change in [Use::Less, Use::More, Use::More, Use::Less] {
        server.used(&key, change).await;
        assert!(server.get(&key).is_some());
        assert_eq!(fixture.images.store().mounts().unwrap().len(), 1);
    }
    server.used(&key, Use::Less).await;
    assert!(server.get(&key).is_none() && fixture.images.store().mounts().unwrap().is_empty());
    assert_eq!(server.tidy().len(), 1, "nothing is done for it any more");
    let blob = server.blob(&key, 0, 10).await;
    assert_eq!(blob, Err(Errno::Stale));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_content_of_a_layer_is_found_whichever_images_of_its_name_show_it() {
    // The name moves from one image to the other.
    let (old, new) = (image(&["base", "old"]), image(&["base", "new"]));
    let fixture = LayerStoreFixture::new(&[("old", &old), ("new", &new)]).await;
    let server = fixture.server();
    server.show(fixture.request("old", "v1").await).unwrap();
    let keys: Vec<_> = old.layers.iter().map(|layer| fixture.key("v1", Digest::of(&layer.blob))).collect();
    let contents: Vec<_> = keys.iter().map(|key| server.get(key).unwrap().diff.digest()).collect();
    server.show(fixture.request("new", "v1").await).unwrap();
    // Also by the next server, which makes all layers again.
    for server in [server, fixture.server()] {
        for (key, content) in keys.iter().zip(&contents) {
            assert_eq!(server.with_content(key, content).unwrap().digest(), *content);
        }
        assert!(server.with_content(&keys[0], &contents[1]).is_none(), "this is another layer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_each_image_on_record_is_restored_and_has_an_outcome_of_its_own() {
    let image = image(&["base"]);
    let fixture = LayerStoreFixture::new(&[("v1", &image)]).await;
    let good = fixture.request("v1", "v1").await;
    let unknown = MountRequest { manifest: Digest::of(b"no such image"), ..good.clone() };
    let host = ExhibitHost::new(&Client::new(fixture.images.store().clone(), Vec::new()), Handle::current()).unwrap();
    let server = LayerStore::new(host);
    let outcomes = server.restore(vec![unknown, good]);
    assert!(outcomes[0].is_err() && outcomes[1].is_ok(), "{outcomes:?}");
    assert_eq!(server.count().1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_used_stays_while_podman_asks_for_it() {
    let image = image(&["base"]);
    let fixture = LayerStoreFixture::new(&[("v1", &image)]).await;
    let server = fixture.server();
    server.show(fixture.request("v1", "v1").await).unwrap();
    let key = fixture.key("v1", Digest::of(&image.layers[0].blob));
    let long_ago = || Instant::now().checked_sub(UNUSED * 2).unwrap();
    let age = || *server.state.read().images[0].asked.lock() = long_ago();
    age();
    assert!(server.get(&key).is_some());
    assert!(server.tidy().is_empty(), "it was just found");
    age();
    assert_eq!(server.tidy().len(), 1);
    assert!(server.get(&key).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_found_by_the_digest_of_its_table_of_contents_and_its_blob_can_be_read() {
    let image = image(&["base"]);
    let fixture = LayerStoreFixture::new(&[("v1", &image)]).await;
    let server = fixture.server();
    server.show(fixture.request("v1", "v1").await).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&image.manifest).unwrap();
    let toc = manifest["layers"][0]["annotations"]["containerd.io/snapshot/stargz/toc.digest"].as_str().unwrap();
    let key = fixture.key("v1", toc.parse().unwrap());
    let shown = server.get(&key).unwrap();
    let info: serde_json::Value = serde_json::from_slice(&shown.info).unwrap();
    assert_eq!((info["toc-digest"].as_str(), info["diff-size"].as_i64()), (Some(toc), Some(-1)));
    let blob = &image.layers[0].blob;
    assert_eq!(shown.blob_size, blob.len() as u64);
    let read = server.blob(&key, 3, u32::try_from(blob.len()).unwrap()).await.unwrap();
    assert_eq!(read, blob[3..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_a_layer_that_would_have_to_be_streamed_is_refused_and_nothing_is_fetched() {
    let plain =
        tarpon_testkit::layers::tar(&[Item::file("f", b"x".repeat(100_000))], tarpon_testkit::layers::Dialect::Pax);
    let plain = Layer::plain(&plain, tarpon_oci::Compression::Gzip);
    let image = ImageBuilder::new().layer(lazy("base")).layer(plain).build();
    let fixture = LayerStoreFixture::new(&[("v1", &image)]).await;
    let refused = fixture.prepare("v1").await.unwrap_err();
    assert!(refused.to_string().contains("layer 2"), "{refused}");
    assert_eq!(fixture.images.store().usage().unwrap().objects, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_on_record_is_the_one_that_images_are_resolved_with() {
    let fixture = LayerStoreFixture::new(&[]).await;
    let server = fixture.server();
    assert_eq!(server.settings().unwrap().0.policy, PolicyChoice::Host);
    let strict = PathBuf::from("/etc/strict.json");
    let layers = Some(LayersPart::Store { diff_ids: DiffIds::Hashed, policy: Some(strict.clone()) });
    let request = MountRequest { layers, ..MountRequest::new(String::new(), Digest::of(b""), PathBuf::new()) };
    // As the next server reads it.
    let record = serde_json::to_string(&SavedMount::new(&request)).unwrap();
    server.state.write().settings = Some(serde_json::from_str::<SavedMount>(&record).unwrap().request);
    assert_eq!(server.settings().unwrap().0.policy, PolicyChoice::File(strict));
}
