//! What a server sends to its worker.

use std::io::Read as _;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tarpon_blob::{BlobStream, Fault, SourceError};
use tarpon_layer::decode::LayerReader;
use tarpon_oci::{Compression, limits};

use super::{BODY, Pieces, block_on, check_frames, frames_of};
use crate::blob_service::{self, Blobs};
use crate::message::{Answer, BlobRequest, Control, Job, MESSAGE_BYTES, Setup, Step, Totals, decode};
use crate::{chunk_call, layer_call, service};

/// Bytes of the blob that the worker serves.
const BLOB_BYTES: u64 = 70_000;
/// Bytes of the head of a request for a chunk, and of that of its response.
const CHUNK_HEAD: usize = 28;
const CHUNK_RESPONSE_HEAD: usize = 5;
/// In place of the length of a part of a layer: an error.
const FAILED: u32 = u32::MAX;

/// Has a worker read the bytes after the first, which chooses the channel.
pub fn requests(data: &[u8]) {
    let Some((channel, rest)) = data.split_first() else { return };
    match channel % 5 {
        0 => check_frames(rest),
        1 => check_messages(rest),
        2 => check_chunks(rest),
        3 => check_layer(rest),
        _ => check_blobs(rest),
    }
}

fn check_messages(data: &[u8]) {
    check_message::<Setup>(data);
    check_message::<Control>(data);
    check_message::<BlobRequest>(data);
    check_message::<Step>(data);
    check_message::<Answer>(data);
    check_message::<Job>(data);
    if let Ok(job) = decode::<Job>(data) {
        // A job that cannot be done is an error, before anything is opened.
        let _request = service::request_of(&job);
    }
}

/// A message that is accepted means one thing: it is the same after it was sent on.
pub(super) fn check_message<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let Ok(message) = decode::<T>(data) else { return };
    let encoded = postcard::to_allocvec(&message).expect("a message");
    assert!(encoded.len() <= data.len(), "a message grew");
    let again = postcard::to_allocvec(&decode::<T>(&encoded).expect("what was encoded")).expect("a message");
    assert_eq!(encoded, again);
}

/// Each request for a chunk is answered with the requested size or an error, up to the first that is none.
fn check_chunks(data: &[u8]) {
    let (from, mut to) = (Pieces::of(data), Vec::new());
    let mut requests = from.bytes;
    // The first request that is none closes the channel.
    let _closed = chunk_call::serve(from, &mut to);
    let mut responses = &to[..];
    while let Some((head, rest)) = requests.split_first_chunk::<CHUNK_HEAD>() {
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (window, encoded) = (number(4) as usize, number(8) as usize);
        let is_sound = head[0] < 4 && window <= 64 << 10 && encoded as u64 <= limits::MEMBER_BYTES;
        let Some(rest) = rest.get(window + encoded..).filter(|_| is_sound) else { break };
        requests = rest;
        let (response, behind) = responses.split_first_chunk::<CHUNK_RESPONSE_HEAD>().expect("a response");
        let [status, length @ ..] = *response;
        let length = u32::from_le_bytes(length);
        let size = u64::from(number(20)) | u64::from(number(24)) << 32;
        match status {
            0 => assert!(u64::from(length) == size && size <= limits::CHUNK_BYTES, "{length} of {size} bytes"),
            _ => assert!(status == 1 && length as usize <= MESSAGE_BYTES, "status {status}"),
        }
        responses = behind.get(length as usize..).expect("a whole response");
    }
    assert!(responses.is_empty(), "a response without a request");
}

