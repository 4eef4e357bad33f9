//! Packed indexes are restored, and foreign input gives a valid index or an error.

#![allow(clippy::cast_possible_truncation, reason = "tests hold small data")]

use proptest::prelude::*;
use tarpon_layer::packed::{InvalidPacked, pack, unpack};
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::{Checkpoint, SpanReader, WINDOW_BYTES};
use tarpon_layer::{
    Attributes, Chunk, ChunkPlace, Codec, Device, Entry, FileContent, InvalidEntry, InvalidPath, LayerIndex, LayerPath,
    Node, Xattr,
};
use tarpon_oci::{Blob, Digest, limits};
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
fn files_of_one_content_share_a_place_only_if_it_is_the_same() {
    let file = |path: &str, first_chunk| Entry {
        path: LayerPath::from_normal(path.as_bytes()).unwrap(),
        node: Node::File(FileContent { size: 4, object: Digest::of(b"same"), first_chunk, chunk_count: 1 }.into()),
        attributes: Attributes::default().into(),
    };
    let chunk = |offset| {
        let place = ChunkPlace::Blob { codec: Codec::Raw, offset, length: 4, skip: 0 };
        Chunk { object_offset: 0, size: 4, digest: Digest::of(b"same"), place }
    };
    let entries = vec![file("a", 0), file("b", 1), file("c", 2)];
    let index = LayerIndex { entries, chunks: vec![chunk(0), chunk(0), chunk(8)], ..LayerIndex::default() };
    let read = unpack(&pack(&index), blob(&[0; 12])).unwrap();
    let first = |number: usize| match &read.entries[number].node {
        Node::File(content) => content.first_chunk,
        other => panic!("{other:?} is no file"),
    };
    assert_eq!([first(0), first(1), first(2)], [0, 0, 1]);
    assert_eq!(read.chunks, [chunk(0), chunk(8)]);
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
    assert!(spoilt(&|index| index.entries[2].node = Node::Symlink(Box::default())).is_err());
    assert!(
        spoilt(&|index| index.entries[2].node = Node::File((*content_of(index)).into())).is_ok(),
        "chunks may be shared"
    );
}

