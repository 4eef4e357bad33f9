//! A layer without a usable table of contents: streamed once, from the wire into the store and an index.
//!
//! The index is believed only when the blob's digest and the tar's diffID have been checked at the end. Objects need
//! no such proof: each is linked in under the sha256 of its own bytes.

use std::io::{self, Write};
use std::sync::Arc;

use futures::StreamExt;
use tarpon_fetch::{BlobSource, ObjectStore, ObjectWriter, SourceError, StoreError};
use tarpon_layer::LayerIndex;
use tarpon_layer::decode::Compression;
use tarpon_layer::plain::{self, ObjectSink, Options};
use tarpon_layer::spans::SpanReader;
use tarpon_oci::{Blob, Digest, Hasher, Verified};
use tarpon_store::Store;

use super::pace::Pace;
use super::pipe::{self, BlobReader, PIECES};
use crate::{Error, ErrorKind, access};

/// What streaming a layer gives.
pub(super) struct Streamed {
    pub(super) index: LayerIndex,
    pub(super) compression: Compression,
}

/// Ids of objects that a failed import is remembered to have brought: 16 MiB of them. What goes beyond stays until it is evicted.
const REMEMBERED: usize = 1 << 19;

/// A layer to be streamed.
pub(super) struct StreamJob {
    pub(super) blob: Blob,
    /// What the image config says that the decompressed layer hashes to.
    pub(super) diff_id: Digest,
    /// Claimed to be eStargz or zstd:chunked, though not readable as such.
    pub(super) hides_toc_files: bool,
    pub(super) source: Arc<dyn BlobSource>,
    pub(super) store: Store,
    /// Whether it is of no use if the store does not keep its objects.
    pub(super) must_keep: bool,
    pub(super) pace: Arc<dyn Pace>,
}

/// Why it failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    /// The download.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The blob is not what the manifest says, or not a layer.
    #[error("{0}")]
    Bad(String),
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// The same, for the outside.
pub(super) fn outward(step: String, error: StreamError) -> Error {
    match error {
        StreamError::Source(error) => access::source(step, &error),
        StreamError::Bad(cause) => Error::new(ErrorKind::Refused, step, cause),
        StreamError::Store(error) => Error::new(ErrorKind::Store, step, error),
    }
}

/// Streams the layer: `received` is told of every piece that arrives.
pub(super) async fn stream(job: StreamJob, received: impl Fn(u64) + Send) -> Result<Streamed, StreamError> {
    let (pieces, reader) = tokio::sync::mpsc::channel(PIECES);
    let StreamJob { blob, diff_id, hides_toc_files, source, store, must_keep, pace } = job;
    let into = store.clone();
    let importing = tokio::task::spawn_blocking(move || {
        let mut sink = StoreSink::new(&into, must_keep);
        let imported = import(BlobReader::new(reader), diff_id, hides_toc_files, &mut sink);
        (imported, sink.objects)
    });
    let downloaded = download(&*source, blob, pieces, &*pace, received).await;
    let (imported, objects) = importing.await.map_err(|error| StreamError::Bad(error.to_string()))?;
    // A failed download is the cause of whatever the importer said about its broken input; a wrong digest is not.
    let outcome = match (downloaded, imported) {
        (Err(error @ StreamError::Source(_)), _) => Err(error),
        (_, Err(error)) => Err(error),
        (Err(error), _) => Err(error),
        (Ok(_), Ok(streamed)) => Ok(streamed),
    };
    // What a layer brought that is not what it should be is of no use to anybody; of one that broke off, it is.
    if matches!(outcome, Err(StreamError::Bad(_))) {
        // A failure here is one more reason to leave it to the next eviction.
        let _left = tokio::task::spawn_blocking(move || store.discard(&objects)).await;
    }
    outcome
}

/// Brings the whole blob, hashes it and passes it on.
async fn download(
    source: &dyn BlobSource,
    blob: Blob,
    pieces: tokio::sync::mpsc::Sender<Result<bytes::Bytes, SourceError>>,
    pace: &dyn Pace,
    received: impl Fn(u64) + Send,
) -> Result<Verified<()>, StreamError> {
    let mut hasher = Hasher::new();
    if blob.size > 0 {
        let mut stream = source.read(blob, 0..blob.size).await?;
        while let Some(piece) = stream.next().await {
            if let Err(error) = &piece {
                let error = error.clone();
                let _ = pieces.send(piece).await;
                return Err(error.into());
            }
            let piece = piece?;
            hasher.update(&piece);
            let length = piece.len() as u64;
            received(length);
            if pieces.send(Ok(piece)).await.is_err() {
                return Err(StreamError::Bad("the import ended before the layer did".into()));
            }
            pace.pass(length).await;
        }
    }
    Verified::check_stream(&blob.digest, hasher).map_err(|error| StreamError::Bad(error.to_string()))
}