/// A layer is decoded as it would be here, in whatever parts it is sent.
fn check_layer(data: &[u8]) {
    let (from, mut to) = (Pieces::of(data), Vec::new());
    let Some((compression, mut parts)) = from.bytes.split_first() else { return };
    let served = layer_call::serve(from, &mut to);
    let compression = match compression {
        0 => Compression::Gzip,
        1 => Compression::Zstd,
        _ => return assert!(served.is_err() && to.is_empty()),
    };
    let (mut encoded, mut has_end) = (Vec::new(), false);
    while let Some((length, rest)) = parts.split_first_chunk::<4>().filter(|_| !has_end) {
        let length = u32::from_le_bytes(*length) as usize;
        has_end = length == 0;
        let (part, behind) = rest.split_at(length.min(rest.len()));
        encoded.extend_from_slice(part);
        parts = behind;
    }
    let (decoded, is_complete) = parts_of(&to);
    let mut expected = Vec::new();
    let reader = LayerReader::new(&encoded[..], compression);
    let is_sound = reader.and_then(|mut reader| reader.read_to_end(&mut expected)).is_ok();
    // How much of a broken layer is decoded before its error depends on the sizes of the reads.
    let is_prefix = expected.starts_with(&decoded) || !is_sound && decoded.starts_with(&expected);
    assert!(is_prefix, "other bytes");
    if is_complete {
        assert!(is_sound && decoded == expected, "a layer that has no end is complete");
    } else {
        assert!(!is_sound || !has_end, "a sound layer is refused");
    }
}

/// The decoded bytes of a response, and whether they are all of the layer.
fn parts_of(mut response: &[u8]) -> (Vec<u8>, bool) {
    let mut decoded = Vec::new();
    while let Some((length, rest)) = response.split_first_chunk::<4>() {
        match u32::from_le_bytes(*length) {
            0 => {
                assert!(rest.is_empty(), "bytes behind the end");
                return (decoded, true);
            }
            FAILED => {
                let (length, message) = rest.split_first_chunk::<4>().expect("the length of an error");
                assert_eq!(message.len(), u32::from_le_bytes(*length) as usize);
                return (decoded, false);
            }
            length => {
                let (part, behind) = rest.split_at(length as usize);
                decoded.extend_from_slice(part);
                response = behind;
            }
        }
    }
    assert!(response.is_empty(), "half a length");
    (decoded, false)
}

/// Each request for a range in the blob is answered with its bytes, and each other with an error; the last answer may end
/// with the channel.
fn check_blobs(data: &[u8]) {
    let from = Pieces::of(data);
    let requests = frames_of(from.bytes).into_iter().map_while(|(tag, frame)| {
        let request = decode::<BlobRequest>(frame).ok().filter(|_| tag == 1)?;
        (request.range.start < request.range.end && request.range.end <= request.blob.size).then_some(request)
    });
    let requests: Vec<BlobRequest> = requests.collect();
    let mut to = Vec::new();
    // A frame that is no request closes the channel.
    let _closed = block_on(blob_service::serve((from, &mut to), &Memory));
    let mut responses = frames_of(&to).into_iter();
    for request in &requests {
        let (mut received, mut has_head) = (Vec::new(), false);
        loop {
            match responses.next() {
                Some((2, totals)) => {
                    assert!(!has_head && decode::<Totals>(totals).is_ok());
                    has_head = true;
                }
                Some((TOTALS, totals)) => assert!(has_head && decode::<Totals>(totals).is_ok()),
                Some((BODY, bytes)) => received.extend_from_slice(bytes),
                Some((4, _)) => {
                    assert!(has_head && received == part(request), "other bytes than requested");
                    break;
                }
                Some((5, _)) => {
                    assert!(request.range.end > BLOB_BYTES, "a range of the blob is refused");
                    break;
                }
                Some((tag, _)) => panic!("a frame of kind {tag} in a response"),
                None => return assert!(part(request).starts_with(&received), "other bytes than requested"),
            }
        }
    }
    assert_eq!(responses.next(), None, "a response without a request");
}

fn part(request: &BlobRequest) -> Vec<u8> {
    (request.range.start..request.range.end.min(BLOB_BYTES)).map(|at| (at % 251).to_le_bytes()[0]).collect()
}

/// The tag of a frame of totals.
const TOTALS: u8 = 6;

/// A source with one blob.
struct Memory;

impl Blobs for Memory {
    fn open<'a>(&'a self, request: &'a BlobRequest) -> BoxFuture<'a, Result<BlobStream, SourceError>> {
        async move {
            if request.range.end > BLOB_BYTES {
                return Err(SourceError::new(Fault::NotFound, "no such bytes"));
            }
            let pieces: Vec<_> = part(request).chunks(20_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            Ok(stream::iter(pieces).boxed())
        }
        .boxed()
    }

    fn totals(&self, _: &BlobRequest) -> Totals {
        Totals::default()
    }
}
