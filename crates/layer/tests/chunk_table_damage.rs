//! Chunk tables whose parts contradict each other are refused, each for its reason.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Range;

use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder, ChunkTableError};
use tarpon_layer::decode::Compression;
use tarpon_layer::{Chunk, ChunkPlace, Codec, ObjectId};
use tarpon_oci::{Blob, Digest, limits};

/// Sizes of the records, as `format.rs` describes them.
const HEADER: usize = 64;
const LAYER: usize = 48;
const OBJECT: usize = 16;
const CHUNK: usize = 48;
const NUMBER: usize = 4;

/// Objects of the table below, and chunks of each.
const OBJECTS: usize = 2;
const CHUNKS: usize = 2;

const IDS: usize = HEADER + LAYER;
const OBJECT_RECORDS: usize = IDS + OBJECTS * (32 + NUMBER);
const CHUNK_RECORDS: usize = OBJECT_RECORDS + OBJECTS * OBJECT;
const PLACES: usize = CHUNK_RECORDS + OBJECTS * CHUNKS * (CHUNK + 32);

fn blob() -> Blob {
    Blob { digest: Digest::of(b"layer"), size: 1 << 30 }
}

fn chunk(object_offset: u64, size: u64, offset: u64) -> Chunk {
    let place = ChunkPlace::Blob { codec: Codec::Gzip, offset, length: 10, skip: object_offset };
    Chunk { object_offset, size, digest: Digest::of(&object_offset.to_le_bytes()), place }
}

/// An id whose first eight bytes are those of all others.
fn id(last: u8) -> ObjectId {
    let mut bytes = [0; 32];
    bytes[31] = last;
    Digest::from_bytes(bytes)
}

/// One layer, and two objects of two chunks each.
fn table() -> Vec<u8> {
    let mut builder = ChunkTableBuilder::new();
    let layer = builder.add_layer(blob(), Compression::Gzip).unwrap();
    for (number, offset) in [(1, 100), (2, 200)] {
        builder.add_object(id(number), 10, layer, &[chunk(0, 5, offset), chunk(5, 5, offset)]).unwrap();
    }
    let table = builder.finish().unwrap();
    assert_eq!(table.len(), PLACES + OBJECTS * CHUNKS * NUMBER);
    table
}

fn refusal(table: &[u8]) -> String {
    let error = ChunkTable::open(table).expect_err("it contradicts itself").to_string();
    error.rsplit_once(": ").unwrap().1.to_owned()
}

/// Why the table is refused with other bytes at this place.
fn refusal_with(place: usize, bytes: &[u8]) -> String {
    let mut table = table();
    table[place..place + bytes.len()].copy_from_slice(bytes);
    refusal(&table)
}

/// Why the table is refused after two neighbours were exchanged.
fn refusal_after_exchange(of: Range<usize>) -> String {
    let mut table = table();
    let middle = of.len() / 2;
    table[of].rotate_left(middle);
    refusal(&table)
}

#[test]
fn objects_whose_names_begin_alike_are_found_and_must_ascend() {
    let table = table();
    let opened = ChunkTable::open(&table[..]).unwrap();
    for number in [1, 2] {
        assert_eq!(opened.object(opened.find(&id(number)).unwrap().number).unwrap().0, id(number));
    }
    assert_eq!(refusal_after_exchange(IDS..IDS + 2 * 32), "object ids out of order");
    assert_eq!(refusal_with(IDS + 63, &[1]), "object ids out of order", "the same name twice");
}

#[test]
fn names_are_listed_by_their_first_bits() {
    let mut builder = ChunkTableBuilder::new();
    let layer = builder.add_layer(blob(), Compression::Gzip).unwrap();
    let names = [0x1f_u8, 0x20, 0x2f, 0x30].map(|first| {
        let mut bytes = [0xff; 32];
        bytes[0] = first;
        Digest::from_bytes(bytes)
    });
    for (offset, name) in (0..).zip(names) {
        builder.add_object(name, 5, layer, &[chunk(0, 5, offset)]).unwrap();
    }
    let table = builder.finish().unwrap();
    let table = ChunkTable::open(&table[..]).unwrap();
    let start = |start: u64, bits| table.starting_with(start, bits).collect::<Vec<_>>();
    assert_eq!(start(0x2a << 56, 4), names[1..3]);
    assert_eq!(start(0x2f << 56, 8), names[2..3]);
    assert_eq!(start(u64::MAX >> 3, 64), names[..1]);
    assert_eq!(start(0x4 << 60, 4), []);
}

