//! Blobs that are ranges of local files.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::{Blob, Digest, Verified, limits};

use crate::stats::Counters;

/// Bytes read at once: large enough to hide the switch to the blocking pool, small enough to pipeline.
const PIECE_BYTES: usize = 128 << 10;

/// The place of a blob.
#[derive(Debug, Clone)]
pub(crate) struct BlobPlace {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl BlobPlace {
    /// The whole content. The caller has checked that the size is modest.
    pub(crate) fn read_all(&self) -> io::Result<Bytes> {
        let length = usize::try_from(self.size).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, self.offset)?;
        Ok(Bytes::from(bytes))
    }
}

/// The blobs of a layout or archive.
pub(crate) struct LocalBlobs {
    kind: Kind,
    name: String,
    counters: Arc<Counters>,
}

enum Kind {
    /// `blobs/sha256/<hex>` under this directory.
    Directory(PathBuf),
    /// Parts of an archive.
    Places(HashMap<Digest, BlobPlace>),
}

impl LocalBlobs {
    pub(crate) fn directory(directory: PathBuf, name: String, counters: Arc<Counters>) -> Self {
        Self { kind: Kind::Directory(directory), name, counters }
    }

    pub(crate) fn places(places: HashMap<Digest, BlobPlace>, name: String, counters: Arc<Counters>) -> Self {
        Self { kind: Kind::Places(places), name, counters }
    }

    /// The length of a blob, if it exists.
    pub(crate) fn size(&self, digest: &Digest) -> Option<u64> {
        match &self.kind {
            Kind::Places(places) => places.get(digest).map(|place| place.size),
            Kind::Directory(directory) => {
                let metadata = std::fs::metadata(directory.join("blobs/sha256").join(digest.hex())).ok()?;
                metadata.is_file().then_some(metadata.len())
            }
        }
    }

    /// The blob `digest`, of any size. Blocks on the local disk.
    pub(super) fn named(&self, digest: &Digest) -> Result<Blob, SourceError> {
        let missing = || SourceError::new(Fault::NotFound, format!("{}: blob {digest}: not there", self.name));
        Ok(Blob { digest: *digest, size: self.size(digest).ok_or_else(missing)? })
    }

    /// Finds `blob` and checks its size. Blocks on the local disk.
    fn place(&self, blob: Blob) -> Result<BlobPlace, SourceError> {
        let fail = |fault, why: String| SourceError::new(fault, format!("{}: blob {}: {why}", self.name, blob.digest));
        let missing = || fail(Fault::NotFound, "not there".to_owned());
        let place = match &self.kind {
            Kind::Places(places) => places.get(&blob.digest).cloned().ok_or_else(missing)?,
            Kind::Directory(directory) => {
                let path = directory.join("blobs/sha256").join(blob.digest.hex());
                let opened = File::open(&path).and_then(|file| Ok((file.metadata()?, file)));
                let (metadata, file) = opened.map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => missing(),
                    _ => fail(Fault::Unavailable, error.to_string()),
                })?;
                if !metadata.is_file() {
                    return Err(fail(Fault::BadData, "not a regular file".to_owned()));
                }
                BlobPlace { file: Arc::new(file), offset: 0, size: metadata.len() }
            }
        };
        if place.size != blob.size {
            return Err(fail(Fault::BadData, format!("{} bytes instead of {}", place.size, blob.size)));
        }
        Ok(place)
    }

    /// Reads a short blob whole.
    pub(crate) async fn small_blob(self: &Arc<Self>, blob: Blob) -> Result<Verified<Bytes>, SourceError> {
        let blobs = self.clone();
        blocking(move || blobs.read_small(blob)).await
    }

    /// Reads a manifest whole. Blocks on the local disk.
    pub(super) fn read_manifest(&self, blob: Blob) -> Result<Verified<Bytes>, SourceError> {
        if blob.size > limits::MANIFEST_BYTES {
            let message = format!("{}: manifest {}: {} bytes are more than allowed", self.name, blob.digest, blob.size);
            return Err(SourceError::new(Fault::Refused, message));
        }
        self.read_small(blob)
    }

    fn read_small(&self, blob: Blob) -> Result<Verified<Bytes>, SourceError> {
        let place = self.place(blob)?;
        self.counters.request();
        self.counters.received(place.size);
        let bytes = place.read_all().map_err(|error| self.failed(blob, &error))?;
        Verified::check(&blob.digest, bytes)
            .map_err(|error| SourceError::new(Fault::BadData, format!("{}: {error}", self.name)))
    }

    fn failed(&self, blob: Blob, error: &io::Error) -> SourceError {
        SourceError::new(Fault::Unavailable, format!("{}: blob {}: {error}", self.name, blob.digest))
    }
}

/// Runs `work` on a thread that may block on the disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(SourceError::new(Fault::Unavailable, "the program is exiting")))
}

/// [`LocalBlobs`] as a source.
pub(crate) struct LocalSource(pub(crate) Arc<LocalBlobs>);

impl BlobSource for LocalSource {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let blobs = self.0.clone();
        async move {
            if range.is_empty() || range.end > blob.size {
                let message = format!("bytes {}-{} are not in a blob of {}", range.start, range.end, blob.size);
                return Err(SourceError::new(Fault::BadData, message));
            }
            let finder = blobs.clone();
            let place = blocking(move || finder.place(blob)).await?;
            blobs.counters.request();
            let pieces = stream::try_unfold(range, move |rest| {
                let (blobs, place) = (blobs.clone(), place.clone());
                async move {
                    if rest.is_empty() {
                        return Ok(None);
                    }
                    let length = usize::try_from(rest.end - rest.start).unwrap_or(usize::MAX).min(PIECE_BYTES);
                    let counted = u64::try_from(length).unwrap_or(u64::MAX);
                    let next = rest.start + counted..rest.end;
                    let piece = blocking(move || {
                        let mut piece = vec![0; length];
                        let read = place.file.read_exact_at(&mut piece, place.offset + rest.start);
                        read.map_err(|error| blobs.failed(blob, &error))?;
                        blobs.counters.received(counted);
                        Ok(Bytes::from(piece))
                    })
                    .await?;
                    Ok(Some((piece, next)))
                }
            });
            Ok(pieces.boxed())
        }
        .boxed()
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}
