//! A layer without a usable table of contents: streamed once, from the wire into the store and an index.
//!
//! The index is trusted only after the blob's digest and the tar's diffID have been checked at the end. Objects need no such proof: each is
//! linked in under the sha256 of its own bytes.

use std::collections::HashSet;
use std::io::{self, Write};

use bytes::Bytes;
use futures::StreamExt;
use tarpon_blob::{ObjectStore, ObjectWriter, SourceError, StoreError};
use tarpon_layer::decode::Compression;
use tarpon_layer::plain::{self, ObjectSink, Options};
use tarpon_layer::spans::SpanReader;
use tarpon_layer::{Allowance, LayerIndex};
use tarpon_oci::{Digest, Hasher, Verified};

use super::beginning::Beginning;
use super::pipe::{self, BlobReader, PIECES};
use super::shared::Copy;
use super::stream_job::StreamJob;
use crate::access;
use crate::error::{Error, ErrorKind};

/// The result of streaming a layer.
pub(super) struct Streamed {
    pub(super) index: LayerIndex,
    pub(super) compression: Compression,
    /// The blob's digest matched.
    pub(super) proof: Verified<()>,
}

/// Maximum number of remembered objects of an import: less than 16 MiB. Beyond that, objects of a failed import stay until they are evicted,
/// and one that occurs again is offered to the store again.
const REMEMBERED: usize = 7 << 15;

/// Why it failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    /// The download failed.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The blob contradicts the manifest, or is no layer.
    #[error("{0}")]
    Bad(String),
    /// The store failed.
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// The public form of the error.
pub(super) fn outward(step: String, error: StreamError) -> Error {
    match error {
        StreamError::Source(error) => access::source(step, error),
        StreamError::Bad(cause) => Error::new(ErrorKind::Refused, step, cause),
        StreamError::Store(error) => Error::new(ErrorKind::Store, step, error),
    }
}

/// Streams the layer, with a `copy` for other hosts. `received` is called with the size of every piece that arrives, including those that an
/// earlier attempt left.
pub(super) async fn stream(
    job: StreamJob,
    mut copy: Option<&mut Copy>,
    received: impl Fn(u64) + Send + Sync,
) -> Result<Streamed, StreamError> {
    let mut beginning = Beginning::open(&job).await;
    let is_resumed = beginning.held() > 0;
    let (mut outcome, mut objects) = attempt(&job, &mut beginning, copy.as_deref_mut(), &received).await;
    let is_bad = matches!(outcome, Err(StreamError::Bad(_)));
    if is_bad && (job.source.distrust(&job.blob.digest) || is_resumed) {
        // Perhaps the layer is correct, and only its kept part is not, or the mirror that sent it.
        beginning.discard().await;
        let mut none = Beginning::none();
        if let Some(copy) = &mut copy {
            copy.give_up();
        }
        let again;
        (outcome, again) = attempt(&job, &mut none, copy, &received).await;
        objects.extend(again);
    }
    match &outcome {
        Ok(_) => beginning.discard().await,
        // The objects of a wrong layer are useless, those of an interrupted one are not.
        Err(StreamError::Bad(_)) => {
            beginning.discard().await;
            let store = job.store;
            // After a failure here, the next eviction removes them.
            let _left = tokio::task::spawn_blocking(move || store.discard(&Vec::from_iter(objects))).await;
        }
        Err(_) => beginning.leave().await,
    }
    outcome
}

/// One pass over the layer. Also returns the objects that it added to the store.
async fn attempt(
    job: &StreamJob,
    beginning: &mut Beginning,
    copy: Option<&mut Copy>,
    received: &(impl Fn(u64) + Send + Sync),
) -> (Result<Streamed, StreamError>, HashSet<Digest>) {
    let (pieces, reader) = tokio::sync::mpsc::channel(PIECES);
    let (into, diff_id, hides_toc_files, must_keep) =
        (job.store.clone(), job.diff_id, job.hides_toc_files, job.must_keep);
    let allowance = job.allowance.clone();
    let importing = tokio::task::spawn_blocking(move || {
        let mut sink = StoreSink::new(&into, must_keep);
        let imported = import(BlobReader::new(reader), diff_id, hides_toc_files, &allowance, &mut sink);
        (imported, sink.objects)
    });
    let downloaded = download(job, beginning, copy, pieces, received).await;
    let (imported, objects) = match importing.await {
        Ok(done) => done,
        Err(error) => return (Err(StreamError::Bad(error.to_string())), HashSet::new()),
    };
    // A failed download is the cause of the importer's error about its broken input. A wrong digest is not.
    let outcome = match (downloaded, imported) {
        (Err(error @ StreamError::Source(_)), _) => Err(error),
        (_, Err(error)) => Err(error),
        (Err(error), _) => Err(error),
        (Ok(proof), Ok((index, compression))) => Ok(Streamed { index, compression, proof }),
    };
    (outcome, objects)
}

