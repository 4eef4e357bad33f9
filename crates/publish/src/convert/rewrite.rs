//! One layer, streamed from the source through a writer to the destination.
//!
//! ```text
//! download + sha256 ─► decode + sha256 (diffID) ─► write ─► upload
//!     task                  thread                 thread     task
//! ```
//!
//! Bounded channels connect the stages. The upload is completed only after digest and diffID were verified.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::PathBuf;

use bytes::Bytes;
use futures::StreamExt;
use tarpon_blob::{BlobSource, Fault, SourceError};
use tarpon_images::access;
use tarpon_images::prepare::pipe::{self, BlobReader, DecodedReader, PIECES};
use tarpon_layer::decode::LayerReader;
use tarpon_layer::write::{
    EstargzOptions, WriteError, Written, ZstdChunkedOptions, estargz, estargz_prioritised, zstd_chunked,
};
use tarpon_layer::{Allowance, LayerPath};
use tarpon_oci::{Blob, Digest, Hasher, Verified};
use tarpon_registry::Destination;
use tokio::sync::mpsc;

use super::failure::{advised, outward};
use crate::upload::{self, Sink};
use crate::{Error, ErrorKind};

/// Size of the buffer before a spooled tar.
const SPOOL_BUFFER_BYTES: usize = 256 << 10;
/// Where tars are spooled unless `$TMPDIR` is set: they are large, and `/tmp` is often in memory.
const SPOOL_DIR: &str = "/var/tmp";

/// How layers are written.
#[derive(Debug, Clone)]
pub(super) enum Recipe {
    Estargz { options: EstargzOptions, prioritised: Vec<LayerPath> },
    ZstdChunked(ZstdChunkedOptions),
}

/// A layer to be rewritten.
pub(super) struct Rewrite<'a> {
    pub(super) blob: Blob,
    /// The hash of the decompressed layer by the image config.
    pub(super) diff_id: Digest,
    pub(super) source: &'a dyn BlobSource,
    pub(super) recipe: &'a Recipe,
}

/// Why it failed.
pub(super) enum RewriteError {
    /// The download failed, or its digest is wrong.
    Source(SourceError),
    /// The layer cannot be decoded, or contradicts the config.
    Bad(String),
    /// The layer cannot be written in the format.
    Write(WriteError),
    /// The upload failed.
    Push(tarpon_registry::Error),
    /// The spool failed.
    Spool(io::Error),
}

impl RewriteError {
    /// The public form of the error.
    pub(super) fn outward(self, step: String) -> Error {
        match self {
            Self::Source(error) => advised(access::source(step, error)),
            Self::Push(error) => outward(step, error),
            Self::Bad(cause) => Error::new(ErrorKind::Refused, step, cause),
            Self::Write(error @ WriteError::HoldsToc) => Error::new(ErrorKind::Refused, step, error)
                .hint("without --force such a layer is copied; without --keep-diff-id it is rewritten"),
            Self::Write(error @ WriteError::Toc(_)) => Error::new(ErrorKind::Refused, step, error).hint(
                "a name that is in the layer twice, as two different things, has no place in a table of contents",
            ),
            Self::Write(error @ WriteError::Options(_)) => Error::new(ErrorKind::Other, "read the options", error),
            Self::Write(error) => Error::new(ErrorKind::Refused, step, error),
            Self::Spool(error) => Error::new(ErrorKind::Other, step, format!("the temporary file: {error}"))
                .hint("$TMPDIR names the directory for temporary files"),
        }
    }
}

/// Rewrites the layer. `received` is called with the size of every piece that arrives.
pub(super) async fn rewrite(
    job: Rewrite<'_>,
    destination: &Destination,
    received: impl Fn(u64) + Send,
) -> Result<Written, RewriteError> {
    let (pieces, reader) = mpsc::channel(PIECES);
    let (mut sink, up) = upload::channel();
    // One for each layer: nothing of it stays in memory once it is written.
    let allowance = Allowance::for_writing();
    let (diff_id, recipe, memory) = (job.diff_id, job.recipe.clone(), allowance.clone());
    let received = move |bytes| {
        allowance.receive(bytes);
        received(bytes);
    };
    let writing = tokio::task::spawn_blocking(move || {
        let written = write(BlobReader::new(reader), diff_id, &recipe, &memory, &mut sink);
        let sent = sink.finish(written.is_ok());
        let written = written?;
        sent.map(|()| written).map_err(|error| RewriteError::Write(WriteError::Blob(error)))
    });
    let (downloaded, pushed, written) =
        futures::join!(download(job.source, job.blob, pieces, received), destination.push_stream(up), writing);
    let written = written.unwrap_or_else(|error| Err(RewriteError::Bad(error.to_string())));
    // A failed download is the cause of any error of the writer, and a failed upload of its broken output.
    downloaded.map_err(RewriteError::Source)?;
    match (written, pushed) {
        (Err(RewriteError::Write(WriteError::Blob(_))), Err(error)) => Err(RewriteError::Push(error)),
        (Err(error), _) => Err(error),
        (Ok(_), Err(error)) => Err(RewriteError::Push(error)),
        (Ok(written), Ok(blob)) if blob == written.blob => Ok(written),
        (Ok(_), Ok(blob)) => Err(RewriteError::Bad(format!("the destination calls the new blob {}", blob.digest))),
    }
}

