//! Spans of compressed layers: decoding from a checkpoint gives the same bytes as decoding from the beginning.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{BufReader, Read, Write};

use flate2::write::GzEncoder;
use proptest::prelude::*;
use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::{Compression, decode_chunk, decode_span};
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::{SPAN_BYTES, SpanReader, Spans};
use tarpon_layer::{ChunkPlace, Codec, LayerIndex, Node};
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::layers::{gzip_members, skippable_frame, zstd, zstd_frames};

mod common;

use common::Kept;

/// Text with many back references for deflate, and some noise.
fn text(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(length + 64);
    while bytes.len() < length {
        match random() % 8 {
            0 => bytes.extend_from_slice(&random().to_le_bytes()),
            1..4 if bytes.len() > 100 => {
                let back = 1 + usize::try_from(random() % 40_000).unwrap() % bytes.len();
                let from = bytes.len() - back;
                let count = 3 + usize::try_from(random() % 60).unwrap();
                let copy: Vec<u8> = bytes[from..].iter().cycle().take(count).copied().collect();
                bytes.extend(copy);
            }
            _ => bytes.extend_from_slice(format!("line {} of a file\n", random() % 1000).as_bytes()),
        }
    }
    bytes.truncate(length);
    bytes
}

fn gzip_at(level: u32, bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Files of many sizes, some of them empty.
fn tar(content: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let (mut rest, mut number) = (content, 0_usize);
    while !rest.is_empty() {
        let size = (number * number * 97 % 60_000).min(rest.len());
        let (file, after) = rest.split_at(size);
        let mut header = tar::Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, format!("files/{number:05}"), file).unwrap();
        (rest, number) = (after, number + 1);
    }
    builder.into_inner().unwrap()
}

fn indexed(blob: &[u8], span_bytes: u64) -> (LayerIndex, Spans, Compression, Kept) {
    let mut reader = SpanReader::with_spans_of(span_bytes, BufReader::with_capacity(9000, blob)).unwrap();
    let (compression, access) = (reader.compression(), Access::Spans(reader.starts()));
    let mut kept = Kept::default();
    let mut index = import(&mut reader, Options { access, hides_toc_files: false }, &mut kept).unwrap();
    let spans = reader.finish();
    index.place_in_spans(&spans, compression);
    (index, spans, compression, kept)
}

fn table(index: &LayerIndex, blob: &[u8], compression: Compression) -> ChunkTable<Vec<u8>> {
    let mut builder = ChunkTableBuilder::new();
    let layer = Blob { digest: Digest::of(blob), size: blob.len() as u64 };
    let number = builder.add_layer(layer, compression).unwrap();
    builder.add_index(number, index).unwrap();
    ChunkTable::open(builder.finish().unwrap()).unwrap()
}

/// Reads every chunk from its span alone and compares its digest. Returns the number of chunks of each codec.
fn read_all(table: &ChunkTable<Vec<u8>>, blob: &[u8]) -> Vec<(Codec, usize)> {
    let mut counts: Vec<(Codec, usize)> = Vec::new();
    let mut out = Vec::new();
    for number in 0..table.chunk_count() {
        let entry = table.chunk(number).unwrap();
        let ChunkPlace::Blob { codec, offset, length, skip } = entry.chunk.place else { continue };
        match counts.iter_mut().find(|(counted, _)| *counted == codec) {
            Some((_, count)) => *count += 1,
            None => counts.push((codec, 1)),
        }
        if codec == Codec::Stream {
            continue;
        }
        let encoded = &blob[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()];
        match codec {
            Codec::Deflate => {
                let checkpoint = table.checkpoint(entry.layer, offset).unwrap();
                decode_span(&checkpoint, encoded, skip, entry.chunk.size, &mut out).unwrap();
            }
            codec => decode_chunk(codec, encoded, skip, entry.chunk.size, &mut out).unwrap(),
        }
        assert_eq!(Digest::of(&out), entry.chunk.digest, "chunk {number}, {codec:?} at {offset} skip {skip}");
    }
    counts
}

fn count(counts: &[(Codec, usize)], codec: Codec) -> usize {
    counts.iter().find(|(counted, _)| *counted == codec).map_or(0, |(_, count)| *count)
}

