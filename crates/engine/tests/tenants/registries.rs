//! A registry with a private repository, a repository of an attacker who knows all of its digests and has none of its blobs, and stores.

use std::path::Path;

use tarpon_engine::oci::{Digest, media_type};
use tarpon_engine::{Access, Engine, ImageRequest, Isolation, Mode, MountStatus, Prepared, Server, Silent};
use tarpon_registry::serve::Contents;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Image, Item, Layer};
use tarpon_testkit::registry::Auth;

use crate::support::{self, EngineFixture, mount_request};

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

/// A registry with private images, one of an attacker, and stores.
pub(crate) struct TenantFixture {
    fixture: Fixture,
    attacker: Fixture,
}

impl std::ops::Deref for TenantFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
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
    Layer::estargz(&[Item::directory("lazy"), Item::file(LAZY, secret_at(LAZY))])
}

fn streamed() -> Layer {
    Layer::gzip(&[Item::directory("streamed"), Item::file(STREAMED, secret_at(STREAMED))])
}

fn more() -> Layer {
    Layer::gzip(&[Item::file("more", "more\n")])
}

fn split(creds: &str) -> (&str, &str) {
    creds.split_once(':').unwrap()
}

impl TenantFixture {
    pub(crate) async fn new() -> Self {
        let mut contents = Contents::new();
        let image = Image::of([streamed(), lazy()]);
        image.add_to(&mut contents, "private", "v1");
        image.add_to(&mut contents, "mirror", "v1");
        Image::of([streamed(), lazy(), more()]).add_to(&mut contents, "private", "v2");
        let fixture = Fixture::with_registry(contents, Auth::Anonymous).await;
        let ((owner, hers), (other, his)) = (split(OWNER), split(OTHER));
        fixture.registry().model().make_private("private", owner, hers);
        fixture.registry().model().make_private("mirror", other, his);
        Self { fixture, attacker: attacker().await }
    }

    pub(crate) fn stop_registry(&mut self) {
        self.fixture.stop_registry();
    }

    pub(crate) fn private(&self, tag: &str) -> String {
        self.name(&format!("private:{tag}"))
    }

    /// The same image in another repository of the registry, to which another user has access.
    pub(crate) fn mirror(&self) -> String {
        self.name("mirror:v1")
    }

    pub(crate) fn of_attacker(&self, tag: &str) -> String {
        self.attacker.name(&format!("app:{tag}"))
    }

    pub(crate) fn engine(&self, isolation: Isolation) -> Engine {
        let engine = self.fixture.engine(isolation.name());
        engine.set_isolation(isolation).unwrap();
        engine
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.registry().stats().bytes
    }
}

/// A registry of the attacker's own: it names the content of the private image, and has none of it.
async fn attacker() -> Fixture {
    let mut contents = Contents::new();
    let mut emptied = lazy();
    let data = emptied.blob.len() - TABLE;
    emptied.blob[..data].fill(0);
    let names_content = Image::of([emptied]);
    let names_layer = Image::of([streamed()]);
    let missing = Digest::of(&streamed().blob);
    for (digest, blob) in names_content.blobs().into_iter().chain(names_layer.blobs()) {
        if digest != missing {
            contents.add_blob(blob);
        }
    }
    for (tag, image) in [("content", &names_content), ("layer", &names_layer)] {
        contents.add_manifest(Some(("app", tag)), media_type::OCI_MANIFEST, image.manifest.clone());
    }
    Fixture::with_registry(contents, Auth::Anonymous).await
}

pub(crate) fn request(image: &str, creds: Option<&str>) -> ImageRequest {
    let access = Access { creds: creds.map(str::to_owned), tls_verify: Some(false), ..Access::default() };
    ImageRequest { access, ..support::request(image) }
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
    server.mount(mount_request(prepared, directory, mode)).await
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
