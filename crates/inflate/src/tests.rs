//! Compared with flate2, which encodes, and miniz_oxide, which decodes to block boundaries too.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use proptest::prelude::*;

use crate::{Inflate, Malformed, Stop};

/// Where a block ends: bytes consumed, bytes decoded, unused bits.
type Boundary = (usize, usize, u8);

fn deflated(content: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Text of `length` bytes that compresses to many blocks.
fn text(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state.to_be_bytes()[0]
    };
    std::iter::from_fn(|| Some((next() % 7).wrapping_add(if next() < 40 { next() } else { b'a' })))
        .take(length)
        .collect()
}

/// Decodes the stream in pieces of `input` and `output` bytes.
fn in_pieces(stream: &[u8], input: usize, output: usize) -> Result<(Vec<u8>, Vec<Boundary>, usize), Malformed> {
    let (mut inflate, mut at, mut decoded, mut boundaries) = (Inflate::new(), 0, Vec::new(), Vec::new());
    let mut room = vec![0; output];
    loop {
        let piece = &stream[at..stream.len().min(at + input)];
        let progress = inflate.decode(piece, &mut room)?;
        at += progress.taken;
        decoded.extend_from_slice(&room[..progress.given]);
        match progress.stop {
            Stop::Block { unused_bits } => boundaries.push((at, decoded.len(), unused_bits)),
            Stop::End => return Ok((decoded, boundaries, at)),
            Stop::Pause if at == stream.len() && progress.given == 0 => return Err(Malformed),
            Stop::Pause => {}
        }
    }
}

/// The boundaries that miniz_oxide finds.
fn expected(stream: &[u8], length: usize) -> Vec<Boundary> {
    let (mut inflate, mut at, mut end, mut boundaries) = (Box::<DecompressorOxide>::default(), 0, 0, Vec::new());
    let mut out = vec![0; length + 1];
    let flags =
        TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY | TINFL_FLAG_HAS_MORE_INPUT;
    loop {
        let (status, taken, given) = decompress(&mut inflate, &stream[at..], &mut out, end, flags);
        (at, end) = (at + taken, end + given);
        match status {
            TINFLStatus::BlockBoundary => {
                boundaries.push((at, end, inflate.block_boundary_state().unwrap().num_bits));
            }
            TINFLStatus::Done => return boundaries,
            other => panic!("{other:?} after {at} bytes"),
        }
    }
}

#[test]
fn stops_at_each_block_boundary_whatever_the_pieces_are() {
    let content = text(600_000, 5);
    for level in [4, 6, 9] {
        let stream = deflated(&content, level);
        let boundaries = expected(&stream, content.len());
        assert!(boundaries.len() > 2, "{} blocks", boundaries.len());
        for (input, output) in [(usize::MAX, 1 << 20), (1, 1 << 16), (4096, 7), (333, 70_000)] {
            let input = input.min(stream.len());
            assert_eq!(in_pieces(&stream, input, output), Ok((content.clone(), boundaries.clone(), stream.len())));
        }
    }
}

#[test]
fn bytes_after_the_last_block_are_not_consumed() {
    let content = text(10_000, 1);
    let mut stream = deflated(&content, 6);
    let length = stream.len();
    stream.extend_from_slice(b"the trailer of a gzip member");
    assert_eq!(in_pieces(&stream, stream.len(), 20_000).map(|(_, _, taken)| taken), Ok(length));
}

#[test]
fn a_stream_that_was_cut_pauses() {
    let stream = deflated(&text(10_000, 2), 6);
    let mut inflate = Inflate::new();
    let mut room = vec![0; 20_000];
    let cut = &stream[..stream.len() - 1];
    assert_eq!(inflate.decode(cut, &mut room).unwrap().stop, Stop::Pause);
    let progress = inflate.decode(&[], &mut room).unwrap();
    assert_eq!((progress.taken, progress.given, progress.stop), (0, 0, Stop::Pause));
}

#[test]
fn after_an_error_a_decoder_can_be_reset() {
    let mut inflate = Inflate::new();
    assert_eq!(inflate.decode(&[0xff; 64], &mut [0; 64]), Err(Malformed));
    inflate.reset();
    let (content, mut room) = (text(500, 3), [0; 1000]);
    let progress = inflate.decode(&deflated(&content, 6), &mut room).unwrap();
    assert_eq!((progress.stop, &room[..progress.given]), (Stop::End, &content[..]));
}

#[test]
fn a_decoder_may_move_to_another_thread_between_calls() {
    let content = text(100_000, 4);
    let stream = deflated(&content, 6);
    let (half, mut inflate, mut room) = (stream.len() / 2, Box::new(Inflate::new()), vec![0; 200_000]);
    let (mut at, mut end) = (0, 0);
    while at < half {
        let progress = inflate.decode(&stream[at..half], &mut room[end..]).unwrap();
        (at, end) = (at + progress.taken, end + progress.given);
    }
    let decoded = std::thread::spawn(move || {
        loop {
            let progress = inflate.decode(&stream[at..], &mut room[end..]).unwrap();
            (at, end) = (at + progress.taken, end + progress.given);
            if progress.stop == Stop::End {
                return room[..end].to_vec();
            }
        }
    });
    assert!(decoded.join().unwrap() == content);
}

proptest! {
    #[test]
    fn decodes_what_was_encoded(content in proptest::collection::vec(0_u8..8, 0..5000), input in 1_usize..999, output in 1_usize..999) {
        let stream = deflated(&content, 6);
        let (decoded, _, taken) = in_pieces(&stream, input, output).unwrap();
        prop_assert_eq!((decoded, taken), (content, stream.len()));
    }

    #[test]
    fn arbitrary_bytes_end_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..500), input in 1_usize..99) {
        let _either = in_pieces(&bytes, input, 99);
    }
}
