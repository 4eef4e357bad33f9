//! Chunks and whole layers, decoded.

use std::io::{BufReader, Read};

use flate2::GzBuilder;
use proptest::prelude::*;
use tarpon_layer::Codec;
use tarpon_layer::chunks::CheckpointEntry;
use tarpon_layer::decode::{Compression, DecodeError, LayerReader, decode_chunk, decode_span};
use tarpon_layer::spans::WINDOW_BYTES;
use tarpon_oci::limits;
use tarpon_testkit::layers::{gzip, gzip_members, gzip_with_header, skippable_frame, zstd, zstd_frames};

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|place| u8::try_from(place * place / 31 % 251).expect("small")).collect()
}

fn whole(blob: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    LayerReader::sniffed(BufReader::new(blob))?.read_to_end(&mut out)?;
    Ok(out)
}

#[test]
fn layers_are_read_through_members_frames_and_optional_headers() {
    let text = text(100_000);
    let header = GzBuilder::new().filename("layer.tar").comment("a comment").extra(b"AB\x04\0abcd".to_vec());
    for blob in [
        gzip(&text),
        gzip_members(&text, 700),
        gzip_with_header(&text, header),
        zstd(&text),
        zstd_frames(&text, 5000),
        [zstd(&text), skippable_frame(b"at the end")].concat(),
        text.clone(),
    ] {
        assert!(whole(&blob).unwrap() == text);
    }
}

#[test]
fn cut_or_followed_by_garbage_a_layer_is_an_error() {
    let text = text(100_000);
    for blob in [gzip(&text), gzip_members(&text, 700), zstd(&text), zstd_frames(&text, 5000)] {
        // Not between two members or frames: only the digest of the layer shows a cut there.
        for cut in [5, blob.len() / 2 + 3, blob.len() - 1] {
            assert!(whole(&blob[..cut]).is_err(), "cut at {cut} of {}", blob.len());
        }
        assert!(whole(&[&blob[..], b"garbage"].concat()).is_err());
    }
    let mut damaged = gzip(&text);
    let checksum = damaged.len() - 8;
    damaged[checksum] ^= 1;
    assert!(whole(&damaged).is_err());
}

#[test]
fn a_chunk_may_lie_anywhere_in_a_member_and_cross_into_the_next() {
    let text = text(200_000);
    let header = GzBuilder::new().filename("x").comment("y").extra(vec![1; 300]);
    let blobs = [
        (Codec::Raw, text.clone()),
        (Codec::Gzip, gzip(&text)),
        (Codec::Gzip, gzip_members(&text, 999)),
        (Codec::Gzip, gzip_with_header(&text, header)),
        (Codec::Zstd, zstd(&text)),
        (Codec::Zstd, zstd_frames(&text, 999)),
    ];
    let mut out = Vec::new();
    for (codec, blob) in blobs {
        for (skip, size) in [(0, 200_000), (0, 1), (150_000, 50_000), (998, 2), (70_000, 70_000), (10, 0)] {
            decode_chunk(codec, &blob, skip as u64, size as u64, &mut out).unwrap();
            assert!(out == text[skip..skip + size], "{codec:?} {skip} {size}");
        }
        let too_long = decode_chunk(codec, &blob, 1, 200_000, &mut out);
        assert_eq!(too_long, Err(DecodeError::TooShort { missing: 1 }), "{codec:?}");
    }
}

#[test]
fn requested_ranges_are_bounded() {
    let mut out = Vec::new();
    let bomb = gzip(&vec![0; 20 << 20]);
    assert_eq!(decode_chunk(Codec::Gzip, &bomb, 0, (16 << 20) + 1, &mut out), Err(DecodeError::TooLarge));
    assert_eq!(decode_chunk(Codec::Gzip, &bomb, u64::MAX, 1, &mut out), Err(DecodeError::TooLarge));
    assert_eq!(decode_chunk(Codec::Gzip, &bomb, 64 << 20, 1, &mut out), Err(DecodeError::TooLarge));
    assert_eq!(decode_chunk(Codec::Stream, &bomb, 0, 1, &mut out), Err(DecodeError::NotSeekable));
    decode_chunk(Codec::Gzip, &bomb, 19 << 20, 100, &mut out).unwrap();
    assert_eq!(out, [0; 100]);
    assert!(matches!(decode_chunk(Codec::Zstd, &bomb, 0, 1, &mut out), Err(DecodeError::Malformed { .. })));
    assert!(matches!(decode_chunk(Codec::Gzip, b"", 0, 1, &mut out), Err(DecodeError::Malformed { .. })));
}

