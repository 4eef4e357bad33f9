//! [`Upload`]: a blob is copied to the tier behind its reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use tarpon_oci::{Blob, Verified};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::error::{Error, Result};
use crate::parts::{PART_BYTES, Parts};
use crate::tier::Tier;
use crate::timing::PART;

/// Pieces that wait: 16 MiB, at 256 KiB each.
const PIECES: usize = 64;
/// How long the reader waits for the tier in all, besides a quarter of the time since the upload began.
const STALL: Duration = Duration::from_secs(2);

/// How long a patient reader waits for room for one piece. Longer than a part may take, with its repetitions: a tier that is slower fails,
/// and the reader learns why.
const LONGEST_STALL: Duration = PART.saturating_mul(3);

const STEP: &str = "copy a blob to the tier";

/// A blob that is being copied. Dropped before [`Upload::finish`], nothing of it becomes visible.
#[derive(Debug)]
pub struct Upload {
    blob: Blob,
    pieces: Option<mpsc::Sender<Bytes>>,
    commit: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
    began: Instant,
    stalled: Duration,
    is_patient: bool,
}

impl Upload {
    /// Begins the blob, and adds what was copied to `progress`.
    pub(crate) fn begin(tier: Arc<Tier>, path: Path, blob: Blob, progress: Arc<AtomicU64>) -> Self {
        let (pieces, waiting) = mpsc::channel(PIECES);
        let (commit, committed) = oneshot::channel();
        let queue = Queue { pieces: waiting, committed, is_committed: false, left: blob.size };
        let task = tokio::spawn(Job { tier, path, progress }.run(queue));
        let (pieces, commit) = (Some(pieces), Some(commit));
        Self { blob, pieces, commit, task, began: Instant::now(), stalled: Duration::ZERO, is_patient: false }
    }

    /// The same for a reader that waits for a slower tier, because the copy is its purpose.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.is_patient = true;
        self
    }

    /// The next piece of the blob. Waits a little if the tier is slower than the layer's source; gives the copy up if it is much slower.
    pub async fn push(&mut self, piece: &Bytes) {
        let Some(pieces) = &self.pieces else { return };
        let Err(mpsc::error::TrySendError::Full(piece)) = pieces.try_send(piece.clone()) else { return };
        let waiting = Instant::now();
        let left = match self.is_patient {
            true => LONGEST_STALL,
            false => (STALL + self.began.elapsed() / 4).saturating_sub(self.stalled),
        };
        let sent = timeout(left, pieces.send(piece)).await;
        self.stalled += waiting.elapsed();
        if sent.is_err() {
            tracing::debug!("a blob is not copied to the tier, which is slower than the layer's source");
            (self.pieces, self.commit) = (None, None);
        }
    }

    /// Makes the blob visible, whose bytes were compared with its digest: `proof` is of it.
    ///
    /// # Errors
    /// The tier does not take it, or was too slow; the pieces are not the whole blob, or the proof is of another one.
    pub async fn finish(mut self, proof: &Verified<()>) -> Result<()> {
        drop(self.pieces.take());
        let Some(commit) = self.commit.take() else {
            return Err(Error::new(STEP, "the tier is slower than the layer's source"));
        };
        if *proof.digest() != self.blob.digest {
            return Err(Error::new(STEP, "its bytes were compared with another digest"));
        }
        // The task has failed, if this does, and returns why.
        let _sent = commit.send(());
        (&mut self.task).await.map_err(|error| Error::new(STEP, error.to_string()))?
    }
}

/// What the reader pushes.
struct Queue {
    pieces: mpsc::Receiver<Bytes>,
    committed: oneshot::Receiver<()>,
    is_committed: bool,
    /// Bytes of the blob that were not returned.
    left: u64,
}

impl Queue {
    /// The next piece; `None` after the last one of the whole blob, which may become visible. Fails as soon as the copy was given up.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            tokio::select! {
                biased;
                committed = &mut self.committed, if !self.is_committed => {
                    self.is_committed = committed.map(|()| true).map_err(|_| given_up())?;
                }
                piece = self.pieces.recv(), if !(self.pieces.is_closed() && self.pieces.is_empty()) => {
                    if let Some(piece) = piece {
                        let left = self.left.checked_sub(piece.len() as u64);
                        self.left = left.ok_or_else(|| Error::new(STEP, "it has more bytes than its size"))?;
                        return Ok(Some(piece));
                    }
                }
                else => break,
            }
        }
        match self.left {
            0 => Ok(None),
            left => Err(Error::new(STEP, format!("its last {left} bytes are missing"))),
        }
    }

    /// Carries on with a step, unless the copy is given up.
    async fn unless_given_up<T>(&mut self, step: impl Future<Output = Result<T>>) -> Result<T> {
        if self.is_committed {
            return step.await;
        }
        let mut step = std::pin::pin!(step);
        tokio::select! {
            biased;
            committed = &mut self.committed => self.is_committed = committed.map(|()| true).map_err(|_| given_up())?,
            done = &mut step => return done,
        }
        step.await
    }
}

struct Job {
    tier: Arc<Tier>,
    path: Path,
    progress: Arc<AtomicU64>,
}

impl Job {
    async fn run(self, mut queue: Queue) -> Result<()> {
        self.tier.check_may_write(STEP)?;
        if queue.left <= PART_BYTES as u64 {
            return self.whole(&mut queue).await;
        }
        let mut parts = queue.unless_given_up(Parts::begin(self.tier.clone(), STEP, &self.path)).await?;
        let copied = self.copy(&mut parts, &mut queue).await;
        if copied.is_err() {
            parts.abort().await;
        }
        copied
    }

    async fn whole(&self, queue: &mut Queue) -> Result<()> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = queue.next().await? {
            self.progressed(&piece);
            bytes.extend_from_slice(&piece);
        }
        self.tier.replace(STEP, &self.path, bytes.freeze()).await
    }

    async fn copy(&self, parts: &mut Parts, queue: &mut Queue) -> Result<()> {
        while let Some(piece) = queue.next().await? {
            self.progressed(&piece);
            queue.unless_given_up(parts.put(piece)).await?;
        }
        parts.finish().await
    }

    fn progressed(&self, piece: &Bytes) {
        self.progress.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
}

fn given_up() -> Error {
    Error::new(STEP, "it was given up")
}
