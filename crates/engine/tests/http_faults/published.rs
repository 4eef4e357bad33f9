//! What the registry has: an image in two formats, with an index artifact and a boot pack.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tarpon_engine::oci::{Compression, Digest, Source, media_type};
use tarpon_engine::trace::{Header, Touch, Trace};
use tarpon_engine::{Access, Silent};
use tarpon_registry::serve::Contents;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, ZstdChunkedOptions, tar, zstd_chunked};
use tarpon_testkit::registry::{Auth, FakeRegistry, Referrers};
use tarpon_testkit::seeds::{Random, noise};

use crate::requests::Names;
use crate::support::{self, EngineFixture as _, load};

/// How an image is stored in its registry.
pub(crate) struct Format {
    pub(crate) name: &'static str,
    /// Whether the registry redirects requests for blobs to another host.
    pub(crate) is_presigned: bool,
    layer: fn(&[Item]) -> Layer,
}

/// The formats of the matrix.
pub(crate) const FORMATS: [Format; 2] = [
    Format { name: "gzip with an index", is_presigned: false, layer: gzipped },
    Format { name: "zstd:chunked, presigned", is_presigned: true, layer: chunked },
];

/// Life of a presigned address.
const SIGNED: Duration = Duration::from_secs(300);
/// Life of a token, in seconds.
const TOKEN_SECONDS: u64 = 60;

/// An image in a registry, with what it must look like in a store.
pub(crate) struct Published {
    pub(crate) format: &'static Format,
    pub(crate) seed: u64,
    /// The files, by their digests.
    pub(crate) files: Vec<(Digest, Bytes)>,
    pub(crate) names: Names,
    /// The merged tree.
    pub(crate) tree: Vec<u8>,
    blobs: Vec<Bytes>,
    manifest: Bytes,
    artifact: Bytes,
}

impl Published {
    /// Builds the image, and its index with a boot pack, as a publisher does.
    pub(crate) fn new(format: &'static Format, seed: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Self::publish(format, seed))
    }

    async fn publish(format: &'static Format, seed: u64) -> Self {
        let files = files(&mut Random(seed));
        let items: Vec<Item> = files.iter().map(|(name, content)| Item::file(name, content)).collect();
        let (lower, upper) = items.split_at(items.len() / 2);
        let image = Image::of([(format.layer)(lower), (format.layer)(upper)]);
        let fixture = Fixture::with_layout(&image);
        let (engine, request) = (fixture.engine("maker"), support::request(&fixture.layout_name()));
        let start = start(&files);
        let made = engine.make_index(&request, &[start], &Silent).await.unwrap();
        assert_eq!(made.boots.len(), 1, "a boot pack");
        let layout = Source::OciLayout { directory: fixture.layout(), tag: None };
        let artifact = engine.publish_index(&made, &layout, &Access::default(), None).await.unwrap();
        let prepared = engine.prepare(&request, &Silent).await.unwrap();
        let folder = fixture.layout().join("blobs/sha256");
        let blob = |digest: &Digest| Bytes::from(std::fs::read(folder.join(digest.hex())).unwrap());
        let blobs = std::fs::read_dir(&folder).unwrap();
        let blobs = blobs.map(|file| Bytes::from(std::fs::read(file.unwrap().path()).unwrap())).collect();
        let document: Value = serde_json::from_slice(&blob(&artifact)).unwrap();
        let parts: Vec<Digest> = document["layers"].as_array().unwrap().iter().map(digest).collect();
        let names = Names {
            manifest: image.digest(),
            config: Digest::of(&image.config),
            artifact,
            index: (!made.layers.is_empty()).then(|| parts[0]),
            pack: parts[1..].to_vec(),
            layers: image.layers.iter().map(|layer| layer.descriptor().digest).collect(),
        };
        Self {
            format,
            seed,
            files: files.into_iter().map(|(_, content)| (Digest::of(&content), Bytes::from(content))).collect(),
            names,
            tree: load(&engine, &prepared).tree.as_ref().to_vec(),
            blobs,
            manifest: image.manifest.into(),
            artifact: blob(&artifact),
        }
    }

    /// A registry that serves it as `app:v1` to the user.
    pub(crate) async fn registry(&self) -> Arc<FakeRegistry> {
        let mut contents = Contents::new();
        for blob in &self.blobs {
            contents.add_blob(blob.clone());
        }
        let list = json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_INDEX,
            "manifests": [
                self.entry(&Digest::of(b"another platform"), "arm64"),
                self.entry(&self.names.manifest, "amd64"),
            ],
        });
        contents.add_manifest(Some(("app", "v1")), media_type::OCI_INDEX, list.to_string());
        contents.add_manifest(None, media_type::OCI_MANIFEST, self.manifest.clone());
        let auth = Auth::Bearer { anonymous: false, expires_in: Some(TOKEN_SECONDS) };
        let registry = FakeRegistry::new(contents, auth, self.format.is_presigned.then_some(SIGNED));
        registry.set_referrers(Referrers::Kept { page: 10, filters: true });
        registry.add_manifest(None, media_type::OCI_MANIFEST, self.artifact.clone()).await;
        Arc::new(registry)
    }

    fn entry(&self, digest: &Digest, architecture: &str) -> Value {
        json!({
            "mediaType": media_type::OCI_MANIFEST,
            "digest": digest,
            "size": self.manifest.len(),
            "platform": {"os": "linux", "architecture": architecture},
        })
    }
}

fn digest(descriptor: &Value) -> Digest {
    descriptor["digest"].as_str().unwrap().parse().unwrap()
}

/// Small and large files, of which a start touches some.
fn files(random: &mut Random) -> Vec<(&'static str, Vec<u8>)> {
    let mut file = |name, least: usize, span: usize| (name, noise(random.next(), least + random.index(span)));
    vec![
        file("conf", 1, 100),
        file("tool", 5_000, 20_000),
        file("large", 150_000, 100_000),
        file("data", 40_000, 60_000),
        file("more", 1_000, 9_000),
        file("last", 100_000, 80_000),
    ]
}

/// A start that touches a small file and a part of a large one.
fn start(files: &[(&str, Vec<u8>)]) -> Trace {
    let touch = |(_, content): &(&str, Vec<u8>), length: usize| Touch {
        object: Digest::of(content),
        size: content.len() as u64,
        range: 0..content.len().min(length) as u64,
        at: Duration::from_millis(1),
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    };
    let header = Header::new("app", Digest::of(b"some image"), "default");
    Trace { header, touches: vec![touch(&files[1], usize::MAX), touch(&files[2], 50_000)] }
}

/// In many blocks, unlike the output of the fastest level.
fn gzipped(items: &[Item]) -> Layer {
    let bytes = tar(items, Dialect::Pax);
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&bytes).unwrap();
    Layer { blob: encoder.finish().unwrap(), ..Layer::plain(&bytes, Compression::Gzip) }
}

fn chunked(items: &[Item]) -> Layer {
    zstd_chunked(items, ZstdChunkedOptions::default())
}
