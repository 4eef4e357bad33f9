//! Layers as stored in the registry, for Podman to push or save. Each is fetched whole, into an unnamed file, and read from there in any
//! order. A read waits for its part. The last bytes are returned once the whole layer matches its digest.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use tarpon_blob::BlobSource;
use tarpon_fs::Errno;
use tarpon_oci::{Blob, Digest, Hasher, Verified};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

/// Maximum number of layers fetched concurrently: Podman pushes six.
const AT_A_TIME: usize = 6;
/// How long a read waits for its bytes, queueing included: less than the watchdog of mounts waits for a response.
const READ_TIMEOUT: Duration = Duration::from_secs(100);
/// How long an unread layer is kept.
const IDLE: Duration = Duration::from_secs(60);

/// All layers that are being read.
pub(super) struct Spools {
    folder: PathBuf,
    runtime: Handle,
    turns: Arc<Semaphore>,
    all: Mutex<HashMap<Digest, Arc<Spool>>>,
}

/// A layer.
struct Spool {
    file: Arc<File>,
    here: watch::Receiver<Here>,
    task: AbortHandle,
    last: Mutex<Instant>,
}

/// The fetch state of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Here {
    /// So many bytes were fetched, not yet verified.
    Bytes(u64),
    /// The whole layer was fetched and verified.
    Whole,
    /// The fetch has failed.
    Failed,
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Spools {
    pub(super) fn new(folder: PathBuf, runtime: Handle) -> Self {
        Self { folder, runtime, turns: Arc::new(Semaphore::new(AT_A_TIME)), all: Mutex::default() }
    }

    /// Reads a part of the layer.
    pub(super) fn read(
        &self,
        blob: Blob,
        source: Arc<dyn BlobSource>,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Result<Bytes, Errno>> + Send + use<> {
        let spool = self.spool(blob, source);
        async move {
            let spool = spool?;
            let end = offset.saturating_add(length.into()).min(blob.size);
            let length = usize::try_from(end.saturating_sub(offset)).map_err(|_| Errno::Invalid)?;
            if length == 0 {
                return Ok(Bytes::new());
            }
            let is_here = |here: &Here| match here {
                Here::Bytes(count) => *count >= end && end < blob.size,
                Here::Whole | Here::Failed => true,
            };
            let mut here = spool.here.clone();
            let waited = async { here.wait_for(is_here).await.map(|here| *here) };
            match tokio::time::timeout(READ_TIMEOUT, waited).await {
                Ok(Ok(Here::Bytes(_) | Here::Whole)) => {}
                _ => return Err(Errno::Io),
            }
            let file = spool.file.clone();
            let read = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
            });
            let bytes = read.await.map_err(|_| Errno::Io)?.map_err(|error| {
                tracing::warn!(%error, layer = %blob.digest, "a layer that was brought for Podman cannot be read");
                Errno::Io
            })?;
            *spool.last.lock() = Instant::now();
            Ok(bytes)
        }
    }

    fn spool(&self, blob: Blob, source: Arc<dyn BlobSource>) -> Result<Arc<Spool>, Errno> {
        let mut all = self.all.lock();
        if let Some(spool) = all.get(&blob.digest).filter(|spool| *spool.here.borrow() != Here::Failed) {
            *spool.last.lock() = Instant::now();
            return Ok(spool.clone());
        }
        let file = tempfile::tempfile_in(&self.folder).map_err(|error| {
            tracing::warn!(%error, "no room for a layer that Podman wants to read");
            Errno::Io
        })?;
        let file = Arc::new(file);
        let (progress, here) = watch::channel(Here::Bytes(0));
        let bringing = bring(blob, source, file.clone(), self.turns.clone(), progress);
        let task = self.runtime.spawn(bringing).abort_handle();
        let spool = Arc::new(Spool { file, here, task, last: Mutex::new(Instant::now()) });
        all.insert(blob.digest, spool.clone());
        Ok(spool)
    }

    /// Releases layers that are no longer read. A waiting reader holds a reference.
    pub(super) fn tidy(&self) {
        self.all.lock().retain(|_, spool| Arc::strong_count(spool) > 1 || spool.last.lock().elapsed() < IDLE);
    }
}

