//! A registry with two images, and stores.

use std::sync::Arc;

use tarpon_engine::oci::{Compression, media_type};
use tarpon_engine::{Access, Engine, EngineOptions, ImageRequest};
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Dialect, EstargzOptions, ImageBuilder, Item, Layer, estargz, tar};
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::server::TestServer;
use tempfile::TempDir;

/// Number of concurrent callers.
pub(crate) const MANY: usize = 32;

/// A registry with two images, and a store.
pub(crate) struct Lab {
    pub(crate) folder: TempDir,
    pub(crate) registry: TestServer,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let mut contents = Contents::new();
        for name in ["app", "other"] {
            let streamed = tar(&[Item::file("etc/streamed", format!("{name} streamed\n"))], Dialect::Pax);
            let lazy = [Item::file("etc/lazy", format!("{name} lazy\n"))];
            let image = ImageBuilder::new()
                .layer(Layer::plain(&streamed, Compression::Gzip))
                .layer(estargz(&lazy, EstargzOptions::default()))
                .build();
            for (_, blob) in image.blobs() {
                contents.add_blob(blob);
            }
            for tag in ["v1", "v2"] {
                contents.add_manifest(Some((name, tag)), media_type::OCI_MANIFEST, image.manifest.clone());
            }
        }
        let registry = TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap();
        Self { folder: tempfile::tempdir().unwrap(), registry }
    }

    /// An engine of its own, as another process has it.
    pub(crate) fn engine(&self, store: &str) -> Engine {
        let store = self.folder.path().join(store);
        Engine::open(EngineOptions { store, server_command: Vec::new() }).unwrap()
    }

    pub(crate) fn request(&self, image: &str) -> ImageRequest {
        let text = format!("{}/{image}", self.registry.host());
        ImageRequest {
            access: Access { tls_verify: Some(false), ..Access::default() },
            ..ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap())
        }
    }

    /// Requests and bytes that the work costs.
    pub(crate) async fn cost_of<T>(&self, work: impl Future<Output = T>) -> (u64, u64, T) {
        let before = self.registry.stats();
        let done = work.await;
        let after = self.registry.stats();
        (after.requests - before.requests, after.bytes - before.bytes, done)
    }
}
