//! A fetcher over a store and a source in memory.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test file uses a part of it")]

use std::sync::Arc;

use bytes::Bytes;
use tarpon_fetch::{Config, Fetcher, ImageHandle};
use tarpon_oci::Digest;
use tarpon_testkit::source::{MemorySource, MemoryStore, PackedLayer, table_of};
use tokio::runtime::Handle;

pub use tarpon_testkit::seeds::{Random, noise};

/// The environment of a test.
pub struct World {
    pub fetcher: Fetcher,
    pub store: MemoryStore,
    pub source: Arc<MemorySource>,
    pub image: ImageHandle,
}

impl World {
    /// One image of these layers, nothing local.
    pub fn new(layers: &[&PackedLayer]) -> Self {
        Self::with(layers, MemoryStore::default(), Config::default())
    }

    /// As [`World::new`], with further blobs beside the layers.
    pub fn of(layers: &[&PackedLayer], blobs: impl IntoIterator<Item = Bytes>) -> Self {
        Self::from(layers, blobs, MemoryStore::default(), Config::default())
    }

    pub fn with(layers: &[&PackedLayer], store: MemoryStore, config: Config) -> Self {
        Self::from(layers, [], store, config)
    }

    fn from(
        layers: &[&PackedLayer],
        blobs: impl IntoIterator<Item = Bytes>,
        store: MemoryStore,
        config: Config,
    ) -> Self {
        let blobs = layers.iter().map(|layer| layer.bytes.clone()).chain(blobs);
        let source = Arc::new(MemorySource::new(blobs));
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), config);
        let image = fetcher.add_image(table_of(layers), source.clone(), "test:latest");
        Self { fetcher, store, source, image }
    }

    pub async fn read(&self, object: &Digest, offset: u64, length: u64) -> Result<Bytes, String> {
        self.fetcher.read(object, offset, length).await.map(|bytes| bytes.into_bytes()).map_err(|e| e.to_string())
    }

    /// Bytes that were requested of the source.
    pub fn asked(&self) -> u64 {
        self.source.requests().iter().map(|(_, range)| range.end - range.start).sum()
    }

    /// Waits until nothing is under way, and checks that the gauges are zero.
    pub async fn quiet(&self) {
        let mut rounds = 0;
        while self.fetcher.pieces_in_flight() > 0 || self.fetcher.stats().requests_in_flight > 0 {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            rounds += 1;
            assert!(rounds < 1000, "something never ends");
        }
        let stats = self.fetcher.stats();
        assert_eq!((stats.requests_in_flight, stats.bytes_in_flight), (0, 0));
    }

    /// Waits until the object is a complete local one: publishing continues after the reads.
    pub async fn until_complete(&self, object: &Digest) {
        // By the real clock: a thread hashes and publishes, and the tests' clock may stand still.
        let began = std::time::Instant::now();
        while self.store.object(object).is_none() {
            assert!(began.elapsed() < PUBLISHED, "never published");
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    }
}

/// Longest wait for a thread that publishes an object. It takes milliseconds where cores are free.
const PUBLISHED: std::time::Duration = std::time::Duration::from_secs(60);
