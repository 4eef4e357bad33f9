//! Frames on the channels of a worker: a tag of one byte, a length of four, and so many bytes.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

use crate::message::{MESSAGE_BYTES, decode, encode};

/// Bytes of tag and length.
const HEADER_BYTES: usize = 5;

/// Room for reading at once: what a socket of the kernel's default size holds.
const BUFFER_BYTES: usize = 128 << 10;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    /// An encoded message.
    Message = 1,
    /// The source answers with the requested range: encoded totals.
    Head = 2,
    /// Bytes of the range.
    Body = 3,
    /// The range is complete: encoded totals.
    End = 4,
    /// The request failed: an encoded failure.
    Failure = 5,
    /// What was transferred so far, the bytes of the next frame included: encoded totals.
    Totals = 6,
}

impl Tag {
    fn of(byte: u8) -> io::Result<Self> {
        [Self::Message, Self::Head, Self::Body, Self::End, Self::Failure, Self::Totals]
            .into_iter()
            .find(|tag| *tag as u8 == byte)
            .ok_or_else(|| invalid("a frame of no known kind"))
    }
}

/// Sends a frame.
pub(crate) async fn send(to: &mut (impl AsyncWrite + Unpin), tag: Tag, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| invalid("a frame that is too long"))?.to_le_bytes();
    let header = [tag as u8, length[0], length[1], length[2], length[3]];
    to.write_all_buf(&mut Buf::chain(&header[..], bytes)).await
}

/// Sends an encoded message in a frame.
pub(crate) async fn send_message(
    to: &mut (impl AsyncWrite + Unpin),
    tag: Tag,
    message: &impl Serialize,
) -> io::Result<()> {
    // It may name headers of endpoints, which are secret.
    let encoded = Zeroizing::new(encode(message).map_err(|error| invalid(&error))?);
    send(to, tag, &encoded).await
}

/// Reads frames, and what has arrived of the bytes of a body before its frame is complete.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Longest frame that is not a body.
    limit: usize,
    buffer: BytesMut,
    /// Bytes of a body that are to come.
    left: usize,
}

/// A frame, or a part of a body.
#[derive(Debug)]
pub(crate) enum Part {
    /// Some bytes of a body: never none.
    Body(Bytes),
    /// Any other frame, complete.
    Whole(Tag, Bytes),
}

impl Default for Reader {
    fn default() -> Self {
        Self::up_to(MESSAGE_BYTES)
    }
}

impl Reader {
    /// A reader of messages of at most so many bytes.
    pub(crate) fn up_to(limit: usize) -> Self {
        Self { limit, buffer: BytesMut::new(), left: 0 }
    }

    /// The next part; `None` if the other side closed the channel between two frames.
    pub(crate) async fn next(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Part>> {
        loop {
            if let Some(part) = self.buffered()? {
                return Ok(Some(part));
            }
            self.buffer.reserve(BUFFER_BYTES);
            if from.read_buf(&mut self.buffer).await? == 0 {
                let is_between = self.buffer.is_empty() && self.left == 0;
                return if is_between { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// A message, which must be the next frame.
    pub(crate) async fn message<T: DeserializeOwned>(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<Option<T>> {
        match self.next(from).await? {
            Some(Part::Whole(Tag::Message, bytes)) => decode(&bytes).map(Some).map_err(|error| invalid(&error)),
            Some(_) => Err(invalid("a frame that is no message")),
            None => Ok(None),
        }
    }

    /// Whether nothing of a frame is left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.left == 0
    }

    fn buffered(&mut self) -> io::Result<Option<Part>> {
        loop {
            if self.left > 0 {
                let taken = self.left.min(self.buffer.len());
                self.left -= taken;
                return Ok((taken > 0).then(|| Part::Body(self.buffer.split_to(taken).freeze())));
            }
            let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let [tag, length @ ..] = *header;
            let (tag, length) = (Tag::of(tag)?, u32::from_le_bytes(length) as usize);
            if tag == Tag::Body {
                self.buffer.advance(HEADER_BYTES);
                self.left = length;
                continue;
            }
            if length > self.limit {
                return Err(invalid("a message that is too long"));
            }
            if self.buffer.len() < HEADER_BYTES + length {
                return Ok(None);
            }
            self.buffer.advance(HEADER_BYTES);
            return Ok(Some(Part::Whole(tag, self.buffer.split_to(length).freeze())));
        }
    }
}

pub(crate) fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_owned())
}