#[test]
fn every_file_of_a_gzip_layer_is_read_from_its_spans_alone() {
    let tar = tar(&text(3 << 20, 7));
    // Level 1 of this compressor writes one huge block.
    for level in [3, 6, 9] {
        let blob = gzip_at(level, &tar);
        let (index, spans, compression, _) = indexed(&blob, 200_000);
        assert!((4..18).contains(&spans.len()), "{} spans at level {level}", spans.len());
        assert_eq!(index.checkpoints.len(), spans.len() - 1, "the first span is the member's beginning");
        let counts = read_all(&table(&index, &blob, compression), &blob);
        assert_eq!(count(&counts, Codec::Stream), 0);
        assert!(count(&counts, Codec::Deflate) > count(&counts, Codec::Gzip));
    }
}

#[test]
fn a_file_in_several_spans_is_cut_at_their_beginnings() {
    let content = text(1 << 20, 3);
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_cksum();
    builder.append_data(&mut header, "large", &content[..]).unwrap();
    let blob = gzip_at(6, &builder.into_inner().unwrap());
    let (index, spans, compression, kept) = indexed(&blob, 100_000);
    let Node::File(file) = &index.entries[0].node else { panic!("a file") };
    assert!(spans.len() > 1 && file.chunk_count as usize >= spans.len());
    assert_eq!(kept.objects[&file.object], content);
    read_all(&table(&index, &blob, compression), &blob);
}

#[test]
fn members_and_frames_need_no_window() {
    let tar = tar(&text(1 << 20, 11));
    for (blob, codec) in [(gzip_members(&tar, 70_000), Codec::Gzip), (zstd_frames(&tar, 70_000), Codec::Zstd)] {
        let (index, spans, compression, _) = indexed(&blob, 200_000);
        assert!(spans.len() > 5);
        assert!(index.checkpoints.is_empty());
        let counts = read_all(&table(&index, &blob, compression), &blob);
        assert_eq!(counts.len(), 1, "{counts:?}");
        assert!(count(&counts, codec) > 0);
    }
}

#[test]
fn a_span_may_run_through_the_end_of_a_member() {
    let tar = tar(&text(1 << 20, 5));
    // Members shorter than the smallest span: checkpoints are in the middle of some.
    let blob = gzip_members(&tar, 45_000);
    let (index, _, compression, _) = indexed(&blob, 190_000);
    read_all(&table(&index, &blob, compression), &blob);
}

#[test]
fn stored_blocks_are_spans_too() {
    let tar = tar(&text(2 << 20, 13));
    let blob = gzip_at(0, &tar);
    let (index, spans, compression, _) = indexed(&blob, 100_000);
    assert!(spans.len() > 2);
    let counts = read_all(&table(&index, &blob, compression), &blob);
    assert_eq!(count(&counts, Codec::Stream), 0);
}

#[test]
fn windows_hold_what_their_span_refers_to_and_zeros() {
    let tar = tar(&text(4 << 20, 17));
    let blob = gzip_at(6, &tar);
    let (index, _, _, _) = indexed(&blob, 200_000);
    let packed: usize = index.checkpoints.iter().map(|checkpoint| checkpoint.window.len()).sum();
    let whole: usize = index.checkpoints.len() * zstd(&tar[100_000..132_768]).len();
    assert!(packed * 2 < whole, "{packed} bytes, {whole} if they were whole");
}

#[test]
fn one_huge_frame_is_no_random_access() {
    let mut state = 1_u64;
    let mut noise = Vec::new();
    while noise.len() < 20 << 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.extend_from_slice(&(state >> 32).to_le_bytes()[..4]);
    }
    let blob = zstd(&tar(&noise));
    assert!(blob.len() as u64 > tarpon_oci::limits::CHUNK_ENCODED_BYTES, "{}", blob.len());
    let (index, _, compression, _) = indexed(&blob, SPAN_BYTES);
    let counts = read_all(&table(&index, &blob, compression), &blob);
    assert_eq!(counts.len(), 1);
    assert!(count(&counts, Codec::Stream) > 0);
}

#[test]
fn a_repeated_content_is_read_from_the_place_with_random_access() {
    let archive = |files: &[(&str, &[u8])]| {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, bytes) in files {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, path, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    };
    let far = vec![0; usize::try_from(tarpon_oci::limits::MEMBER_BYTES).unwrap()];
    let first = archive(&[("zeros", &far), ("a", b"same")]);
    let first = &first[..first.len() - 1024];
    let second = archive(&[("b", b"same"), ("c", b"same")]);
    let blob = [zstd(first), zstd(&second)].concat();
    let (index, _, compression, _) = indexed(&blob, SPAN_BYTES);
    let places = |codec| index.chunks.iter().filter(|chunk| chunk.size == 4 && has_codec(chunk.place, codec)).count();
    assert_eq!((places(Codec::Stream), places(Codec::Zstd)), (1, 1), "the last one shares the place of the second");
    let counts = read_all(&table(&index, &blob, compression), &blob);
    assert!(count(&counts, Codec::Zstd) > 0);
}

