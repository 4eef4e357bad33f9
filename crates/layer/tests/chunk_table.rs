//! Compares the chunk table with its input.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder, ChunkTableError};
use tarpon_layer::decode::Compression;
use tarpon_layer::{Chunk, ChunkPlace, Codec, ObjectId};
use tarpon_oci::{Blob, Digest};

fn id(number: u32) -> ObjectId {
    Digest::of(&number.to_le_bytes())
}

fn blob(number: u32) -> Blob {
    Blob { digest: id(number), size: 1 << 30 }
}

fn chunk(object_offset: u64, size: u64, codec: Codec, offset: u64, skip: u64) -> Chunk {
    let digest = Digest::of(&[object_offset, size, offset].map(u64::to_le_bytes).concat());
    Chunk { object_offset, size, digest, place: ChunkPlace::Blob { codec, offset, length: size / 2 + 1, skip } }
}

#[test]
fn of_two_places_the_one_with_random_access_is_kept() {
    for order in [[0, 1], [1, 0]] {
        let mut builder = ChunkTableBuilder::new();
        let layers = [0, 1].map(|number| builder.add_layer(blob(number), Compression::Gzip).unwrap());
        for which in order {
            let codec = [Codec::Stream, Codec::Gzip][which];
            builder.add_object(id(7), 10, layers[which], &[chunk(0, 10, codec, 500, 0)]).unwrap();
        }
        let bytes = builder.finish().unwrap();
        let table = ChunkTable::open(&bytes[..]).unwrap();
        let object = table.find(&id(7)).unwrap();
        assert_eq!((table.object_count(), table.chunk_count()), (1, 1));
        assert_eq!(table.chunk(object.chunks.start).unwrap().layer, 1);
    }
}

#[test]
fn an_object_whose_chunks_are_checked_in_two_ways_is_refused() {
    let mut builder = ChunkTableBuilder::new();
    let layer = builder.add_layer(blob(0), Compression::Gzip).unwrap();
    let of = |codecs: [Codec; 2]| [chunk(0, 5, codecs[0], 100, 0), chunk(5, 5, codecs[1], 100, 5)];
    builder.add_object(id(1), 10, layer, &of([Codec::CheckedSpan; 2])).unwrap();
    for mixed in [[Codec::CheckedSpan, Codec::Deflate], [Codec::Raw, Codec::CheckedSpan]] {
        assert_eq!(builder.add_object(id(2), 10, layer, &of(mixed)), Err(ChunkTableError::Gap(id(2))));
    }
    ChunkTable::open(builder.finish().unwrap()).unwrap();
}

#[test]
fn chunks_of_one_member_are_neighbours_by_place() {
    let mut builder = ChunkTableBuilder::new();
    let layer = builder.add_layer(blob(0), Compression::Gzip).unwrap();
    for (number, offset, skip) in [(1, 100, 0), (2, 100, 10), (3, 100, 20), (4, 300, 0), (5, 50, 0)] {
        builder.add_object(id(number), 10, layer, &[chunk(0, 10, Codec::Gzip, offset, skip)]).unwrap();
    }
    let bytes = builder.finish().unwrap();
    let table = ChunkTable::open(&bytes[..]).unwrap();
    let objects = |range| {
        table
            .by_place(layer, range)
            .map(|number| table.object(table.chunk(number).unwrap().object).unwrap().0)
            .collect()
    };
    let member: Vec<ObjectId> = objects(100..101);
    assert_eq!(member, [id(1), id(2), id(3)]);
    let all: Vec<ObjectId> = objects(0..u64::MAX);
    assert_eq!(all, [id(5), id(1), id(2), id(3), id(4)]);
    assert_eq!(table.by_place(layer + 1, 0..u64::MAX).count(), 0);
}