#[test]
fn ranges_as_large_as_the_limits_are_decoded() {
    let (chunk, member) = (limits::CHUNK_BYTES, limits::MEMBER_BYTES);
    let short = |missing| Err(DecodeError::TooShort { missing });
    let mut out = Vec::new();
    let one = gzip(b"x");
    for codec in [Codec::Raw, Codec::Gzip] {
        let blob: &[u8] = if codec == Codec::Raw { b"x" } else { &one };
        assert_eq!(decode_chunk(codec, blob, 0, chunk, &mut out), short(chunk - 1), "{codec:?}");
        assert_eq!(decode_chunk(codec, blob, 0, chunk + 1, &mut out), Err(DecodeError::TooLarge), "{codec:?}");
    }
    assert_eq!(decode_chunk(Codec::Gzip, &one, member - 1, 1, &mut out), short(member - 1));
    assert_eq!(decode_chunk(Codec::Gzip, &one, member, 1, &mut out), Err(DecodeError::TooLarge));
    assert_eq!(decode_chunk(Codec::Raw, b"x", member, 1, &mut out), short(member), "raw bytes may be anywhere");
    let window = zstd(&[0; WINDOW_BYTES]);
    let checkpoint = CheckpointEntry { used_bits: 0, window: &window };
    let deflate = &one[10..];
    decode_span(&checkpoint, deflate, 0, 1, &mut out).unwrap();
    assert_eq!(out, b"x");
    assert_eq!(decode_span(&checkpoint, deflate, 0, chunk, &mut out), short(chunk - 1));
    assert_eq!(decode_span(&checkpoint, deflate, member - 1, 1, &mut out), short(member - 1));
    for (skip, size) in [(0, chunk + 1), (member, 1), (u64::MAX, 1)] {
        assert_eq!(decode_span(&checkpoint, deflate, skip, size, &mut out), Err(DecodeError::TooLarge));
    }
}

/// A zstd frame of one block that is not compressed, which demands a window of this size.
fn frame_with_window(log: u32, content: &[u8]) -> Vec<u8> {
    let window = u8::try_from((log - 10) << 3).expect("five bits");
    let block = (u32::try_from(content.len()).expect("small") << 3 | 1).to_le_bytes();
    [&b"\x28\xb5\x2f\xfd\0"[..], &[window], &block[..3], content].concat()
}

#[test]
fn a_frame_that_demands_more_memory_than_the_limits_is_refused() {
    let (chunk, layer) = (limits::ZSTD_CHUNK_WINDOW_LOG, limits::ZSTD_LAYER_WINDOW_LOG);
    // Only a part of the frame is wanted: all of it at once needs no window.
    let part = |log: u32| {
        let mut out = Vec::new();
        decode_chunk(Codec::Zstd, &frame_with_window(log, b"content"), 3, 4, &mut out).map(|()| out)
    };
    assert_eq!(part(chunk).as_deref(), Ok(&b"tent"[..]));
    assert!(matches!(part(chunk + 1), Err(DecodeError::Malformed { codec: "zstd", .. })));
    assert_eq!(whole(&frame_with_window(layer, b"content")).unwrap(), b"content");
    assert!(whole(&frame_with_window(layer + 1, b"content")).is_err());
}

#[test]
fn an_error_leaves_nothing_behind_for_the_next_chunk() {
    let text = text(5000);
    let (good, mut bad) = (zstd(&text), zstd(&text));
    bad.truncate(bad.len() / 2);
    let mut out = Vec::new();
    for _ in 0..3 {
        assert!(decode_chunk(Codec::Zstd, &bad, 0, 5000, &mut out).is_err());
        assert!(decode_chunk(Codec::Gzip, &bad, 0, 5000, &mut out).is_err());
        decode_chunk(Codec::Zstd, &good, 0, 5000, &mut out).unwrap();
        assert!(out == text);
        decode_chunk(Codec::Gzip, &gzip(&text), 0, 5000, &mut out).unwrap();
        assert!(out == text);
    }
}

#[test]
fn compression_is_detected_by_the_first_bytes() {
    assert_eq!(Compression::detect(&gzip(b"x")), Compression::Gzip);
    assert_eq!(Compression::detect(&zstd(b"x")), Compression::Zstd);
    assert_eq!(Compression::detect(&skippable_frame(b"x")), Compression::Zstd);
    assert_eq!(Compression::detect(b"any tar"), Compression::None);
    assert_eq!(Compression::detect(b""), Compression::None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn a_chunk_is_the_stretch_of_the_whole(
        text in prop::collection::vec(0..4_u8, 1..5000),
        piece in 1..2000_usize,
        skip in any::<prop::sample::Index>(),
        size in any::<prop::sample::Index>(),
    ) {
        let skip = skip.index(text.len());
        let size = size.index(text.len() - skip + 1);
        let mut out = Vec::new();
        for (codec, blob) in [(Codec::Gzip, gzip_members(&text, piece)), (Codec::Zstd, zstd_frames(&text, piece))] {
            decode_chunk(codec, &blob, skip as u64, size as u64, &mut out).unwrap();
            prop_assert_eq!(&out[..], &text[skip..skip + size]);
        }
    }
}