/// Fetches the whole blob, hashes it and passes it on: first the local part, then the rest from its source.
async fn download(
    job: &StreamJob,
    beginning: &mut Beginning,
    mut copy: Option<&mut Copy>,
    pieces: tokio::sync::mpsc::Sender<Result<Bytes, SourceError>>,
    received: &(impl Fn(u64) + Send + Sync),
) -> Result<Verified<()>, StreamError> {
    let (mut hasher, mut at) = (Hasher::new(), 0);
    let ended_early = || StreamError::Bad("the import ended before the layer did".into());
    while let Some(piece) = beginning.read(at).await {
        hasher.update(&piece);
        at += piece.len() as u64;
        job.allowance.receive(piece.len() as u64);
        received(piece.len() as u64);
        if let Some(copy) = &mut copy {
            copy.push(&piece).await;
        }
        pieces.send(Ok(piece)).await.map_err(|_gone| ended_early())?;
    }
    if at < job.blob.size {
        beginning.continue_from(at);
        let mut stream = job.source.read(job.blob, at..job.blob.size).await?;
        while let Some(piece) = stream.next().await {
            if let Err(error) = &piece {
                let error = error.clone();
                let _ = pieces.send(piece).await;
                return Err(error.into());
            }
            let piece = piece?;
            let length = piece.len() as u64;
            hasher.update(&piece);
            job.allowance.receive(length);
            received(length);
            beginning.append(&piece).await;
            if let Some(copy) = &mut copy {
                copy.push(&piece).await;
            }
            pieces.send(Ok(piece)).await.map_err(|_gone| ended_early())?;
        }
    }
    Verified::check_stream(&job.blob.digest, hasher).map_err(|error| StreamError::Bad(error.to_string()))
}

/// Decodes on one thread and walks on another; compares the diffID at the end.
fn import(
    blob: BlobReader,
    diff_id: Digest,
    hides_toc_files: bool,
    allowance: &Allowance,
    objects: &mut StoreSink<'_>,
) -> Result<(LayerIndex, Compression), StreamError> {
    let bad = |error: io::Error| StreamError::Bad(error.to_string());
    let mut decoder = SpanReader::within(blob, allowance).map_err(bad)?;
    let compression = decoder.compression();
    let access = match compression {
        Compression::None => plain::Access::Random,
        Compression::Gzip | Compression::Zstd => plain::Access::Spans(decoder.starts()),
    };
    let (sink, reader) = pipe::decoded();
    std::thread::scope(|scope| {
        // The sink belongs to the decoding thread: when that ends, the walker sees the end of its input.
        let decoding = scope.spawn(move || Ok((pipe::pump(&mut decoder, &sink)?, decoder.finish())));
        let walked = plain::import_within(reader, Options { access, hides_toc_files }, allowance, objects);
        let decoded = decoding.join().map_err(|_| StreamError::Bad("the decoder panicked".into()))?;
        let (hasher, spans) = decoded.map_err(bad)?;
        let mut index = walked.map_err(|error| match error {
            plain::ImportError::Sink(error) => StreamError::Store(error),
            other => StreamError::Bad(other.to_string()),
        })?;
        Verified::check_stream(&diff_id, hasher).map_err(|error| StreamError::Bad(format!("diffID: {error}")))?;
        index.place_in_spans(&spans, compression);
        Ok((index, compression))
    })
}

/// Puts objects into the store as they pass. A store without room is no failure: such objects are read from the layer again when they are
/// needed.
struct StoreSink<'a> {
    store: &'a dyn ObjectStore,
    current: Option<Box<dyn ObjectWriter>>,
    /// Objects in the store, added by this import or before.
    objects: HashSet<Digest>,
    must_keep: bool,
}

