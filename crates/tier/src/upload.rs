//! [`Upload`]: a blob is copied to the tier behind its reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, WriteMultipart};
use tarpon_oci::Verified;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::error::{Error, Result};
use crate::tier::Tier;

/// Pieces that wait: 16 MiB, at 256 KiB each.
const PIECES: usize = 64;
/// Size of a part. Stores take at most 10,000 of them, and at least 5 MiB each.
const PART_BYTES: usize = 8 << 20;
/// Parts that are sent at the same time.
const PARTS: usize = 3;
/// How long a part may take: slower than a megabit per second is no store.
const PART: Duration = Duration::from_secs(60);
/// How long the last parts may take.
const FINISH: Duration = Duration::from_secs(60);
/// How long the reader waits for the tier in all, besides a quarter of the time since the upload began.
const STALL: Duration = Duration::from_secs(2);

const STEP: &str = "copy a blob to the tier";

/// A blob that is being copied. Dropped before [`Upload::finish`], nothing of it becomes visible.
#[derive(Debug)]
pub struct Upload {
    pieces: Option<mpsc::Sender<Bytes>>,
    commit: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
    began: Instant,
    stalled: Duration,
}

impl Upload {
    /// Begins the blob of this size, and adds what was copied to `progress`.
    pub(crate) fn begin(tier: Arc<Tier>, path: Path, size: u64, progress: Arc<AtomicU64>) -> Self {
        let (pieces, queue) = mpsc::channel(PIECES);
        let (commit, committed) = oneshot::channel();
        let job = Job { tier, path, size, progress };
        let task = tokio::spawn(job.run(queue, committed));
        let (pieces, commit) = (Some(pieces), Some(commit));
        Self { pieces, commit, task, began: Instant::now(), stalled: Duration::ZERO }
    }

    /// The next piece of the blob. Waits a little if the tier is slower than the layer's source; gives the copy up if it is much slower.
    pub async fn push(&mut self, piece: &Bytes) {
        let Some(pieces) = &self.pieces else { return };
        let Err(mpsc::error::TrySendError::Full(piece)) = pieces.try_send(piece.clone()) else { return };
        let waiting = Instant::now();
        let left = (STALL + self.began.elapsed() / 4).saturating_sub(self.stalled);
        let sent = timeout(left, pieces.send(piece)).await;
        self.stalled += waiting.elapsed();
        if sent.is_err() {
            tracing::debug!("a blob is not copied to the tier, which is slower than the layer's source");
            (self.pieces, self.commit) = (None, None);
        }
    }

    /// Makes the blob visible, whose bytes were compared with its digest.
    ///
    /// # Errors
    /// The tier does not take it, or was too slow.
    pub async fn finish(mut self, _proof: &Verified<()>) -> Result<()> {
        drop(self.pieces.take());
        let Some(commit) = self.commit.take() else {
            return Err(Error::new(STEP, "the tier is slower than the layer's source"));
        };
        // The task has failed, if this does, and returns why.
        let _sent = commit.send(());
        (&mut self.task).await.map_err(|error| Error::new(STEP, error.to_string()))?
    }
}

struct Job {
    tier: Arc<Tier>,
    path: Path,
    size: u64,
    progress: Arc<AtomicU64>,
}

impl Job {
    async fn run(self, queue: mpsc::Receiver<Bytes>, committed: oneshot::Receiver<()>) -> Result<()> {
        if self.size <= PART_BYTES as u64 {
            self.whole(queue, committed).await
        } else {
            self.parts(queue, committed).await
        }
    }

    async fn whole(&self, mut queue: mpsc::Receiver<Bytes>, committed: oneshot::Receiver<()>) -> Result<()> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = queue.recv().await {
            bytes.extend_from_slice(&piece);
        }
        committed.await.map_err(|_| given_up())?;
        self.tier.create(STEP, &self.path, bytes.freeze()).await.map(drop)
    }

    async fn parts(&self, mut queue: mpsc::Receiver<Bytes>, committed: oneshot::Receiver<()>) -> Result<()> {
        let begun = self.tier.ask_briefly(STEP, self.tier.store().put_multipart(&self.path)).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(begun, PART_BYTES);
        while let Some(piece) = queue.recv().await {
            if let Err(error) = self.tier.ask(STEP, PART, upload.wait_for_capacity(PARTS)).await {
                abort(upload).await;
                return Err(error);
            }
            self.progress.fetch_add(piece.len() as u64, Ordering::Relaxed);
            upload.put(piece);
        }
        if committed.await.is_err() {
            abort(upload).await;
            return Err(given_up());
        }
        self.tier.ask(STEP, FINISH, upload.finish()).await.map(drop)
    }
}

/// Parts that the store does not remove now are removed by its own rules for uploads that were never finished.
async fn abort(upload: WriteMultipart) {
    if !matches!(timeout(PART, upload.abort()).await, Ok(Ok(()))) {
        tracing::debug!("parts of a blob are left in the tier");
    }
}

fn given_up() -> Error {
    Error::new(STEP, "it was given up")
}
