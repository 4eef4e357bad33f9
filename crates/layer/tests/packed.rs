//! Packed indexes are restored, and foreign input gives a valid index or an error.

#![allow(clippy::cast_possible_truncation, reason = "tests hold small data")]

use proptest::prelude::*;
use tarpon_layer::packed::{InvalidPacked, pack, unpack};
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::{Checkpoint, SpanReader};
use tarpon_layer::{Attributes, ChunkPlace, Entry, InvalidEntry, InvalidPath, LayerIndex, LayerPath, Node};
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::layers::{
    Dialect, EstargzOptions, Item, Layer, RawHeader, Tar, ZstdChunkedOptions, check_index, estargz, gzip, random, tar,
    zstd, zstd_chunked,
};

mod common;

use common::{Kept, index_by_toc};

fn by_spans(blob: &[u8], span_bytes: u64) -> LayerIndex {
    let mut reader = SpanReader::with_spans_of(span_bytes, blob).expect("a decoder");
    let (compression, access) = (reader.compression(), Access::Spans(reader.starts()));
    let options = Options { access, hides_toc_files: false };
    let mut index = import(&mut reader, options, &mut Kept::default()).expect("a layer");
    index.place_in_spans(&reader.finish(), compression);
    index
}

fn blob(bytes: &[u8]) -> Blob {
    Layer { blob: bytes.to_vec(), ..Layer::plain(b"", tarpon_oci::Compression::None) }.descriptor()
}

/// Four ways to index the same layer, each with its blob.
fn indexes(items: &[Item]) -> Vec<(LayerIndex, Blob)> {
    let bytes = tar(items, Dialect::Pax);
    let mut found = vec![];
    let gzipped = gzip(&bytes);
    found.push((by_spans(&gzipped, 5000), blob(&gzipped)));
    found.push((import(&bytes[..], common::RANDOM, &mut Kept::default()).expect("a layer"), blob(&bytes)));
    for layer in [estargz(items, EstargzOptions::default()), zstd_chunked(items, ZstdChunkedOptions::default())] {
        if let Ok(index) = index_by_toc(&layer) {
            found.push((index, layer.descriptor()));
        }
    }
    found
}

#[test]
fn an_index_of_another_version_is_distinguished_from_garbage() {
    let mut packed = pack(&LayerIndex::default());
    assert_eq!(unpack(&packed, blob(b"")).unwrap(), LayerIndex::default());
    packed[0] = 99;
    assert_eq!(unpack(&packed, blob(b"")), Err(InvalidPacked::Version));
    assert_eq!(unpack(b"", blob(b"")), Err(InvalidPacked::Malformed));
    assert_eq!(unpack(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], blob(b"")), Err(InvalidPacked::Malformed));
}

#[test]
fn an_index_with_false_claims_about_its_layer_is_refused() {
    let items = [Item::directory("a"), Item::file("a/b", vec![7; 9000]), Item::symlink("l", "a/b")];
    let gzipped = gzip(&tar(&items, Dialect::Pax));
    let good = by_spans(&gzipped, 2000);
    let spoilt = |spoil: &dyn Fn(&mut LayerIndex)| {
        let mut bad = good.clone();
        spoil(&mut bad);
        unpack(&pack(&bad), blob(&gzipped))
    };
    assert!(spoilt(&|_| {}).is_ok());
    let file = |index: &mut LayerIndex, change: &dyn Fn(&mut tarpon_layer::FileContent)| {
        for entry in &mut index.entries {
            if let Node::File(content) = &mut entry.node {
                change(content);
            }
        }
    };
    let place = |index: &mut LayerIndex, change: &dyn Fn(&mut u64, &mut u64, &mut u64)| {
        for chunk in &mut index.chunks {
            if let ChunkPlace::Blob { offset, length, skip, .. } = &mut chunk.place {
                change(offset, length, skip);
            }
        }
    };
    assert_eq!(spoilt(&|index| file(index, &|content| content.size = 1 << 60)), Err(InvalidPacked::Column("sizes")));
    assert_eq!(spoilt(&|index| place(index, &|offset, _, _| *offset += 1 << 40)), Err(InvalidPacked::Chunks));
    assert_eq!(spoilt(&|index| place(index, &|_, length, _| *length = u64::MAX)), Err(InvalidPacked::Chunks));
    assert_eq!(spoilt(&|index| place(index, &|_, _, skip| *skip = 1 << 40)), Err(InvalidPacked::Chunks));
    assert!(spoilt(&|index| index.entries.push(index.entries[0].clone())).is_err(), "a directory, said twice");
    assert!(spoilt(&|index| index.entries.push(index.entries[2].clone())).is_err(), "a link, said twice");
    let empty = |index: &mut LayerIndex| file(index, &|content| content.object = Digest::of(b""));
    assert_eq!(spoilt(&empty), Err(InvalidEntry::EmptyDigest.into()));
    let forged = |index: &mut LayerIndex| file(index, &|content| content.object = Digest::of(b"forged"));
    assert_eq!(spoilt(&forged), Err(InvalidEntry::ChunkDigest.into()));
    let zeros = |index: &mut LayerIndex| index.chunks.iter_mut().for_each(|chunk| chunk.place = ChunkPlace::Zeros);
    assert_eq!(spoilt(&zeros), Err(InvalidEntry::ZerosDigest.into()));
    assert!(spoilt(&|index| index.entries[1].attributes.mode = 0o17777).is_err());
    assert!(spoilt(&|index| index.entries[1].attributes.mtime.nanoseconds = 1_000_000_000).is_err());
    assert!(spoilt(&|index| index.entries[1].attributes.uid = u32::MAX).is_err());
    assert!(spoilt(&|index| index.entries[2].node = Node::Symlink((*b"").into())).is_err());
    assert!(spoilt(&|index| index.entries[2].node = Node::File(*content_of(index))).is_ok(), "chunks may be shared");
}

