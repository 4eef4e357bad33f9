//! The bodies of the fuzz targets `worker_requests` and `worker_responses`. They are here because the messages are private to this crate.

mod requests;
mod responses;

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frames::{Part, Reader};
use crate::message::MESSAGE_BYTES;

pub use self::requests::requests;
pub use self::responses::responses;

/// The tag of a frame of the body of a blob.
const BODY: u8 = 3;
/// Bytes of the tag and the length of a frame.
const HEADER_BYTES: usize = 5;

/// The receiving end of a channel: the bytes arrive in pieces, and then it is closed. What is sent is of no concern.
struct Pieces<'d> {
    bytes: &'d [u8],
    length: usize,
}

impl<'d> Pieces<'d> {
    /// The first byte is the length of the pieces.
    fn of(data: &'d [u8]) -> Self {
        let (length, bytes) = data.split_first().unwrap_or((&1, &[]));
        Self { bytes, length: usize::from(*length).max(1) }
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.length.min(out.len());
        self.bytes.read(&mut out[..length])
    }
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let length = self.length.min(out.remaining()).min(self.bytes.len());
        let (now, rest) = self.bytes.split_at(length);
        out.put_slice(now);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Runs a future under a clock that does not wait.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

/// The frames in these bytes up to the first that is not sound, read naively. The last body may be incomplete.
fn frames_of(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut frames = Vec::new();
    while let Some(([tag, length @ ..], rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let is_sound = *tag == BODY || (1..=6).contains(tag) && length <= MESSAGE_BYTES && length <= rest.len();
        if !is_sound {
            break;
        }
        let (frame, behind) = rest.split_at(length.min(rest.len()));
        frames.push((*tag, frame));
        bytes = behind;
    }
    frames
}

/// Checks that frames are read as they are, in whatever pieces they arrive.
fn check_frames(data: &[u8]) {
    let mut from = Pieces::of(data);
    let expected = frames_of(from.bytes);
    let mut found: Vec<(u8, Vec<u8>)> = Vec::new();
    block_on(async {
        let mut reader = Reader::default();
        while let Ok(Some(part)) = reader.next(&mut from).await {
            match part {
                Part::Body(bytes) => {
                    assert!(!bytes.is_empty());
                    match found.last_mut() {
                        Some((BODY, body)) => body.extend_from_slice(&bytes),
                        _ => found.push((BODY, bytes.to_vec())),
                    }
                }
                Part::Whole(tag, bytes) => found.push((tag as u8, bytes.to_vec())),
            }
        }
    });
    // Parts of a body do not tell where its frames begin.
    let mut joined: Vec<(u8, Vec<u8>)> = Vec::new();
    for (tag, frame) in expected.into_iter().filter(|(tag, frame)| *tag != BODY || !frame.is_empty()) {
        match joined.last_mut() {
            Some((BODY, body)) if tag == BODY => body.extend_from_slice(frame),
            _ => joined.push((tag, frame.to_vec())),
        }
    }
    assert_eq!(found, joined);
}
