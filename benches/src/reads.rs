//! The steps of a read: finding a local object, reading from it, and planning, fetching and checking a missing range.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tarpon_blob::{BlobSource, BlobStream, ObjectStore, SourceError};
use tarpon_fetch::{Config, Fetcher, ImageHandle};
use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::Compression;
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::{LayerIndex, Node};
use tarpon_oci::{Blob, Digest, Hasher, Verified};
use tarpon_store::{Store, StoreConfig};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::inputs::{Forget, layer_tar, text};
use crate::{Run, Runs};

const OBJECTS: u64 = 200;
/// The most that one read of the kernel requests.
const READ: u64 = 128 << 10;

/// A plain layer in memory.
struct Layer {
    blob: Blob,
    bytes: Bytes,
    index: LayerIndex,
}

impl Layer {
    fn new() -> Arc<Self> {
        let bytes = Bytes::from(layer_tar(0, OBJECTS));
        let options = Options { access: Access::Random, hides_toc_files: false };
        let index = import(&bytes[..], options, &mut Forget).unwrap();
        Arc::new(Self { blob: Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 }, bytes, index })
    }

    fn table(&self) -> ChunkTable<Bytes> {
        let mut builder = ChunkTableBuilder::new();
        let layer = builder.add_layer(self.blob, Compression::None).unwrap();
        builder.add_index(layer, &self.index).unwrap();
        ChunkTable::open(Bytes::from(builder.finish().unwrap())).unwrap()
    }

    /// Its files.
    fn objects(&self) -> Vec<Digest> {
        let files = self.index.entries.iter().filter_map(|entry| match &entry.node {
            Node::File(file) if file.size > 0 => Some(file.object),
            _ => None,
        });
        files.collect()
    }
}

impl BlobSource for Layer {
    fn read(&self, _: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
        let piece = self.bytes.slice(start..end);
        async move { Ok(stream::iter([Ok(piece)]).boxed()) }.boxed()
    }

    fn name(&self) -> String {
        "memory".into()
    }
}

/// A host with an empty store. The fields are dropped in this order.
struct Host {
    image: ImageHandle,
    fetcher: Fetcher,
    runtime: Runtime,
    _folder: TempDir,
}

impl Host {
    fn new(layer: &Arc<Layer>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path(), StoreConfig::default()).unwrap());
        // One thread, so that the counts do not depend on the scheduler.
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let fetcher = Fetcher::new(store, runtime.handle().clone(), Config::default());
        let image = fetcher.add_image(layer.table(), layer.clone(), "bench:latest");
        Self { image, fetcher, runtime, _folder: folder }
    }

    fn read(&self, object: &Digest) -> u64 {
        self.runtime.block_on(self.fetcher.read(object, 0, READ)).unwrap().len() as u64
    }

    /// Reads an object and waits until it is in the store.
    fn bring(&self, object: &Digest) {
        self.read(object);
        let kept = async {
            while self.fetcher.open_local(object).is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        self.runtime.block_on(async { tokio::time::timeout(KEEPING, kept).await }).unwrap();
    }
}

/// Longest time until an object is stored after it was read.
const KEEPING: Duration = Duration::from_secs(30);

/// Reads of files that are not local: planned, fetched from memory, hashed, stored and returned.
pub(crate) fn read_plan() -> Runs {
    let layer = Layer::new();
    let objects = Arc::new(layer.objects());
    Box::new(move || -> Run {
        let (host, objects) = (Host::new(&layer), objects.clone());
        Box::new(move || objects.iter().map(|object| host.read(object)).sum())
    })
}

/// Reads of local files.
pub(crate) fn read_hit() -> Runs {
    let layer = Layer::new();
    let objects = Arc::new(layer.objects());
    Box::new(move || -> Run {
        let (host, objects) = (Host::new(&layer), objects.clone());
        objects.iter().for_each(|object| host.bring(object));
        Box::new(move || {
            // Captures the whole host: fields that are not captured would be dropped before this runs, and the store's folder with them.
            let host = &host;
            let _image = &host.image;
            let read = objects.iter().filter(|object| host.fetcher.read_local(object, 0, READ).is_some()).count();
            assert_eq!(read, objects.len(), "all of them are here");
            read as u64
        })
    })
}

/// Opens objects of the store.
pub(crate) fn store_hit() -> Runs {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(folder.path(), StoreConfig::default()).unwrap());
    let publish = |seed| {
        let content = text(seed, 3000);
        let mut writer = store.writer(content.len() as u64).unwrap();
        let mut hasher = Hasher::new();
        hasher.update(&content);
        writer.write_all(&content).unwrap();
        let object = Digest::of(&content);
        writer.publish(Verified::check_stream(&object, hasher).unwrap()).unwrap();
        object
    };
    let objects: Arc<Vec<Digest>> = Arc::new((0..OBJECTS).map(publish).collect());
    let shared = Arc::new((store, folder));
    Box::new(move || {
        let (shared, objects) = (shared.clone(), objects.clone());
        Box::new(move || objects.iter().filter(|object| shared.0.open(object).unwrap().is_some()).count() as u64)
    })
}