fn has_codec(place: ChunkPlace, wanted: Codec) -> bool {
    matches!(place, ChunkPlace::Blob { codec, .. } if codec == wanted)
}

#[test]
fn spans_do_not_depend_on_the_pieces_in_which_the_blob_arrives() {
    let tar = tar(&text(3 << 20, 31));
    for blob in [gzip_at(3, &tar), gzip_at(6, &tar), gzip_members(&tar, 300_000), zstd_frames(&tar, 90_000)] {
        let all = |capacity: usize, step: usize| {
            let mut reader = SpanReader::with_spans_of(100_000, BufReader::with_capacity(capacity, &blob[..])).unwrap();
            let mut buffer = vec![0; step];
            while reader.read(&mut buffer).unwrap() > 0 {}
            reader.finish()
        };
        let expected = all(4 << 20, 4 << 20);
        assert!(expected.len() > 2);
        for (capacity, step) in [(4, 1 << 20), (1000, 1000), (65_536, 300_000), (1 << 20, 777)] {
            assert_eq!(all(capacity, step), expected, "pieces of {capacity}, reads of {step}");
        }
    }
}

#[test]
fn bare_layers_have_no_spans() {
    let tar = tar(&text(100_000, 19));
    let mut reader = SpanReader::sniffed(&tar[..]).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert!(bytes == tar && reader.finish().is_empty());
}

#[test]
fn damage_is_an_error_wherever_it_is() {
    let tar = tar(&text(300_000, 23));
    let whole = |blob: &[u8]| {
        let mut reader = SpanReader::with_spans_of(50_000, blob)?;
        reader.read_to_end(&mut Vec::new())
    };
    for blob in [gzip_at(6, &tar), gzip_members(&tar, 40_000), zstd(&tar), zstd_frames(&tar, 40_000)] {
        assert!(whole(&blob).is_ok());
        for cut in [5, blob.len() / 2 + 3, blob.len() - 1] {
            assert!(whole(&blob[..cut]).is_err(), "cut at {cut} of {}", blob.len());
        }
        assert!(whole(&[&blob[..], b"garbage"].concat()).is_err());
    }
    assert!(whole(&[&zstd(&tar)[..], &skippable_frame(b"at the end")].concat()).is_ok());
    let mut wrong = gzip_at(6, &tar);
    let checksum = wrong.len() - 8;
    wrong[checksum] ^= 1;
    assert!(whole(&wrong).unwrap_err().to_string().contains("checksum"));
}

#[test]
fn a_wrong_window_gives_an_error_or_bytes_that_no_digest_matches() {
    let tar = tar(&text(600_000, 29));
    let blob = gzip_at(6, &tar);
    let (mut index, _, compression, _) = indexed(&blob, 100_000);
    let chunk = *index
        .chunks
        .iter()
        .find(|chunk| matches!(chunk.place, ChunkPlace::Blob { codec: Codec::Deflate, .. }))
        .unwrap();
    for checkpoint in &mut index.checkpoints {
        checkpoint.window = zstd(&vec![b'x'; 32 << 10]).into();
    }
    let table = table(&index, &blob, compression);
    let ChunkPlace::Blob { offset, length, skip, .. } = chunk.place else { panic!("placed") };
    let encoded = &blob[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()];
    let checkpoint = table.checkpoint(0, offset).unwrap();
    let mut out = Vec::new();
    if decode_span(&checkpoint, encoded, skip, chunk.size, &mut out).is_ok() {
        assert_ne!(Digest::of(&out), chunk.digest);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn any_layer_reads_the_same_from_its_spans(
        length in 1..400_000_usize,
        seed in any::<u64>(),
        level in 0..10_u32,
        span in 1000..150_000_u64,
        member in prop::option::of(10_000..200_000_usize),
    ) {
        let tar = tar(&text(length, seed));
        let blob = match member {
            Some(length) => tar.chunks(length).flat_map(|part| gzip_at(level, part)).collect(),
            None => gzip_at(level, &tar),
        };
        let (index, _, compression, _) = indexed(&blob, span);
        let counts = read_all(&table(&index, &blob, compression), &blob);
        prop_assert_eq!(count(&counts, Codec::Stream), 0);
    }
}
