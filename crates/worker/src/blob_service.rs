//! Serves requests for blobs on a channel: in a worker for its user, and the other way round while an image is completed.

use std::io;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use tarpon_blob::{BlobStream, SourceError};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

use crate::frames::{self, Reader, Tag, invalid};
use crate::message::{BlobRequest, Failure, Totals};

/// Bytes of one frame: a response is sent as it arrives.
const FRAME_BYTES: usize = 256 << 10;

/// What a channel serves.
pub(crate) trait Blobs: Send + Sync {
    /// Opens the requested range.
    fn open<'a>(&'a self, request: &'a BlobRequest) -> BoxFuture<'a, Result<BlobStream, SourceError>>;

    /// What was transferred for the image of the request.
    fn totals(&self, request: &BlobRequest) -> Totals;
}

/// Answers the requests of a channel, one after the other, until it is closed.
pub(crate) async fn serve(channel: UnixStream, blobs: &dyn Blobs) -> io::Result<()> {
    let (mut from, mut to) = channel.into_split();
    let mut reader = Reader::default();
    while let Some(request) = reader.message::<BlobRequest>(&mut from).await? {
        tokio::select! {
            // A reader that needs no more of the response closes the channel. Then the source's response is closed, too.
            biased;
            outcome = respond(&request, blobs, &mut to) => outcome?,
            outcome = reader.next(&mut from) => return match outcome? {
                None => Ok(()),
                Some(_) => Err(invalid("a request before the end of the last one")),
            },
        }
    }
    Ok(())
}

async fn respond(request: &BlobRequest, blobs: &dyn Blobs, to: &mut OwnedWriteHalf) -> io::Result<()> {
    let range = &request.range;
    if range.start >= range.end || range.end > request.blob.size {
        return Err(invalid("a range outside of the blob"));
    }
    let outcome = match blobs.open(request).await {
        Ok(stream) => {
            frames::send(to, Tag::Head, &[]).await?;
            copy(stream, to).await?
        }
        Err(error) => Err(error),
    };
    let totals = blobs.totals(request);
    match outcome {
        Ok(()) => frames::send_message(to, Tag::End, &totals).await,
        Err(error) => frames::send_message(to, Tag::Failure, &Failure::of(&error, totals)).await,
    }
}

/// The outer error is the reader's end.
async fn copy(mut stream: BlobStream, to: &mut OwnedWriteHalf) -> io::Result<Result<(), SourceError>> {
    while let Some(piece) = stream.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => return Ok(Err(error)),
        };
        for part in piece.chunks(FRAME_BYTES) {
            frames::send(to, Tag::Body, part).await?;
        }
    }
    Ok(Ok(()))
}
