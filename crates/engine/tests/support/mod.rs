//! What the tests of the engine share: engines and requests for a [`Fixture`], and an image served without a kernel.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_engine::oci::Digest;
use tarpon_engine::store::LoadedImage;
use tarpon_engine::{Engine, EngineOptions, ImageRequest, Mode, ModeChoice, MountRequest, Prepared, Progress};
use tarpon_fetch::{Config, Fetcher, ImageHandle};
use tarpon_layer::chunks::ChunkTable;
use tarpon_registry::AccessOptions;
use tarpon_testkit::fixture::Fixture;
use tokio::runtime::Handle;

/// An engine that starts no servers. Each has state of its own, like another process.
pub(crate) fn engine(store: &Path) -> Engine {
    Engine::open(EngineOptions { store: store.to_owned(), server_command: Vec::new(), worker_command: Vec::new() })
        .unwrap()
}

/// A request for an image by its full name.
pub(crate) fn request(image: &str) -> ImageRequest {
    ImageRequest::new(image, image.parse().unwrap(), "linux/amd64".parse().unwrap())
}

/// A mount of `prepared` in one mode.
pub(crate) fn mount_request(prepared: &Prepared, mountpoint: &Path, mode: Mode) -> MountRequest {
    MountRequest { mode: ModeChoice::Only(mode), ..MountRequest::for_image(prepared, mountpoint.to_owned()) }
}

/// The steps of an engine that most tests begin with.
pub(crate) trait EngineFixture {
    /// An engine on the store of this name.
    fn engine(&self, store: &str) -> Engine;
    /// A request for `repository:tag` of the registry.
    fn request(&self, image: &str) -> ImageRequest;
}

impl EngineFixture for Fixture {
    fn engine(&self, store: &str) -> Engine {
        engine(&self.path(store))
    }

    fn request(&self, image: &str) -> ImageRequest {
        request(&self.name(image))
    }
}

/// Collects the messages to the user.
#[derive(Default)]
pub(crate) struct Notes(Mutex<Vec<String>>);

impl Notes {
    /// The messages since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Progress for Notes {
    fn note(&self, line: &str) {
        // A busy machine hashes files slowly enough that a line reports it.
        if !line.starts_with("first use since") {
            self.0.lock().push(line.to_owned());
        }
    }
}

/// An image that is read as a mount reads it.
pub(crate) struct Served {
    pub(crate) fetcher: Fetcher,
    pub(crate) image: ImageHandle,
    /// The objects of the image with their sizes.
    pub(crate) objects: Vec<(Digest, u64)>,
}

/// The record of a prepared image.
pub(crate) fn load(engine: &Engine, prepared: &Prepared) -> LoadedImage {
    engine.store().load_image(prepared.manifest()).unwrap().unwrap()
}

/// Serves a prepared image from its source and the store, without a kernel.
pub(crate) async fn serve(engine: &Engine, prepared: &Prepared) -> Served {
    let table = ChunkTable::open(Bytes::from_owner(load(engine, prepared).chunks)).unwrap();
    let objects = table.objects().map(|(object, known)| (object, known.size)).collect();
    let source = prepared.text.parse().unwrap();
    let blobs = tarpon_registry::open(&source, &AccessOptions::default()).await.unwrap().blobs();
    let fetcher = Fetcher::new(Arc::new(engine.store().clone()), Handle::current(), Config::default());
    let image = fetcher.add_image(table, blobs, "app:v1");
    Served { fetcher, image, objects }
}