#[test]
fn a_chunk_of_no_layer_or_codec_is_refused() {
    let wrong = "a chunk that is not where it should be";
    assert_eq!(refusal_with(CHUNK_RECORDS + 44, &[1, 0]), wrong, "the layer after the last");
    assert_eq!(refusal_with(CHUNK_RECORDS + 46, &[0xff]), wrong, "a codec that does not exist");
    assert_eq!(refusal_with(CHUNK_RECORDS + 40, &[1]), wrong, "the other object");
    assert_eq!(refusal_with(HEADER + 40, &[0xff]), "an unknown compression");
}

#[test]
fn chunks_whose_ends_wrap_around_are_refused() {
    let most = u64::MAX.to_le_bytes();
    for (field, what) in [(16, "offset"), (24, "length"), (32, "skip")] {
        assert_eq!(refusal_with(CHUNK_RECORDS + field, &most), "a chunk that wraps around", "{what}");
    }
}

#[test]
fn the_order_by_place_has_each_placed_chunk_once() {
    assert_eq!(refusal_after_exchange(PLACES..PLACES + 2 * NUMBER), "places out of order");
    assert_eq!(refusal_with(PLACES + NUMBER, &[0]), "places out of order", "a chunk twice");
    assert_eq!(refusal_with(PLACES, &[4]), "a place without a chunk");
    let mut table = table();
    table.truncate(table.len() - NUMBER);
    table[28] -= 1;
    assert_eq!(refusal(&table), "chunks without a place");
}

#[test]
fn a_header_of_another_version_is_refused() {
    for place in [0, 15] {
        assert_eq!(refusal_with(place, &[0xff]), "unknown magic", "byte {place}");
    }
    for place in [40, HEADER - 1] {
        assert_eq!(refusal_with(place, &[1]), "unknown header", "byte {place}");
    }
}

#[test]
fn chunks_that_belong_to_no_object_are_refused() {
    let mut table = table();
    // All that the second object has but its chunks.
    for of_second in [
        OBJECT_RECORDS + OBJECT..OBJECT_RECORDS + 2 * OBJECT,
        OBJECT_RECORDS - NUMBER..OBJECT_RECORDS,
        IDS + 32..IDS + 2 * 32,
    ] {
        table.drain(of_second);
    }
    table[20] -= 1;
    assert_eq!(refusal(&table), "chunks without an object");
}

#[test]
fn a_table_has_no_more_layers_than_an_image() {
    let mut builder = ChunkTableBuilder::new();
    for _ in 0..limits::LAYERS {
        builder.add_layer(blob(), Compression::Gzip).unwrap();
    }
    assert_eq!(builder.add_layer(blob(), Compression::Gzip), Err(ChunkTableError::TooManyLayers));
    let mut table = builder.finish().unwrap();
    assert_eq!(usize::from(ChunkTable::open(&table[..]).unwrap().layer_count()), limits::LAYERS);
    table.extend_from_within(HEADER..HEADER + LAYER);
    table[16..20].copy_from_slice(&u32::try_from(limits::LAYERS + 1).unwrap().to_le_bytes());
    assert_eq!(refusal(&table), "too many layers");
}

#[test]
fn chunks_of_the_right_sum_at_wrong_places_are_not_written() {
    let mut builder = ChunkTableBuilder::new();
    let layer = builder.add_layer(blob(), Compression::Gzip).unwrap();
    for chunks in [vec![chunk(1, 10, 100)], vec![chunk(0, 10, 100), chunk(10, 0, 100)]] {
        assert_eq!(builder.add_object(id(1), 10, layer, &chunks), Err(ChunkTableError::Gap(id(1))));
    }
}