/// Fetches the whole blob, hashes it and passes it on. It sends an error as the last item, so that the reader does not mistake the
/// end of damaged bytes for the end of the blob.
async fn download(
    source: &dyn BlobSource,
    blob: Blob,
    pieces: mpsc::Sender<Result<Bytes, SourceError>>,
    received: impl Fn(u64) + Send,
) -> Result<(), SourceError> {
    let outcome = pass(source, blob, &pieces, received).await;
    if let Err(error) = &outcome {
        // A reader that has ended reports its own error.
        let _ = pieces.send(Err(error.clone())).await;
    }
    outcome
}

async fn pass(
    source: &dyn BlobSource,
    blob: Blob,
    pieces: &mpsc::Sender<Result<Bytes, SourceError>>,
    received: impl Fn(u64) + Send,
) -> Result<(), SourceError> {
    let mut hasher = Hasher::new();
    if blob.size > 0 {
        let mut stream = source.read(blob, 0..blob.size).await?;
        while let Some(piece) = stream.next().await {
            let piece = piece?;
            hasher.update(&piece);
            received(piece.len() as u64);
            if pieces.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
        }
    }
    let checked = Verified::check_stream(&blob.digest, hasher);
    checked.map(drop).map_err(|error| SourceError::new(Fault::BadData, error.to_string()))
}

/// Decodes on one thread and writes on this one; compares the diffID at the end.
fn write(
    blob: BlobReader,
    diff_id: Digest,
    recipe: &Recipe,
    allowance: &Allowance,
    up: &mut Sink,
) -> Result<Written, RewriteError> {
    let decoder = LayerReader::sniffed(blob).map_err(bad)?;
    std::thread::scope(|scope| {
        let (sink, tar) = pipe::decoded();
        let decoding = scope.spawn(move || decode(decoder, &sink));
        let decoded = || decoding.join().map_err(|_| RewriteError::Bad("the decoder panicked".into()))?.map_err(bad);
        match recipe {
            Recipe::Estargz { options, prioritised } if !prioritised.is_empty() => {
                let spooled = spool(tar);
                let (decoded, spooled) = (decoded()?, spooled?);
                check(diff_id, decoded)?;
                estargz_prioritised(spooled, prioritised, up, options, allowance).map_err(RewriteError::Write)
            }
            _ => {
                let written = stream(tar, recipe, allowance, up);
                // The decoder's error is the cause of the writer's error about the end of its input.
                let (decoded, written) = (decoded()?, written?);
                check(diff_id, decoded)?;
                Ok(written)
            }
        }
    })
}

/// Writes the tar as it comes.
fn stream(
    mut tar: DecodedReader,
    recipe: &Recipe,
    allowance: &Allowance,
    up: &mut Sink,
) -> Result<Written, RewriteError> {
    let written = match recipe {
        Recipe::Estargz { options, .. } => estargz(&mut tar, up, options, allowance),
        Recipe::ZstdChunked(options) => zstd_chunked(&mut tar, up, options, allowance),
    };
    let written = written.map_err(RewriteError::Write)?;
    // The rest that a writer does not read is still hashed.
    io::copy(&mut tar, &mut io::sink()).map_err(bad)?;
    Ok(written)
}

/// Decodes to the blob's end, or until the reader stops.
fn decode(mut decoder: LayerReader<BlobReader>, sink: &pipe::DecodedSink) -> io::Result<Hasher> {
    let hasher = pipe::pump(&mut decoder, sink)?;
    if decoder.read(&mut [0])? == 0 {
        io::copy(&mut decoder.into_inner(), &mut io::sink())?;
    }
    Ok(hasher)
}

fn check(diff_id: Digest, tar: Hasher) -> Result<(), RewriteError> {
    let checked = Verified::check_stream(&diff_id, tar);
    checked.map(drop).map_err(|error| RewriteError::Bad(format!("diffID: {error}")))
}

fn bad(error: io::Error) -> RewriteError {
    RewriteError::Bad(error.to_string())
}

/// The tar in an unnamed file, which disappears with the process at the latest.
fn spool(mut tar: DecodedReader) -> Result<impl Read + Seek + use<>, RewriteError> {
    let directory = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from(SPOOL_DIR), PathBuf::from);
    let spooled = || -> io::Result<File> {
        let mut file = tempfile::tempfile_in(directory)?;
        io::copy(&mut tar, &mut file)?;
        Ok(file)
    };
    Ok(BufReader::with_capacity(SPOOL_BUFFER_BYTES, spooled().map_err(RewriteError::Spool)?))
}
