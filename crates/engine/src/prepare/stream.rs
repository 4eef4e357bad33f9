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

use super::pipe::{self, BlobReader, PIECES};
use crate::{Error, ErrorKind, access};

/// What streaming a layer gives.
pub(super) struct Streamed {
    pub(super) index: LayerIndex,
    pub(super) compression: Compression,
}

/// A layer to be streamed.
pub(super) struct StreamJob {
    pub(super) blob: Blob,
    /// What the image config says that the decompressed layer hashes to.
    pub(super) diff_id: Digest,
    /// Claimed to be eStargz or zstd:chunked, though not readable as such.
    pub(super) hides_toc_files: bool,
    pub(super) source: Arc<dyn BlobSource>,
    pub(super) store: Arc<dyn ObjectStore>,
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
    let StreamJob { blob, diff_id, hides_toc_files, source, store } = job;
    let importing =
        tokio::task::spawn_blocking(move || import(BlobReader::new(reader), diff_id, hides_toc_files, store));
    let downloaded = download(&*source, blob, pieces, received).await;
    let imported = importing.await.map_err(|error| StreamError::Bad(error.to_string()))?;
    // A failed download is the cause of whatever the importer said about its broken input; a wrong digest is not.
    match (downloaded, imported) {
        (Err(error @ StreamError::Source(_)), _) => Err(error),
        (_, Err(error)) => Err(error),
        (Err(error), _) => Err(error),
        (Ok(_), Ok(streamed)) => Ok(streamed),
    }
}

/// Brings the whole blob, hashes it and passes it on.
async fn download(
    source: &dyn BlobSource,
    blob: Blob,
    pieces: tokio::sync::mpsc::Sender<Result<bytes::Bytes, SourceError>>,
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
            received(piece.len() as u64);
            if pieces.send(Ok(piece)).await.is_err() {
                return Err(StreamError::Bad("the import ended before the layer did".into()));
            }
        }
    }
    Verified::check_stream(&blob.digest, hasher).map_err(|error| StreamError::Bad(error.to_string()))
}

/// Decodes on one thread and walks on another; compares the diffID at the end.
fn import(
    blob: BlobReader,
    diff_id: Digest,
    hides_toc_files: bool,
    store: Arc<dyn ObjectStore>,
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
        let walked = plain::import(reader, Options { access, hides_toc_files }, &mut StoreSink::new(&*store));
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
}

impl<'a> StoreSink<'a> {
    fn new(store: &'a dyn ObjectStore) -> Self {
        Self { store, current: None }
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(writer) = &mut self.current else { return Ok(()) };
        if let Err(error) = writer.write_all(bytes) {
            tracing::debug!(%error, "an object is not kept");
            self.current = None;
        }
        Ok(())
    }
}

impl ObjectSink for StoreSink<'_> {
    type Error = StoreError;

    fn begin(&mut self, size: u64) -> Result<(), StoreError> {
        self.current = match self.store.writer(size) {
            Ok(writer) => Some(writer),
            Err(StoreError::Full) => None,
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
        match self.current.take().map(|writer| writer.publish(proof)) {
            None | Some(Ok(()) | Err(StoreError::Full)) => Ok(()),
            Some(Err(error)) => Err(error),
        }
    }
}
