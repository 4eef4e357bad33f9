//! The bytes of an upload: hashed as they pass, and kept for a while, because a registry that loses its connection has less than
//! was sent.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::{Blob, Hasher, limits};
use tokio::sync::Mutex;

use crate::transport::{Body, TransportError, TransportFault};

/// Bytes kept after they were sent. The send buffer of Linux ends at 4 MiB. The rest covers bytes that a registry has read and not
/// yet stored.
const WINDOW_BYTES: usize = 16 << 20;

/// The content of an upload.
pub(crate) struct Feed {
    /// The blob and a source to read it again, if it is known before.
    known: Option<(Blob, Arc<dyn BlobSource>)>,
    state: Mutex<State>,
}

struct State {
    source: BlobStream,
    /// Bytes taken from the source.
    taken: u64,
    ended: bool,
    failed: Option<SourceError>,
    hasher: Hasher,
    /// Bytes that were hashed: more than `taken` after the source was opened again.
    hashed: u64,
    /// The last bytes that were taken.
    window: VecDeque<Bytes>,
    window_bytes: usize,
    /// Offset of the next piece to send.
    at: u64,
    /// Counts bodies: a cancelled one must not take pieces from the next.
    body: u64,
}

impl Feed {
    /// A feed of bytes that can be read only once.
    pub(crate) fn once(source: BlobStream) -> Arc<Self> {
        Self::new(None, source)
    }

    /// A feed of `blob` from `source`.
    pub(crate) async fn of(blob: Blob, source: Arc<dyn BlobSource>) -> Result<Arc<Self>, SourceError> {
        let pieces = read_on(&*source, blob, 0).await?;
        Ok(Self::new(Some((blob, source)), pieces))
    }

    fn new(known: Option<(Blob, Arc<dyn BlobSource>)>, source: BlobStream) -> Arc<Self> {
        let state = State {
            source,
            taken: 0,
            ended: false,
            failed: None,
            hasher: Hasher::new(),
            hashed: 0,
            window: VecDeque::new(),
            window_bytes: 0,
            at: 0,
            body: 0,
        };
        Arc::new(Self { known, state: Mutex::new(state) })
    }

    /// A body of everything that is still to be sent, and its length where that is known. Earlier bodies end.
    pub(super) async fn open(self: Arc<Self>) -> (Option<u64>, Body) {
        let length = self.known.as_ref().map(|(blob, _)| blob.size);
        let mut state = self.state.lock().await;
        state.body += 1;
        let (body, at) = (state.body, state.at);
        drop(state);
        let pieces = stream::unfold(Some(self), move |feed| async move {
            let feed = feed?;
            let piece = feed.state.lock().await.next(body, feed.known.as_ref().map(|(blob, _)| blob)).await;
            let failed = |error: SourceError| TransportError::new(TransportFault::Broken, error.to_string());
            match piece {
                Ok(piece) => piece.map(|piece| (Ok(piece), Some(feed))),
                Err(error) => Some((Err(failed(error)), None)),
            }
        });
        (length.map(|length| length - at), pieces.boxed())
    }

    /// Whether it has no bytes at all. Waits for the first piece.
    pub(super) async fn is_empty(&self) -> bool {
        let mut state = self.state.lock().await;
        if state.taken == 0 {
            drop(state.take(self.known.as_ref().map(|(blob, _)| blob)).await);
        }
        state.ended && state.taken == 0
    }

    /// Start of the next body, and its end if that is known.
    pub(super) async fn range(&self) -> (u64, Option<u64>) {
        let state = self.state.lock().await;
        (state.at, self.known.as_ref().map(|(blob, _)| blob.size))
    }

    /// Number of bytes sent, and whether they are all.
    pub(super) async fn sent(&self) -> (u64, bool) {
        let state = self.state.lock().await;
        let ended = state.ended || self.known.as_ref().is_some_and(|(blob, _)| blob.size == state.taken);
        (state.at, ended && state.at == state.taken)
    }

    /// The error of the source, if it is the cause of a failed upload.
    pub(super) async fn failure(&self) -> Option<SourceError> {
        self.state.lock().await.failed.clone()
    }

