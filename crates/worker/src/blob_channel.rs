//! [`BlobChannel`]: the requesting side of a channel for blobs.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use crate::frames::{self, Part, Reader, Tag, invalid};
use crate::message::{BlobRequest, Failure, Totals, decode};

/// A channel for requests of blobs, one after the other.
#[derive(Debug)]
pub(crate) struct BlobChannel<S = UnixStream> {
    stream: S,
    reader: Reader,
}

/// A part of a response.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The source answers.
    Head(Totals),
    /// What was transferred so far. Bytes follow.
    Totals(Totals),
    /// Bytes: never none.
    Body(Bytes),
    /// The range is complete.
    End(Totals),
    /// The request failed, which ends the response.
    Failure(Failure),
}

impl<S: AsyncRead + AsyncWrite + Unpin> BlobChannel<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, reader: Reader::default() }
    }

    pub(crate) async fn send(&mut self, request: &BlobRequest) -> io::Result<()> {
        frames::send_message(&mut self.stream, Tag::Message, request).await
    }

    /// The next part of the response. The end of the channel is an error.
    pub(crate) async fn receive(&mut self) -> io::Result<Reply> {
        let parsed = match self.reader.next(&mut self.stream).await? {
            Some(Part::Body(bytes)) => Ok(Reply::Body(bytes)),
            Some(Part::Whole(Tag::Head, bytes)) => decode(&bytes).map(Reply::Head),
            Some(Part::Whole(Tag::Totals, bytes)) => decode(&bytes).map(Reply::Totals),
            Some(Part::Whole(Tag::End, bytes)) => decode(&bytes).map(Reply::End),
            Some(Part::Whole(Tag::Failure, bytes)) => decode(&bytes).map(Reply::Failure),
            Some(Part::Whole(..)) => Err("a frame that is no part of a response".to_owned()),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        parsed.map_err(|problem| invalid(&problem))
    }

    /// Whether nothing of a response is left over.
    pub(crate) fn is_between_responses(&self) -> bool {
        self.reader.is_empty()
    }
}
