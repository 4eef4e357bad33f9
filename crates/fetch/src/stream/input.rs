//! A source's answer as a blocking reader for decoders.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::Blob;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::body::Body;
use crate::breaker::Attempt;
use crate::error::PieceError;
use crate::image::Image;
use crate::lanes::Lane;

/// Bytes of one part on its way to the decoder.
const PART_BYTES: usize = 256 << 10;
/// Parts on their way to the decoder. Once they are full, the source's answer is no longer read.
const PARTS: usize = 4;

/// The whole blob, front to back.
pub(crate) struct Input {
    parts: mpsc::Receiver<Result<Bytes, PieceError>>,
    current: Bytes,
}

impl Input {
    /// Requests the blob. A task reads the answer until the input is dropped.
    pub(crate) async fn open(
        runtime: &Handle,
        image: &Arc<Image>,
        blob: Blob,
        lane: Lane,
        stall_limit: Duration,
    ) -> Result<Self, PieceError> {
        let mut body = Body::open(image, blob, 0..blob.size, stall_limit, Some(Attempt::begin(&image.breaker))).await?;
        let (sender, parts) = mpsc::channel(PARTS);
        runtime.spawn(async move {
            let mut left = blob.size;
            while left > 0 {
                let part = body.next(PART_BYTES.min(usize::try_from(left).unwrap_or(PART_BYTES)), lane).await;
                left -= part.as_ref().map_or(left, |bytes| bytes.len() as u64);
                if sender.send(part).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { parts, current: Bytes::new() })
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty()
            && let Some(part) = self.parts.blocking_recv()
        {
            self.current = part.map_err(io::Error::other)?;
        }
        Ok(&self.current)
    }

    fn consume(&mut self, amount: usize) {
        self.current.advance(amount);
    }
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(out.len());
        out[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// The cause of a read error: the error of the source if it is inside, otherwise bytes that do not decode.
pub(crate) fn failure(error: io::Error, corrupt: impl FnOnce(&str) -> PieceError) -> PieceError {
    let source = error.get_ref().and_then(|inner| inner.downcast_ref::<PieceError>()).cloned();
    source.unwrap_or_else(|| match error.kind() {
        // The process that decodes has ended.
        io::ErrorKind::ConnectionAborted => SourceError::new(Fault::Unavailable, error.to_string()).into(),
        _ => corrupt(&error.to_string()),
    })
}