    /// The digest and size of all bytes. The source must have reached its end.
    pub(super) async fn finish(&self) -> Result<Blob, SourceError> {
        let state = self.state.lock().await;
        let found = Blob { digest: state.hasher.clone().finish(), size: state.hashed };
        match &self.known {
            Some((blob, source)) if *blob != found => {
                let message =
                    format!("{}: blob {}: the content has the digest {}", source.name(), blob.digest, found.digest);
                Err(SourceError::new(Fault::BadData, message))
            }
            _ => Ok(found),
        }
    }

    /// Goes back to `offset`, the number of bytes that the registry reports to have.
    pub(super) async fn rewind(&self, offset: u64) -> Result<(), SourceError> {
        let mut state = self.state.lock().await;
        state.body += 1;
        if offset > state.hashed {
            let message = format!("the registry has {offset} bytes of an upload, but only {} were sent", state.hashed);
            return Err(SourceError::new(Fault::BadData, message));
        }
        if (state.taken - state.window_bytes as u64..=state.taken).contains(&offset) {
            state.at = offset;
            return Ok(());
        }
        let Some((blob, source)) = &self.known else {
            let message = format!(
                "the upload broke off: the registry kept {offset} of {} bytes, and they cannot be had again",
                state.hashed
            );
            return Err(SourceError::new(Fault::Unavailable, message));
        };
        state.source =
            read_on(&**source, *blob, offset).await.inspect_err(|error| state.failed = Some(error.clone()))?;
        state.ended = false;
        state.window.clear();
        state.window_bytes = 0;
        (state.taken, state.at) = (offset, offset);
        Ok(())
    }
}

/// The bytes of `blob` after the first `from`.
pub(crate) async fn read_on(source: &dyn BlobSource, blob: Blob, from: u64) -> Result<BlobStream, SourceError> {
    match from < blob.size {
        true => source.read(blob, from..blob.size).await,
        false => Ok(stream::empty().boxed()),
    }
}

impl State {
    /// The next piece for the body numbered `body`.
    async fn next(&mut self, body: u64, known: Option<&Blob>) -> Result<Option<Bytes>, SourceError> {
        if body != self.body {
            return Err(SourceError::new(Fault::Unavailable, "this upload was cancelled"));
        }
        if self.at == self.taken && !self.take(known).await? {
            return Ok(None);
        }
        let mut start = self.taken - self.window_bytes as u64;
        for piece in &self.window {
            let end = start + piece.len() as u64;
            if self.at < end {
                let skip = usize::try_from(self.at - start).unwrap_or(usize::MAX);
                self.at = end;
                return Ok(Some(piece.slice(skip..)));
            }
            start = end;
        }
        Ok(None)
    }

    /// Takes a piece from the source into the window; `false` at the end.
    async fn take(&mut self, known: Option<&Blob>) -> Result<bool, SourceError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while !self.ended {
            match self.source.next().await {
                Some(Ok(piece)) if piece.is_empty() => {}
                Some(Ok(piece)) => return self.keep(piece, known).map(|()| true),
                Some(Err(error)) => return Err(self.fail(error)),
                None => self.ended = true,
            }
        }
        match known {
            Some(blob) if self.taken != blob.size => {
                let message = format!("blob {}: {} bytes instead of {}", blob.digest, self.taken, blob.size);
                Err(self.fail(SourceError::new(Fault::BadData, message)))
            }
            _ => Ok(false),
        }
    }

    fn keep(&mut self, piece: Bytes, known: Option<&Blob>) -> Result<(), SourceError> {
        let most = known.map_or(limits::BLOB_BYTES, |blob| blob.size);
        let end = self.taken + piece.len() as u64;
        if end > most {
            return Err(self.fail(SourceError::new(Fault::BadData, format!("more than {most} bytes to upload"))));
        }
        if end > self.hashed {
            // After the source was reopened, its first bytes are hashed already.
            let seen = usize::try_from(self.hashed.saturating_sub(self.taken)).unwrap_or(usize::MAX);
            self.hasher.update(&piece[seen.min(piece.len())..]);
            self.hashed = end;
        }
        self.taken = end;
        self.window_bytes += piece.len();
        self.window.push_back(piece);
        while let Some(oldest) = self.window.front()
            && self.window_bytes - oldest.len() >= WINDOW_BYTES
        {
            self.window_bytes -= oldest.len();
            self.window.pop_front();
        }
        Ok(())
    }

    fn fail(&mut self, error: SourceError) -> SourceError {
        self.failed = Some(error.clone());
        error
    }
}