async fn bring(
    blob: Blob,
    source: Arc<dyn BlobSource>,
    file: Arc<File>,
    turns: Arc<Semaphore>,
    progress: watch::Sender<Here>,
) {
    let _turn = turns.acquire().await;
    let outcome = match download(blob, &*source, file, &progress).await {
        Ok(_) => Here::Whole,
        Err(problem) => {
            tracing::warn!(layer = %blob.digest, "Podman cannot read the layer: {problem}");
            Here::Failed
        }
    };
    progress.send_replace(outcome);
}

async fn download(
    blob: Blob,
    source: &dyn BlobSource,
    file: Arc<File>,
    progress: &watch::Sender<Here>,
) -> Result<Verified<()>, String> {
    let (mut hasher, mut at) = (Hasher::new(), 0);
    if blob.size > 0 {
        let mut stream = source.read(blob, 0..blob.size).await.map_err(|error| error.to_string())?;
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| error.to_string())?;
            hasher.update(&piece);
            let (into, length) = (file.clone(), piece.len() as u64);
            let written = tokio::task::spawn_blocking(move || into.write_all_at(&piece, at)).await;
            written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            at += length;
            progress.send_replace(Here::Bytes(at));
        }
    }
    Verified::check_stream(&blob.digest, hasher).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use futures::{FutureExt, stream};
    use tarpon_blob::{BlobStream, SourceError};

    use super::*;

    /// Returns these bytes, whatever the request.
    struct Gives(Bytes);

    impl BlobSource for Gives {
        fn read(&self, _: Blob, range: std::ops::Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
            assert_eq!(range, 0..self.0.len() as u64, "all of it, once");
            let pieces: Vec<_> = self.0.chunks(1000).map(|piece| Ok(self.0.slice_ref(piece))).collect();
            async move { Ok(stream::iter(pieces).boxed()) }.boxed()
        }

        fn name(&self) -> String {
            "test".to_owned()
        }
    }

    fn layer() -> Bytes {
        (0..10_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    fn spools(folder: &tempfile::TempDir) -> Spools {
        Spools::new(folder.path().to_owned(), Handle::current())
    }

    #[tokio::test]
    async fn a_layer_is_read_in_any_order_and_brought_once() {
        let folder = tempfile::tempdir().unwrap();
        let (spools, bytes) = (spools(&folder), layer());
        let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
        let source: Arc<dyn BlobSource> = Arc::new(Gives(bytes.clone()));
        for (offset, length) in [(39_000, 1000), (0, 10), (12_345, 4096), (39_999, 4096), (40_000, 1), (u64::MAX, 1)] {
            let read = spools.read(blob, source.clone(), offset, length).await.unwrap();
            let start = usize::try_from(offset).unwrap().min(bytes.len());
            assert_eq!(read, bytes[start..(start + length as usize).min(bytes.len())]);
        }
        assert_eq!(spools.all.lock().len(), 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
    }

    #[tokio::test]
    async fn a_layer_stays_while_a_caller_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let (spools, bytes) = (spools(&folder), layer());
        let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
        let read = spools.read(blob, Arc::new(Gives(bytes.clone())), 0, 10);
        let is_kept = || {
            for spool in spools.all.lock().values() {
                *spool.last.lock() = Instant::now().checked_sub(IDLE * 2).unwrap();
            }
            spools.tidy();
            spools.all.lock().len() == 1
        };
        assert!(is_kept());
        assert_eq!(read.await.unwrap(), bytes[..10]);
        assert!(!is_kept());
    }

    #[tokio::test]
    async fn of_a_layer_that_is_another_the_last_bytes_are_not_given() {
        let folder = tempfile::tempdir().unwrap();
        let (spools, bytes) = (spools(&folder), layer());
        let blob = Blob { digest: Digest::of(b"another"), size: bytes.len() as u64 };
        let source: Arc<dyn BlobSource> = Arc::new(Gives(bytes.clone()));
        assert_eq!(spools.read(blob, source.clone(), blob.size - 10, 4096).await, Err(Errno::Io));
        spools.tidy();
    }
}
