//! Objects of plain gzip layers, read through the spans that were found while streaming the layer once.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::io::Write;

use bytes::Bytes;
use common::{World, noise};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tarpon_fetch::Config;
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::SpanReader;
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::layers::{Dialect, Item, tar};
use tarpon_testkit::sinks::Forgetful;
use tarpon_testkit::source::{Form, MemoryStore, PackedLayer};

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