#[test]
fn markers_are_no_names_and_take_away_no_root() {
    let unpacked = |path: &str, node: Node| {
        let path = LayerPath::from_normal(path.as_bytes()).expect("a path");
        let entries = vec![Entry { path, node, attributes: Attributes::default().into() }];
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
        Node::File(content) => Some(&**content),
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

/// An index of one file at `a` with these chunks, in a blob of this size.
fn one_file(blob_bytes: u64, chunks: &[(u64, ChunkPlace)]) -> Result<LayerIndex, InvalidPacked> {
    file_of(chunks.iter().map(|(size, _)| size).sum(), blob_bytes, chunks)
}

/// As [`one_file`], with this size of the file.
fn file_of(size: u64, blob_bytes: u64, chunks: &[(u64, ChunkPlace)]) -> Result<LayerIndex, InvalidPacked> {
    let content = FileContent { size, object: Digest::of(b"a file"), first_chunk: 0, chunk_count: chunks.len() as u32 };
    let mut offset = 0;
    let chunk = |&(size, place)| {
        let digest = if chunks.len() == 1 { content.object } else { Digest::of(b"a chunk") };
        offset += size;
        Chunk { object_offset: offset - size, size, digest, place }
    };
    let chunks = chunks.iter().map(chunk).collect();
    let entries = vec![entry("a", Node::File(content.into()))];
    let index = LayerIndex { entries, chunks, ..LayerIndex::default() };
    unpack(&pack(&index), Blob { digest: Digest::of(b"a layer"), size: blob_bytes })
}

fn entry(path: &str, node: Node) -> Entry {
    Entry {
        path: LayerPath::from_normal(path.as_bytes()).expect("a path"),
        node,
        attributes: Attributes::default().into(),
    }
}

fn placed(codec: Codec, offset: u64, length: u64, skip: u64) -> ChunkPlace {
    ChunkPlace::Blob { codec, offset, length, skip }
}

#[test]
fn chunks_may_be_as_large_as_their_limits_and_reach_the_end_of_the_layer() {
    let (chunk, encoded, member) = (limits::CHUNK_BYTES, limits::CHUNK_ENCODED_BYTES, limits::MEMBER_BYTES);
    let refused = Err(InvalidPacked::Chunks);
    let raw = |blob, size, length, skip| one_file(blob, &[(size, placed(Codec::Raw, 5, length, skip))]);
    assert!(raw(chunk + 5, chunk, chunk, 0).is_ok());
    assert_eq!(raw(chunk + 4, chunk, chunk, 0), refused, "it ends behind its layer");
    assert_eq!(raw(chunk + 6, chunk, chunk, 1), refused, "it ends behind its place");
    assert_eq!(raw(chunk + 6, chunk + 1, chunk + 1, 0), refused);
    for codec in [Codec::Gzip, Codec::Zstd] {
        let packed = |blob, size, length, skip| one_file(blob, &[(size, placed(codec, 5, length, skip))]);
        assert!(packed(encoded + 5, chunk, encoded, member - chunk).is_ok());
        assert_eq!(packed(encoded + 4, chunk, encoded, 0), refused);
        assert_eq!(packed(encoded + 6, chunk, encoded + 1, 0), refused);
        assert_eq!(packed(encoded + 5, chunk + 1, encoded, 0), refused);
        assert_eq!(packed(encoded + 5, chunk, encoded, member - chunk + 1), refused);
    }
    let checked = placed(Codec::CheckedSpan, 0, 10, 0);
    assert_eq!(one_file(10, &[(5, checked)]), refused, "its name cannot be stated");
}

#[test]
fn chunks_are_not_empty_and_add_up_to_their_file() {
    let place = placed(Codec::Gzip, 0, 10, 0);
    let two = [(5, place), (5, placed(Codec::Gzip, 0, 10, 5))];
    assert!(file_of(10, 10, &two).is_ok());
    for size in [9, 11] {
        assert_eq!(file_of(size, 10, &two), Err(InvalidPacked::Chunks), "{size}");
    }
    for empty in [place, ChunkPlace::Zeros] {
        assert_eq!(one_file(10, &[(5, place), (0, empty)]), Err(InvalidPacked::Chunks), "{empty:?}");
    }
}

#[test]
fn a_streamed_file_may_be_as_large_as_a_file_and_has_its_own_place() {
    let file = limits::FILE_BYTES;
    let stream = |size, length, skip| one_file(1, &[(size, placed(Codec::Stream, 0, length, skip))]);
    assert!(stream(file, file, 0).is_ok());
    assert_eq!(stream(file + 1, file + 1, 0), Err(InvalidPacked::Column("sizes")));
    assert_eq!(stream(10, 11, 0), Err(InvalidPacked::Chunks));
    assert_eq!(stream(10, 10, 1), Err(InvalidPacked::Chunks));
    let end = (1, placed(Codec::Raw, 0, 1, 0));
    assert!(one_file(1, &[(limits::SPARSE_HOLE_BYTES, ChunkPlace::Zeros), end]).is_ok());
    let too_many = one_file(1, &[(limits::SPARSE_HOLE_BYTES + 1, ChunkPlace::Zeros), end]);
    assert_eq!(too_many, Err(InvalidPacked::Chunks));
}

#[test]
fn paths_devices_and_modes_may_be_as_large_as_their_limits() {
    let unpacked = |entry: Entry| {
        let index = LayerIndex { entries: vec![entry], ..LayerIndex::default() };
        unpack(&pack(&index), blob(b""))
    };
    let path =
        |last: usize| format!("{}{}/{}", format!("{}/", "a".repeat(255)).repeat(15), "b".repeat(100), "c".repeat(last));
    assert_eq!(path(155).len(), limits::PATH_BYTES);
    assert!(unpacked(entry(&path(155), Node::Fifo)).is_ok());
    assert!(LayerPath::from_normal(path(156).as_bytes()).is_none());
    let deep = |depth: usize| LayerPath::from_normal(vec!["d"; depth].join("/").as_bytes());
    assert!(deep(limits::PATH_DEPTH).is_some() && deep(limits::PATH_DEPTH + 1).is_none());
    let (major, minor) = (limits::DEVICE_MAJOR as u32, limits::DEVICE_MINOR as u32);
    let device = |major, minor| unpacked(entry("d", Node::CharDevice(Device { major, minor })));
    assert!(device(major, minor).is_ok());
    for wrong in [device(major + 1, 0), device(0, minor + 1)] {
        assert_eq!(wrong, Err(InvalidPacked::Column("devices")));
    }
    let mode = |mode| {
        unpacked(Entry { attributes: Attributes { mode, ..Attributes::default() }.into(), ..entry("f", Node::Fifo) })
    };
    assert!(mode(0o7777).is_ok());
    assert_eq!(mode(0o10000), Err(InvalidPacked::Column("attributes")));
}

#[test]
fn xattrs_may_be_as_large_as_their_limits() {
    let with = |name: usize, value: usize, count: usize| {
        let xattr = |number| {
            let name = format!("user.{number:0width$}", width = name - "user.".len());
            Xattr { name: name.into_bytes().into(), value: vec![7; value].into() }
        };
        let attributes = Attributes { xattrs: (0..count).map(xattr).collect(), ..Attributes::default() };
        let entries = vec![Entry { attributes: attributes.into(), ..entry("f", Node::Fifo) }];
        unpack(&pack(&LayerIndex { entries, ..LayerIndex::default() }), blob(b""))
    };
    let (name, value) = (limits::XATTR_NAME_BYTES, limits::XATTR_VALUE_BYTES);
    assert!(with(name, value, 1).is_ok());
    assert!(with(10, 1, limits::XATTRS).is_ok());
    for (name, value, count) in [(name + 1, 1, 1), (name, value + 1, 1), (10, 1, limits::XATTRS + 1)] {
        assert!(matches!(with(name, value, count), Err(InvalidPacked::Xattr(_))), "{name} {value} {count}");
    }
}

#[test]
fn checkpoints_ascend_without_two_at_one_place() {
    let window = ::zstd::bulk::compress(&[0; WINDOW_BYTES], 1).expect("memory takes all bytes");
    let at = |offsets: &[u64]| {
        let checkpoint = |&offset| Checkpoint { offset, used_bits: 7, window: window.clone().into() };
        let checkpoints = offsets.iter().map(checkpoint).collect();
        unpack(&pack(&LayerIndex { checkpoints, ..LayerIndex::default() }), blob(&[0; 10]))
    };
    assert!(at(&[3, 9]).is_ok());
    for wrong in [&[3, 3][..], &[9, 3], &[3, 10]] {
        assert_eq!(at(wrong), Err(InvalidPacked::Column("checkpoints")), "{wrong:?}");
    }
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