#[test]
fn contradictions_are_refused() {
    let mut builder = ChunkTableBuilder::new();
    let gzip = |place, size| chunk(place, size, Codec::Gzip, 100, 0);
    assert_eq!(builder.add_object(id(1), 10, 0, &[gzip(0, 10)]), Err(ChunkTableError::NoSuchLayer(0)));
    let layer = builder.add_layer(blob(0), Compression::Gzip).unwrap();
    for chunks in [vec![], vec![gzip(0, 9)], vec![gzip(1, 9)], vec![gzip(0, 5), gzip(4, 6)], vec![gzip(0, 11)]] {
        assert_eq!(builder.add_object(id(1), 10, layer, &chunks), Err(ChunkTableError::Gap(id(1))));
    }
    builder.add_object(id(1), 10, layer, &[gzip(0, 10)]).unwrap();
    let two_sizes = ChunkTableError::TwoSizes { object: id(1), one: 10, other: 11 };
    assert_eq!(builder.add_object(id(1), 11, layer, &[gzip(0, 11)]), Err(two_sizes));
    assert!(ChunkTable::open(builder.finish().unwrap()).is_ok());
}

/// Sizes of the chunks of an object, and its layer.
fn objects() -> impl Strategy<Value = BTreeMap<u32, (Vec<(u64, bool)>, u16)>> {
    let chunks = prop::collection::vec((1..1000_u64, any::<bool>()), 1..5);
    prop::collection::btree_map(0..200_u32, (chunks, 0..3_u16), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn everything_is_found_as_it_was_put_in(objects in objects(), flip in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let mut builder = ChunkTableBuilder::new();
        for number in 0..3 {
            builder.add_layer(blob(number), Compression::Zstd).unwrap();
        }
        let mut model = BTreeMap::new();
        for (number, (sizes, layer)) in &objects {
            let mut place = 0;
            let mut chunks = Vec::new();
            for (size, is_hole) in sizes {
                let mut chunk = chunk(place, *size, Codec::Zstd, u64::from(number * 17 % 29) * 1000 + place, 0);
                if *is_hole {
                    (chunk.place, chunk.digest) = (ChunkPlace::Zeros, Digest::from_bytes([0; 32]));
                }
                chunks.push(chunk);
                place += size;
            }
            builder.add_object(id(*number), place, *layer, &chunks).unwrap();
            model.insert(id(*number), (place, *layer, chunks));
        }
        let mut bytes = builder.finish().unwrap();
        tarpon_testkit::fuzz::chunk_table(&bytes);
        let table = ChunkTable::open(&bytes[..]).unwrap();
        prop_assert_eq!(table.objects().count(), model.len());
        for (object, entry) in table.objects() {
            let (size, layer, chunks) = &model[&object];
            prop_assert_eq!(entry.size, *size);
            prop_assert_eq!(entry.chunks.len(), chunks.len());
            prop_assert_eq!(table.find(&object), Some(entry.clone()));
            for (number, chunk) in entry.chunks.clone().zip(chunks) {
                let found = table.chunk(number).unwrap();
                prop_assert_eq!((found.chunk, found.layer, found.object), (*chunk, *layer, entry.number));
                let last = chunk.object_offset + chunk.size - 1;
                prop_assert_eq!(table.chunk_at(&entry, last), Some(number));
            }
        }
        for layer in 0..3 {
            let expected = model.values().filter(|object| object.1 == layer).flat_map(|object| &object.2);
            let expected = expected.filter(|chunk| chunk.place != ChunkPlace::Zeros).count();
            let places: Vec<u64> = table
                .by_place(layer, 0..u64::MAX)
                .map(|number| match table.chunk(number).unwrap().chunk.place {
                    ChunkPlace::Blob { offset, .. } => offset,
                    ChunkPlace::Zeros => panic!("a hole has no place"),
                })
                .collect();
            prop_assert!(places.is_sorted());
            prop_assert_eq!(places.len(), expected);
        }
        prop_assert_eq!(table.find(&id(1000)), None);
        // A flipped bit is detected, or is in a value that the table cannot verify.
        let place = flip.index(bytes.len());
        bytes[place] ^= 1_u8 << bit;
        tarpon_testkit::fuzz::chunk_table(&bytes);
        bytes.truncate(place);
        prop_assert!(ChunkTable::open(&bytes[..]).is_err());
    }
}
