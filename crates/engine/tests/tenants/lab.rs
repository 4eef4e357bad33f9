//! A registry with a private repository, a repository of an attacker who knows all of its digests and has none of its blobs, and stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tarpon_engine::oci::{Compression, Digest, media_type};
use tarpon_engine::{
    Access, Engine, EngineOptions, ImageRequest, IndexChoice, Isolation, Mode, ModeChoice, MountRequest, MountStatus,
    Prepared, Pull, Server, Silent,
};
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Dialect, EstargzOptions, ImageBuilder, Item, Layer, estargz, tar};
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::server::TestServer;
use tempfile::TempDir;

/// Credentials with access to the private repositories.
pub(crate) const OWNER: &str = "owner:her-password";
/// The attacker's credentials, with access to the attacker's repository only.
pub(crate) const OTHER: &str = "other:his-password";

/// Paths of the files in the private image.
pub(crate) const LAZY: &str = "lazy/secret";
pub(crate) const STREAMED: &str = "streamed/secret";

const OCTETS: usize = 100_000;
/// The part of a lazy layer that the attacker knows: its table of contents, at the end.
const TABLE: usize = 4096;

pub(crate) struct Lab {
    pub(crate) folder: TempDir,
    pub(crate) registry: Option<TestServer>,
    pub(crate) attacker: TestServer,
    host: String,
}

/// Bytes that no codec compresses.
fn secret(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..OCTETS).map(next).collect()
}

pub(crate) fn secret_at(path: &str) -> Vec<u8> {
    secret(if path == LAZY { 0x9e37_79b9_7f4a_7c15 } else { 0xd1b5_4a32_d192_ed03 })
}

fn lazy() -> Layer {
    estargz(&[Item::directory("lazy"), Item::file(LAZY, secret_at(LAZY))], EstargzOptions::default())
}

fn streamed() -> Layer {
    let items = [Item::directory("streamed"), Item::file(STREAMED, secret_at(STREAMED))];
    Layer::plain(&tar(&items, Dialect::Pax), Compression::Gzip)
}

fn more() -> Layer {
    Layer::plain(&tar(&[Item::file("more", "more\n")], Dialect::Pax), Compression::Gzip)
}

fn split(creds: &str) -> (&str, &str) {
    creds.split_once(':').unwrap()
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let mut contents = Contents::new();
        let image = ImageBuilder::new().layer(streamed()).layer(lazy()).build();
        let second = ImageBuilder::new().layer(streamed()).layer(lazy()).layer(more()).build();
        for (_, blob) in image.blobs().into_iter().chain(second.blobs()) {
            contents.add_blob(blob);
        }
        for repository in ["private", "mirror"] {
            contents.add_manifest(Some((repository, "v1")), media_type::OCI_MANIFEST, image.manifest.clone());
        }
        contents.add_manifest(Some(("private", "v2")), media_type::OCI_MANIFEST, second.manifest.clone());
        let model = Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None));
        let ((owner, hers), (other, his)) = (split(OWNER), split(OTHER));
        model.make_private("private", owner, hers);
        model.make_private("mirror", other, his);
        let registry = TestServer::start(model).await.unwrap();
        let host = registry.host();
        Self { folder: tempfile::tempdir().unwrap(), registry: Some(registry), attacker: attacker().await, host }
    }

    /// From here on nothing listens at the registry's address.
    pub(crate) fn lose_registry(&mut self) {
        self.registry = None;
    }

    pub(crate) fn private(&self, tag: &str) -> String {
        format!("{}/private:{tag}", self.host)
    }

    /// The same image in another repository of the registry, to which another user has access.
    pub(crate) fn mirror(&self) -> String {
        format!("{}/mirror:v1", self.host)
    }

    pub(crate) fn of_attacker(&self, tag: &str) -> String {
        format!("{}/app:{tag}", self.attacker.host())
    }

    pub(crate) fn engine(&self, isolation: Isolation) -> Engine {
        let store = self.folder.path().join(isolation.name());
        let engine = Engine::open(EngineOptions { store, server_command: Vec::new() }).unwrap();
        engine.settle_isolation(isolation).unwrap();
        engine
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let directory = self.folder.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        directory.canonicalize().unwrap()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.registry.as_ref().unwrap().stats().bytes
    }
}

/// A registry of the attacker's own: it names the content of the private image, and has none of it.
async fn attacker() -> TestServer {
    let mut contents = Contents::new();
    let mut emptied = lazy();
    let data = emptied.blob.len() - TABLE;
    emptied.blob[..data].fill(0);
    let names_content = ImageBuilder::new().layer(emptied).build();
    let names_layer = ImageBuilder::new().layer(streamed()).build();
    let missing = Digest::of(&streamed().blob);
    for (digest, blob) in names_content.blobs().into_iter().chain(names_layer.blobs()) {
        if digest != missing {
            contents.add_blob(blob);
        }
    }
    for (tag, image) in [("content", &names_content), ("layer", &names_layer)] {
        contents.add_manifest(Some(("app", tag)), media_type::OCI_MANIFEST, image.manifest.clone());
    }
    TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap()
}

pub(crate) fn request(image: &str, creds: Option<&str>) -> ImageRequest {
    ImageRequest {
        source: image.parse().unwrap(),
        text: image.to_owned(),
        platform: "linux/amd64".parse().unwrap(),
        platform_named: false,
        pull: Pull::Missing,
        index: IndexChoice::None,
        profile: None,
        access: Access { creds: creds.map(str::to_owned), tls_verify: Some(false), ..Access::default() },
    }
}

pub(crate) async fn prepare(engine: &Engine, image: &str, creds: Option<&str>) -> tarpon_engine::Result<Prepared> {
    engine.prepare(&request(image, creds), &Silent).await
}

pub(crate) async fn mount(
    server: &Server,
    prepared: &Prepared,
    directory: &Path,
    mode: Mode,
) -> tarpon_engine::Result<MountStatus> {
    server
        .mount(MountRequest { mode: ModeChoice::Only(mode), ..MountRequest::for_image(prepared, directory.to_owned()) })
        .await
}

/// Reads as another process would, beside the server.
pub(crate) async fn read(directory: &Path, file: &str) -> std::io::Result<Vec<u8>> {
    let path = directory.join(file);
    tokio::task::spawn_blocking(move || std::fs::read(path)).await.unwrap()
}

/// Checks the whole private image by reading it, so that all of it is in the store.
pub(crate) async fn read_all(directory: &Path) {
    for file in [LAZY, STREAMED] {
        assert!(read(directory, file).await.unwrap() == secret_at(file), "{file}");
    }
}
