//! Serves requests for blobs on a channel: in a worker for its user, and the other way round while an image is completed.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use tarpon_blob::{BlobStream, SourceError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use crate::frames::{self, Reader, Tag, invalid};
use crate::message::{BlobRequest, Failure, Totals};

/// Bytes of one frame: a response is sent as it arrives.
const FRAME_BYTES: usize = 256 << 10;

/// Bytes that arrive within this time are sent together. On a link of 100 Mbit/s each packet of 1.5 KB would otherwise wake the reader:
/// a cold start took half as much processor time again.
const GATHER: Duration = Duration::from_millis(2);
/// So many bytes are not held back.
const GATHERED_BYTES: usize = 64 << 10;

/// A long response reports its totals whenever it has sent so much, and before its last bytes: who has received them has counted them.
const REPORT_BYTES: u64 = 1 << 20;

/// What a channel serves.
pub(crate) trait Blobs: Send + Sync {
    /// Opens the requested range.
    fn open<'a>(&'a self, request: &'a BlobRequest) -> BoxFuture<'a, Result<BlobStream, SourceError>>;

    /// What was transferred for the image of the request.
    fn totals(&self, request: &BlobRequest) -> Totals;
}

/// Answers the requests of a channel, one after the other, until it is closed.
pub(crate) async fn serve(
    (mut from, mut to): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    blobs: &dyn Blobs,
) -> io::Result<()> {
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

async fn respond(request: &BlobRequest, blobs: &dyn Blobs, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let range = &request.range;
    if range.start >= range.end || range.end > request.blob.size {
        return Err(invalid("a range outside of the blob"));
    }
    let outcome = match blobs.open(request).await {
        Ok(stream) => {
            frames::send_message(to, Tag::Head, &blobs.totals(request)).await?;
            copy(stream, to, request, blobs).await?
        }
        Err(error) => Err(error),
    };
    let totals = blobs.totals(request);
    match outcome {
        Ok(()) => frames::send_message(to, Tag::End, &totals).await,
        Err(error) => frames::send_message(to, Tag::Failure, &Failure::of(&error, totals)).await,
    }
}

/// Sends the bytes as they arrive: the first at once, later ones gathered. The outer error is the reader's end.
async fn copy(
    mut stream: BlobStream,
    to: &mut (impl AsyncWrite + Unpin),
    request: &BlobRequest,
    blobs: &dyn Blobs,
) -> io::Result<Result<(), SourceError>> {
    let mut gathered = BytesMut::new();
    let (mut left, mut unreported) = (request.range.end - request.range.start, 0);
    let mut is_first = true;
    while let Some(piece) = stream.next().await {
        let mut next = Some(piece);
        let until = Instant::now() + GATHER;
        let ended = loop {
            match next {
                Some(Ok(piece)) => gathered.extend_from_slice(&piece),
                Some(Err(error)) => break Some(Err(error)),
                None => break Some(Ok(())),
            }
            if std::mem::take(&mut is_first) || gathered.len() >= GATHERED_BYTES {
                break None;
            }
            match timeout_at(until, stream.next()).await {
                Ok(more) => next = more,
                Err(_elapsed) => break None,
            }
        };
        let length = gathered.len() as u64;
        (left, unreported) = (left.saturating_sub(length), unreported + length);
        if length > 0 && (left == 0 || unreported >= REPORT_BYTES) {
            unreported = 0;
            frames::send_message(to, Tag::Totals, &blobs.totals(request)).await?;
        }
        for part in gathered.chunks(FRAME_BYTES) {
            frames::send(to, Tag::Body, part).await?;
        }
        gathered.clear();
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
    Ok(Ok(()))
}
