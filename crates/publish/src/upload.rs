//! Passes a new blob from the thread that writes it to the task that uploads it.

use std::io::{self, Write};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tarpon_blob::{BlobStream, Fault, SourceError};
use tokio::sync::mpsc;

/// Size of the uploaded pieces.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces between writer and upload: 4 MiB.
const PIECES: usize = 16;

/// The writing end of an upload.
pub(crate) struct Sink {
    pieces: mpsc::Sender<Result<Bytes, SourceError>>,
    piece: BytesMut,
}

/// Both ends: one to write to, which blocks, and one to upload from.
pub(crate) fn channel() -> (Sink, BlobStream) {
    let (pieces, mut written) = mpsc::channel(PIECES);
    let stream = futures::stream::poll_fn(move |context| written.poll_recv(context)).boxed();
    (Sink { pieces, piece: BytesMut::new() }, stream)
}

impl Sink {
    /// Completes the upload if the blob is `whole`, else makes it fail.
    ///
    /// # Errors
    /// The upload has already failed.
    pub(crate) fn finish(mut self, whole: bool) -> io::Result<()> {
        let done = if whole { self.flush() } else { Ok(()) };
        if !whole || done.is_err() {
            let error = SourceError::new(Fault::BadData, "the layer could not be written");
            // An upload that has ended needs no error.
            let _ = self.pieces.blocking_send(Err(error));
        }
        done
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        self.piece.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = self.piece.split().freeze();
        self.pieces.blocking_send(Ok(piece)).map_err(|_| io::Error::other("the upload ended"))
    }
}
