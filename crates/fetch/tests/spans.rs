//! Objects of plain gzip layers, read through the spans that were found while streaming the layer once.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use common::{World, noise};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tarpon_blob::Fault;
use tarpon_fetch::Config;
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::SpanReader;
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::layers::{Dialect, Item, tar};
use tarpon_testkit::sinks::Forgetful;
use tarpon_testkit::source::{Form, MemoryStore, PackedLayer, Reply, Then};
use tokio::time::{Instant, sleep};

/// Half noise: blocks with codes of their own, which end anywhere in a byte.
fn content(seed: u64, length: usize) -> Vec<u8> {
    noise(seed, length).into_iter().map(|byte| byte & 0x55).collect()
}

/// A layer with these files, and the index that streaming it gives.
fn layer(files: &[Vec<u8>], span: u64) -> PackedLayer {
    let items: Vec<Item> =
        files.iter().enumerate().map(|(number, file)| Item::file(format!("file{number:03}"), file)).collect();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(&tar(&items, Dialect::Pax)).unwrap();
    let bytes = Bytes::from(encoder.finish().unwrap());
    let mut reader = SpanReader::with_spans_of(span, &bytes[..]).unwrap();
    let (compression, access) = (reader.compression(), Access::Spans(reader.starts()));
    let mut index = import(&mut reader, Options { access, hides_toc_files: false }, &mut Forgetful).unwrap();
    index.place_in_spans(&reader.finish(), compression);
    let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
    PackedLayer { index, blob, bytes, form: Form::GzipStream }
}

/// Places of all spans in the blob.
fn places(layer: &PackedLayer) -> Vec<(u64, u64)> {
    let table = tarpon_testkit::source::table_of(&[layer]);
    let place = |number| match table.chunk(number).unwrap().chunk.place {
        tarpon_layer::ChunkPlace::Blob { offset, length, .. } => (offset, offset + length),
        tarpon_layer::ChunkPlace::Zeros => (0, 0),
    };
    let mut places: Vec<_> = (0..table.chunk_count()).map(place).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Two spans meet where a deflate block ends, which is within a byte seven times out of eight.
#[tokio::test(start_paused = true)]
async fn spans_that_share_a_byte_are_fetched_in_one_request() {
    let file = content(1, 3 << 20);
    let layer = layer(std::slice::from_ref(&file), 200_000);
    let spans = places(&layer);
    assert!(spans.windows(2).any(|pair| pair[1].0 + 1 == pair[0].1), "{spans:?}");
    let world = World::new(&[&layer]);
    assert!(world.read(&Digest::of(&file), 0, 4 << 20).await.unwrap() == file);
    world.quiet().await;
    assert_eq!(world.source.requests().len(), 1, "{:?}", world.source.requests());
}

/// A response at 320 KiB per second.
fn slow(then: Then) -> Reply {
    Reply { part: 16 << 10, pace: Duration::from_millis(50), ..then.into() }
}

/// Forty files in a few spans, encoded in about half their bytes.
fn forty_files() -> (Vec<Vec<u8>>, PackedLayer) {
    let files: Vec<Vec<u8>> = (0..40).map(|seed| content(seed, 50_000)).collect();
    let layer = layer(&files, 1 << 20);
    (files, layer)
}

/// The part of the span in front of the end of the file, and the encoded bytes of the span; `None` for a file in two spans.
fn place(layer: &PackedLayer, file: &[u8]) -> Option<(f64, u64)> {
    let table = tarpon_testkit::source::table_of(&[layer]);
    let chunks = (0..table.chunk_count()).map(|number| table.chunk(number).unwrap().chunk);
    let place = |chunk: tarpon_layer::Chunk| match chunk.place {
        tarpon_layer::ChunkPlace::Blob { offset, length, skip, .. } => (offset, length, skip + chunk.size),
        tarpon_layer::ChunkPlace::Zeros => panic!("no zeros"),
    };
    let (offset, length, end) = chunks.clone().find(|chunk| chunk.digest == Digest::of(file)).map(place)?;
    let last = chunks.map(place).filter(|other| other.0 == offset).map(|other| other.2).max().unwrap();
    Some((end as f64 / last as f64, length))
}

async fn read(world: &World, file: &[u8]) -> Duration {
    let began = Instant::now();
    assert!(world.read(&Digest::of(file), 0, 1 << 20).await.unwrap() == file);
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_reader_gets_its_file_before_the_rest_of_the_span_has_arrived() {
    let (files, layer) = forty_files();
    // In the first span, which begins with a gzip member, and in the second, which begins in the middle of it.
    for number in [0, 5, 10, 23, 26, 30] {
        let (part, span) = place(&layer, &files[number]).unwrap();
        let transfer = Duration::from_millis(span * 50 / (16 << 10));
        let world = World::new(&[&layer]);
        world.source.always(slow(Then::Bytes));
        let took = read(&world, &files[number]).await;
        assert!(took < transfer.mul_f64(part * 1.125 + 0.15), "file {number} after {took:?} of {transfer:?}");
        world.quiet().await;
        world.source.always(slow(Then::Never));
        let is_beside =
            |file: &&Vec<u8>| **file != files[number] && place(&layer, file).is_some_and(|(_, other)| other == span);
        read(&world, files.iter().find(is_beside).unwrap()).await;
        assert_eq!(world.source.requests().len(), 1, "the rest of the span was kept");
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_not_where_it_was_expected_is_read_from_more_or_all_of_the_span() {
    // What precedes the file takes nearly all encoded bytes, what follows it nearly none.
    let files = [noise(1, 400_000), content(2, 50_000), vec![7; 500_000]];
    let layer = layer(&files, 4 << 20);
    let world = World::new(&[&layer]);
    world.source.always(slow(Then::Bytes));
    read(&world, &files[1]).await;
    world.quiet().await;
    assert_eq!(world.source.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_breaks_off_behind_the_file_fails_no_reader_of_it() {
    let (files, layer) = forty_files();
    let world = World::new(&[&layer]);
    world.source.script([slow(Then::Break(200_000, Fault::BadData))]);
    world.source.always(slow(Then::Bytes));
    read(&world, &files[2]).await;
    world.quiet().await;
    // Until then the failure of the piece is remembered.
    sleep(Config::default().failure_memo).await;
    read(&world, &files[19]).await;
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_in_the_span_reach_no_reader() {
    let (files, layer) = forty_files();
    let world = World::new(&[&layer]);
    // In the file itself, so that neither the early nor the late check passes the first time.
    world.source.script([slow(Then::Corrupt(places(&layer)[0].0 + 30_000))]);
    world.source.always(slow(Then::Bytes));
    read(&world, &files[1]).await;
    world.quiet().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn reads_through_spans_are_right(
        seed in any::<u64>(),
        span in 60_000_u64..300_000,
        reads in prop::collection::vec((0_usize..3, 0_usize..700_000, 0_usize..400_000), 1..12),
    ) {
        let files: Vec<Vec<u8>> = [700_000, 40_000, 500_000].iter().map(|size| content(seed ^ *size as u64, *size)).collect();
        let layer = layer(&files, span);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let world = World::with(&[&layer], MemoryStore::default(), Config::default());
            for (file, offset, length) in reads {
                let content = &files[file];
                let bytes = world.read(&Digest::of(content), offset as u64, length as u64).await.unwrap();
                let start = offset.min(content.len());
                assert!(*bytes == content[start..content.len().min(offset + length)], "{file} {offset} {length}");
            }
        });
    }
}
