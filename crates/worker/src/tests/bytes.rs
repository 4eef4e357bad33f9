//! Arbitrary bytes from the other side: an error, never a panic, and nothing allocated by a claim.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tarpon_layer::Codec;
use tokio::io::AsyncWriteExt as _;

use crate::chunk_call::{self, Call};
use crate::frames::{self, Part, Reader, Tag};
use crate::message::{
    Answer, BlobRequest, Control, Event, Failure, Job, Question, Setup, Step, StepDone, Totals, decode,
};

/// A reader of bytes that returns them in pieces.
struct Pieces<'a> {
    bytes: &'a [u8],
    length: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.length.min(out.len());
        (&mut self.bytes).take(length as u64).read(&mut out[..length])
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// All parts of the frames in these bytes, up to the first error.
fn parts(bytes: &[u8], piece: usize) -> Vec<Part> {
    block_on(async {
        let (mut to, mut from) = tokio::io::duplex(piece);
        let write = async {
            // The reader gives up at the first error.
            let _closed = to.write_all(bytes).await;
            drop(to);
        };
        let read = async {
            let (mut reader, mut parts) = (Reader::default(), Vec::new());
            while let Ok(Some(part)) = reader.next(&mut from).await {
                parts.push(part);
            }
            drop(from);
            parts
        };
        futures::join!(write, read).1
    })
}

/// Frames whose tags and lengths are mostly valid.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let frame =
        (0_u8..8, prop_oneof![9 => 0_u32..40, 1 => any::<u32>()], proptest::collection::vec(any::<u8>(), 0..40));
    let encode = |(tag, length, bytes): (u8, u32, Vec<u8>)| [&[tag][..], &length.to_le_bytes(), &bytes].concat();
    proptest::collection::vec(frame.prop_map(encode), 0..8).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn frames_of_arbitrary_bytes_have_no_more_than_arrived(bytes in frames(), piece in 1_usize..64) {
        let received: usize = parts(&bytes, piece)
            .iter()
            .map(|part| match part {
                Part::Body(bytes) | Part::Whole(_, bytes) => bytes.len(),
            })
            .sum();
        prop_assert!(received <= bytes.len());
    }

    #[test]
    fn frames_arrive_as_they_were_sent(
        sent in proptest::collection::vec((0_usize..5, proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
        piece in 1_usize..64,
    ) {
        let tags = [Tag::Message, Tag::Head, Tag::End, Tag::Failure, Tag::Totals];
        let mut bytes = Vec::new();
        for (tag, frame) in &sent {
            block_on(frames::send(&mut bytes, tags[*tag], frame)).unwrap();
            block_on(frames::send(&mut bytes, Tag::Body, frame)).unwrap();
        }
        let (mut whole, mut body) = (Vec::new(), Vec::new());
        for part in parts(&bytes, piece) {
            match part {
                Part::Whole(tag, bytes) => whole.push((tag, bytes.to_vec())),
                Part::Body(bytes) => body.extend_from_slice(&bytes),
            }
        }
        let expected: Vec<_> = sent.iter().map(|(tag, frame)| (tags[*tag], frame.clone())).collect();
        prop_assert_eq!(whole, expected);
        prop_assert_eq!(body, sent.iter().flat_map(|(_, frame)| frame.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn messages_of_arbitrary_bytes_are_values_or_errors(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Setup>(&bytes);
        let _ = decode::<Control>(&bytes);
        let _ = decode::<BlobRequest>(&bytes);
        let _ = decode::<Totals>(&bytes);
        let _ = decode::<Question>(&bytes);
        let _ = decode::<Answer>(&bytes);
        let _ = decode::<Job>(&bytes);
        let _ = decode::<Event>(&bytes);
        let _ = decode::<Step>(&bytes);
        let _ = decode::<StepDone>(&bytes);
        if let Ok(failure) = decode::<Failure>(&bytes) {
            prop_assert!(!failure.into_error().to_string().contains(char::is_control));
        }
        let _ = crate::event::error_of(&bytes).to_string();
    }

    #[test]
    fn responses_to_chunks_of_arbitrary_bytes_have_the_size_that_was_asked_for(
        status in 0_u8..3,
        length in prop_oneof![Just(100_u32), 0_u32..300, any::<u32>()],
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        piece in 1_usize..64,
    ) {
        let response = [&[status][..], &length.to_le_bytes(), &bytes].concat();
        let call = Call { codec: Codec::Gzip, used_bits: 0, window: &[], encoded: &[], skip: 0, size: 100 };
        let (mut out, until) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        let outcome = call.receive(&mut Pieces { bytes: &response, length: piece }, until, &mut out);
        prop_assert!(out.len() <= 100);
        if let Ok(Ok(())) = outcome {
            prop_assert!(status == 0 && length == 100 && out == bytes[..100]);
        }
    }

    #[test]
    fn requests_for_chunks_of_arbitrary_bytes_are_answered_or_errors(
        codec in 0_u8..6,
        used_bits in any::<u8>(),
        lengths in (0_u32..40, 0_u32..200),
        numbers in (0_u64..500, 0_u64..500),
        bytes in proptest::collection::vec(any::<u8>(), 0..250),
    ) {
        let head = [&[codec, used_bits, 0, 0][..], &lengths.0.to_le_bytes(), &lengths.1.to_le_bytes()].concat();
        let request = [&head[..], &numbers.0.to_le_bytes(), &numbers.1.to_le_bytes(), &bytes].concat();
        let mut response = Vec::new();
        let _ = chunk_call::serve(&request[..], &mut response);
        prop_assert!(response.len() <= 3 * (1 << 10));
    }
}
