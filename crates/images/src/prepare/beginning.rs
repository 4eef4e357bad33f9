//! The compressed bytes of a layer that is being streamed, written behind to the store, so that after a kill or a broken connection only
//! the rest is requested.
//!
//! Reading and writing happen on threads of their own, and nothing depends on their success. The bytes are hashed with the rest of the
//! layer: the caller drops them if they turn out wrong.

use bytes::Bytes;
use tarpon_store::LayerPart;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::pipe::PIECES;
use super::stream_job::StreamJob;

/// Bytes read at a time.
const BLOCK: usize = 128 << 10;

/// The local part of a layer.
pub(super) struct Beginning(State);

enum State {
    /// Nothing, and nothing is kept.
    None,
    /// This many bytes, which are read …
    Reading(LayerPart),
    /// … and continued.
    Writing { pieces: mpsc::Sender<Bytes>, thread: JoinHandle<LayerPart> },
}

impl Beginning {
    pub(super) fn none() -> Self {
        Self(State::None)
    }

    /// The bytes that an earlier attempt left of the job's layer.
    pub(super) async fn open(job: &StreamJob) -> Self {
        if job.source.is_local() {
            return Self::none();
        }
        let (store, blob) = (job.store.clone(), job.blob);
        let part = tokio::task::spawn_blocking(move || store.layer_part(blob)).await;
        Self(part.ok().flatten().map_or(State::None, State::Reading))
    }

    /// Bytes that need not be requested.
    pub(super) fn held(&self) -> u64 {
        match &self.0 {
            State::Reading(part) => part.held(),
            State::None | State::Writing { .. } => 0,
        }
    }

    /// The next bytes from `offset` on; `None` at the end of the local part.
    pub(super) async fn read(&mut self, offset: u64) -> Option<Bytes> {
        let State::Reading(part) = std::mem::replace(&mut self.0, State::None) else { return None };
        let read = move || {
            let left = usize::try_from(part.held().saturating_sub(offset)).unwrap_or(BLOCK);
            let mut block = vec![0; BLOCK.min(left)];
            let length = part.read_at(&mut block, offset).unwrap_or(0);
            block.truncate(length);
            (part, Bytes::from(block))
        };
        let (part, bytes) = tokio::task::spawn_blocking(read).await.ok()?;
        self.0 = State::Reading(part);
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Starts writing behind. `offset`: how much of the local part was read.
    pub(super) fn continue_from(&mut self, offset: u64) {
        let State::Reading(mut part) = std::mem::replace(&mut self.0, State::None) else { return };
        if part.held() != offset {
            // The disk returns less than was written to it. The next request would not fit.
            return;
        }
        let (pieces, mut written) = mpsc::channel::<Bytes>(PIECES);
        let thread = tokio::task::spawn_blocking(move || {
            while let Some(piece) = written.blocking_recv() {
                part.append(&piece);
            }
            part
        });
        self.0 = State::Writing { pieces, thread };
    }

    /// Appends the next piece.
    pub(super) async fn append(&self, piece: &Bytes) {
        if let State::Writing { pieces, .. } = &self.0 {
            // The thread ends with this end of the channel.
            let _gone = pieces.send(piece.clone()).await;
        }
    }

    /// Removes it as useless.
    pub(super) async fn discard(&mut self) {
        let part = match std::mem::replace(&mut self.0, State::None) {
            State::None => None,
            State::Reading(part) => Some(part),
            State::Writing { pieces, thread } => {
                drop(pieces);
                thread.await.ok()
            }
        };
        if let Some(part) = part {
            // Removing a large file takes a moment.
            let _left = tokio::task::spawn_blocking(move || part.discard()).await;
        }
    }

    /// Leaves everything received in the store for the next attempt.
    pub(super) async fn leave(&mut self) {
        if let State::Writing { pieces, thread } = std::mem::replace(&mut self.0, State::None) {
            drop(pieces);
            drop(thread.await);
        }
    }
}