/// Decodes on one thread and walks on another; compares the diffID at the end.
fn import(
    blob: BlobReader,
    diff_id: Digest,
    hides_toc_files: bool,
    objects: &mut StoreSink<'_>,
) -> Result<Streamed, StreamError> {
    let bad = |error: io::Error| StreamError::Bad(error.to_string());
    let mut decoder = SpanReader::sniffed(blob).map_err(bad)?;
    let compression = decoder.compression();
    let access = match compression {
        Compression::None => plain::Access::Random,
        Compression::Gzip | Compression::Zstd => plain::Access::Spans(decoder.starts()),
    };
    let (sink, reader) = pipe::decoded();
    std::thread::scope(|scope| {
        // The sink belongs to the decoding thread: when that ends, the walker sees the end of its input.
        let decoding = scope.spawn(move || Ok((pipe::pump(&mut decoder, &sink)?, decoder.finish())));
        let walked = plain::import(reader, Options { access, hides_toc_files }, objects);
        let decoded = decoding.join().map_err(|_| StreamError::Bad("the decoder panicked".into()))?;
        let (hasher, spans) = decoded.map_err(bad)?;
        let mut index = walked.map_err(|error| match error {
            plain::ImportError::Sink(error) => StreamError::Store(error),
            other => StreamError::Bad(other.to_string()),
        })?;
        Verified::check_stream(&diff_id, hasher).map_err(|error| StreamError::Bad(format!("diffID: {error}")))?;
        index.place_in_spans(&spans, compression);
        Ok(Streamed { index, compression })
    })
}

/// Puts objects into the store as they pass. A store without room is no failure: such objects are read from the
/// layer again when they are needed.
struct StoreSink<'a> {
    store: &'a dyn ObjectStore,
    current: Option<Box<dyn ObjectWriter>>,
    /// What is in the store because of it, or was there before.
    objects: Vec<Digest>,
    must_keep: bool,
}

impl<'a> StoreSink<'a> {
    fn new(store: &'a dyn ObjectStore, must_keep: bool) -> Self {
        Self { store, current: None, objects: Vec::new(), must_keep }
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(writer) = &mut self.current else { return Ok(()) };
        if let Err(error) = writer.write_all(bytes) {
            tracing::debug!(%error, "an object is not kept");
            self.current = None;
            if self.must_keep {
                return Err(StoreError::Full);
            }
        }
        Ok(())
    }
}

impl ObjectSink for StoreSink<'_> {
    type Error = StoreError;

    fn begin(&mut self, size: u64) -> Result<(), StoreError> {
        self.current = match self.store.writer(size) {
            Ok(writer) => Some(writer),
            Err(StoreError::Full) if !self.must_keep => None,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_all(bytes)
    }

    fn hole(&mut self, mut length: u64) -> Result<(), StoreError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        while length > 0 {
            let now = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
            self.write_all(&ZEROS[..now])?;
            length -= now as u64;
        }
        Ok(())
    }

    fn finish(&mut self, proof: Verified<()>) -> Result<(), StoreError> {
        let object = *proof.digest();
        match self.current.take().map(|writer| writer.publish(proof)) {
            Some(Ok(())) if self.objects.len() < REMEMBERED => {
                self.objects.push(object);
                Ok(())
            }
            None | Some(Ok(())) => Ok(()),
            Some(Err(StoreError::Full)) if !self.must_keep => Ok(()),
            Some(Err(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Compression as LayerCompression;
    use tarpon_store::StoreConfig;
    use tarpon_testkit::layers::{Dialect, Item, Layer, tar};
    use tarpon_testkit::source::MemorySource;

    use super::super::pace::Unhindered;
    use super::*;

    const CONTENT: &[u8] = b"something that is only in this layer";

    fn layer() -> Layer {
        Layer::plain(&tar(&[Item::file("file", CONTENT)], Dialect::Pax), LayerCompression::Gzip)
    }

    /// Streams the layer, of which the config says this.
    async fn run(store: &Store, diff_id: Digest) -> Result<Streamed, StreamError> {
        let layer = layer();
        let source = Arc::new(MemorySource::new([layer.blob.clone().into()]));
        let store = store.clone();
        let (blob, pace) = (layer.descriptor(), Arc::new(Unhindered));
        let job = StreamJob { blob, diff_id, hides_toc_files: false, source, store, must_keep: false, pace };
        stream(job, |_| ()).await
    }

    #[tokio::test]
    async fn a_layer_that_is_refused_leaves_no_objects_in_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let _pin = store.pin().unwrap();
        let object = Digest::of(CONTENT);
        let refused = run(&store, Digest::of(b"another tar")).await;
        assert!(matches!(refused, Err(StreamError::Bad(_))) && !store.contains(&object));
        assert!(run(&store, layer().diff_id).await.is_ok() && store.contains(&object));
    }
}