impl<'a> StoreSink<'a> {
    fn new(store: &'a dyn ObjectStore, must_keep: bool) -> Self {
        Self { store, current: None, objects: HashSet::new(), must_keep }
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
        // One that occurs again is in the store: the pin of this import keeps it there.
        let writer = self.current.take().filter(|_| !self.objects.contains(&object));
        match writer.map(|writer| writer.publish(proof)) {
            Some(Ok(())) if self.objects.len() < REMEMBERED => {
                self.objects.insert(object);
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
    use std::sync::Arc;

    use tarpon_oci::Compression as LayerCompression;
    use tarpon_store::{Store, StoreConfig};
    use tarpon_testkit::layers::{Dialect, Item, Layer, tar};
    use tarpon_testkit::source::{MemorySource, Then};

    use super::*;

    const CONTENT: &[u8] = b"something that is only in this layer";

    fn layer() -> Layer {
        Layer::plain(&tar(&[Item::file("file", CONTENT)], Dialect::Pax), LayerCompression::Gzip)
    }

    /// Streams the layer with this diffID in the config.
    async fn run(store: &Store, diff_id: Digest) -> Result<Streamed, StreamError> {
        let layer = layer();
        let source = Arc::new(MemorySource::new([layer.blob.clone().into()]));
        let store = store.clone();
        let (blob, allowance) = (layer.descriptor(), Allowance::default());
        let job = StreamJob { blob, diff_id, hides_toc_files: false, source, store, must_keep: false, allowance };
        stream(job, None, |_| ()).await
    }

    /// A layer that is large enough to be resumed.
    fn large() -> Layer {
        let content: Vec<u8> = (0_u32..2_400_000).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let items = [Item::file("large", content), Item::file("file", CONTENT)];
        Layer::plain(&tar(&items, Dialect::Pax), LayerCompression::None)
    }

    async fn run_from(store: &Store, source: &Arc<MemorySource>, layer: &Layer) -> Result<Streamed, StreamError> {
        let (store, source) = (store.clone(), source.clone());
        let (blob, diff_id) = (layer.descriptor(), layer.diff_id);
        let allowance = Allowance::default();
        let job = StreamJob { blob, diff_id, hides_toc_files: false, source, store, must_keep: false, allowance };
        stream(job, None, |_| ()).await
    }

    /// A store that has room, however full the disk of the tests is.
    fn open(folder: &std::path::Path) -> Store {
        let config = StoreConfig { budget: Some(1 << 30), free_floor: Some(0), ..StoreConfig::default() };
        Store::open(folder, config).unwrap()
    }

    /// Interrupts the layer after this many bytes and returns its source, whole again.
    async fn broken_off(store: &Store, layer: &Layer, after: usize) -> Arc<MemorySource> {
        let source = Arc::new(MemorySource::new([layer.blob.clone().into()]));
        source.script([Then::Break(after, tarpon_blob::Fault::Unavailable).into()]);
        let broken = run_from(store, &source, layer).await;
        assert!(matches!(broken, Err(StreamError::Source(_))));
        source
    }

    fn part_of(folder: &std::path::Path, layer: &Layer) -> std::path::PathBuf {
        folder.join("partial/layers").join(layer.descriptor().digest.hex())
    }

    const AFTER: usize = 3_000_000;

    #[test]
    fn a_content_that_occurs_again_is_stored_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let _pin = store.pin().unwrap();
        let mut sink = StoreSink::new(&store, true);
        let hex = Digest::of(CONTENT).hex();
        let object = folder.path().join("objects").join(&hex[..2]).join(&hex[2..]);
        let times = [(); 2].map(|()| {
            sink.begin(CONTENT.len() as u64).unwrap();
            sink.write(CONTENT).unwrap();
            sink.finish(Verified::seal(CONTENT).proof()).unwrap();
            std::fs::metadata(&object).unwrap().modified().unwrap()
        });
        assert_eq!(times[0], times[1], "the store marks what it is offered again as used");
        assert_eq!(sink.objects, HashSet::from([Digest::of(CONTENT)]));
    }

    #[tokio::test]
    async fn an_interrupted_layer_is_resumed_at_its_end() {
        let (folder, layer) = (tempfile::tempdir().unwrap(), large());
        let source = broken_off(&open(folder.path()), &layer, AFTER).await;
        let store = open(folder.path());
        let streamed = run_from(&store, &source, &layer).await.unwrap();
        let ranges: Vec<_> = source.requests().into_iter().map(|(_, range)| range).collect();
        let size = layer.descriptor().size;
        assert_eq!(ranges, [0..size, AFTER as u64..size]);
        let other = tempfile::tempdir().unwrap();
        let whole = run_from(&open(other.path()), &source, &layer).await;
        assert_eq!(streamed.index, whole.unwrap().index, "as if it had come in one piece");
        assert!(store.contains(&Digest::of(CONTENT)));
        assert!(!part_of(folder.path(), &layer).exists(), "it is not needed any more");
    }

    #[tokio::test]
    async fn a_wrong_beginning_is_dropped_and_the_layer_streamed_again_once() {
        let (folder, layer) = (tempfile::tempdir().unwrap(), large());
        let source = broken_off(&open(folder.path()), &layer, AFTER).await;
        let part = part_of(folder.path(), &layer);
        std::fs::write(&part, vec![0; AFTER]).unwrap();
        let store = open(folder.path());
        run_from(&store, &source, &layer).await.unwrap();
        let starts: Vec<_> = source.requests().into_iter().map(|(_, range)| range.start).collect();
        assert_eq!((starts.first(), starts.last()), (Some(&0), Some(&0)), "from the beginning: {starts:?}");
        assert!(starts.len() <= 3 && !part.exists(), "{starts:?}");
        assert!(store.contains(&Digest::of(CONTENT)));
    }

    #[tokio::test]
    async fn a_store_without_room_to_spare_keeps_no_beginning() {
        let (folder, layer) = (tempfile::tempdir().unwrap(), large());
        let config = StoreConfig { budget: Some(1 << 20), ..StoreConfig::default() };
        let source = broken_off(&Store::open(folder.path(), config).unwrap(), &layer, AFTER).await;
        assert!(!part_of(folder.path(), &layer).exists());
        run_from(&open(folder.path()), &source, &layer).await.unwrap();
    }

    #[tokio::test]
    async fn a_layer_that_is_refused_leaves_no_objects_in_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let _pin = store.pin().unwrap();
        let object = Digest::of(CONTENT);
        let refused = run(&store, Digest::of(b"another tar")).await;
        assert!(matches!(refused, Err(StreamError::Bad(_))) && !store.contains(&object));
        assert!(run(&store, layer().diff_id).await.is_ok() && store.contains(&object));
    }
}