#[test]
fn markers_are_no_names_and_take_away_no_root() {
    let unpacked = |path: &str, node: Node| {
        let path = LayerPath::from_normal(path.as_bytes()).expect("a path");
        let entries = vec![Entry { path, node, attributes: Attributes::default() }];
        unpack(&pack(&LayerIndex { entries, ..LayerIndex::default() }), blob(b""))
    };
    for name in [".wh.a", "d/.wh.a", ".wh..wh..opq", "d/.wh."] {
        assert_eq!(unpacked(name, Node::Fifo), Err(InvalidPacked::Column("paths")), "{name}");
        assert_eq!(unpacked(name, Node::Whiteout), Err(InvalidPacked::Column("paths")), "{name}");
    }
    assert!(unpacked("d/.wh", Node::Fifo).is_ok());
    assert!(unpacked("", Node::Opaque).is_ok());
    assert_eq!(unpacked("", Node::Whiteout), Err(InvalidEntry::Path(InvalidPath::Whiteout).into()));
}

#[test]
fn honest_holes_empty_files_and_other_names_of_them_pass() {
    let sparse = Tar::new()
        .pax(&[("GNU.sparse.map", b"300000,0"), ("GNU.sparse.size", b"300000")])
        .sized(RawHeader::new("sparse"), b"")
        .finish();
    let index = import(&sparse[..], common::RANDOM, &mut Kept::default()).expect("a layer");
    assert!(index.chunks.iter().all(|chunk| chunk.place == ChunkPlace::Zeros) && !index.chunks.is_empty());
    assert_eq!(unpack(&pack(&index), blob(&sparse)), Ok(index));
    let items = [
        Item::file("zeros", vec![0; 200_000]),
        Item::file("a-zero", vec![0]),
        Item::file("empty", ""),
        Item::hard_link("link", "zeros"),
        Item::file("end-of-zeros", [vec![0; 100_000], b"end".to_vec()].concat()),
    ];
    let found = indexes(&items);
    assert_eq!(found.len(), 4, "none of the formats refuses them");
    for (index, blob) in found {
        assert_eq!(unpack(&pack(&index), blob), Ok(index));
    }
}

fn content_of(index: &LayerIndex) -> &tarpon_layer::FileContent {
    let found = index.entries.iter().find_map(|entry| match &entry.node {
        Node::File(content) => Some(content),
        _ => None,
    });
    found.expect("a file")
}

#[test]
fn checkpoints_come_along_and_are_needed() {
    let text: Vec<u8> = (0..400_000_u32).flat_map(|number| (number.wrapping_mul(number) / 7).to_le_bytes()).collect();
    let gzipped = gzip(&tar(&[Item::file("a", text)], Dialect::Pax));
    let mut index = by_spans(&gzipped, 50_000);
    assert!(!index.checkpoints.is_empty());
    assert_eq!(unpack(&pack(&index), blob(&gzipped)).unwrap(), index);
    let spoilt = |spoil: &dyn Fn(&mut Checkpoint)| {
        let mut bad = index.clone();
        spoil(bad.checkpoints.last_mut().expect("one"));
        unpack(&pack(&bad), blob(&gzipped))
    };
    let refused = Err(InvalidPacked::Column("checkpoints"));
    assert_eq!(spoilt(&|checkpoint| checkpoint.used_bits = 8), refused);
    assert_eq!(spoilt(&|checkpoint| checkpoint.offset = gzipped.len() as u64), refused);
    for window in [&b""[..], b"no zstd", &zstd(&[0; 100]), &zstd(&vec![0; 16 << 20])] {
        assert_eq!(spoilt(&|checkpoint| checkpoint.window = window.into()), refused);
    }
    index.checkpoints.clear();
    assert_eq!(unpack(&pack(&index), blob(&gzipped)), Err(InvalidPacked::Chunks));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn packing_is_reversible(items in random::layer()) {
        for (index, blob) in indexes(&items) {
            prop_assert_eq!(&unpack(&pack(&index), blob).unwrap(), &index);
        }
    }

    #[test]
    fn damage_is_refused_or_gives_a_sound_index(
        items in random::layer(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        for (index, blob) in indexes(&items) {
            let mut packed = pack(&index);
            let at = at.index(packed.len());
            packed[at] = byte;
            if cut {
                packed.truncate(at);
            }
            if let Ok(read) = unpack(&packed, blob) {
                check_index(&read, u64::MAX);
            }
        }
    }
}
