//! Ztocs: a layer read by its ztoc shows the same as when it is streamed, and an invalid ztoc is an error.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::{Read, Write};

use flate2::write::GzEncoder;
use proptest::prelude::*;
use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::{Compression, decode_checked_span, decode_span};
use tarpon_layer::packed::{pack, unpack};
use tarpon_layer::soci::{Options, ZtocError, index, object_name};
use tarpon_layer::{ChunkPlace, Codec, LayerIndex, Node};
use tarpon_oci::{Blob, Digest, Verified, limits};
use tarpon_testkit::layers::{Dialect, Item, Ztoc, check_index, gzip_members, random, tar};

mod common;

use common::{comparable, import_blob, stream};

type Spoil = fn(&mut Ztoc);

fn blob_of(bytes: &[u8]) -> Blob {
    Blob { digest: Digest::of(bytes), size: bytes.len() as u64 }
}

fn parsed(ztoc: &[u8], blob: &[u8]) -> Result<LayerIndex, ZtocError> {
    let index = index(&Verified::seal(ztoc), blob_of(blob), Options::default())?;
    check_index(&index, blob.len() as u64);
    Ok(index)
}

fn gzip_at(level: u32, bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The files of the layer, each read from its spans alone, whose digests are compared.
fn contents(index: &LayerIndex, blob: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut builder = ChunkTableBuilder::new();
    let layer = builder.add_layer(blob_of(blob), Compression::Gzip).unwrap();
    builder.add_index(layer, index).unwrap();
    let table = ChunkTable::open(builder.finish().unwrap()).unwrap();
    let mut files = BTreeMap::new();
    for entry in &index.entries {
        let Node::File(file) = &entry.node else { continue };
        let mut content = Vec::new();
        if file.size > 0 {
            for number in table.find(&file.object).unwrap().chunks {
                let chunk = table.chunk(number).unwrap().chunk;
                assert_eq!(chunk.content_digest(), None);
                let ChunkPlace::Blob { codec: Codec::CheckedSpan, offset, length, skip } = chunk.place else {
                    panic!()
                };
                let place = |number: u64| usize::try_from(number).unwrap();
                let encoded = &blob[place(offset)..place(offset + length)];
                assert_eq!(Digest::of(encoded), chunk.digest, "{}", entry.path);
                let mut out = Vec::new();
                let checkpoint = table.checkpoint(layer, offset).unwrap();
                decode_checked_span(&checkpoint, encoded, skip, chunk.size, &mut out).unwrap();
                let mut by_other = Vec::new();
                decode_span(&checkpoint, encoded, skip, chunk.size, &mut by_other).unwrap();
                assert!(out == by_other, "both decoders");
                content.extend(out);
            }
        }
        files.insert(entry.path.as_bytes().to_vec(), content);
    }
    files
}

/// Compares the ztoc's entries with those of the walk over the tar. Returns the number of spans.
fn compare_with_stream(ztoc: &[u8], blob: &[u8]) -> usize {
    let by_ztoc = parsed(ztoc, blob).unwrap();
    let (streamed, kept) = import_blob(blob, stream()).unwrap();
    let files = contents(&by_ztoc, blob);
    let without_names = |index: &LayerIndex| {
        let mut entries = comparable(index, false);
        for entry in &mut entries {
            if let Node::File(file) = &mut entry.node {
                file.object = Digest::of(b"");
            }
        }
        entries
    };
    assert_eq!(without_names(&by_ztoc), without_names(&streamed));
    for entry in &streamed.entries {
        if let Node::File(file) = &entry.node
            && file.size > 0
        {
            assert_eq!(files[entry.path.as_bytes()], kept.objects[&file.object], "{}", entry.path);
        }
    }
    by_ztoc.checkpoints.len()
}

#[test]
fn the_ztoc_of_awss_own_library_shows_what_streaming_shows() {
    let blob = include_bytes!("../../../fixtures/soci/layer.tar.gz");
    let ztoc = zstd::decode_all(&include_bytes!("../../../fixtures/soci/layer.ztoc.zst")[..]).unwrap();
    assert_eq!(compare_with_stream(&ztoc, blob), 7);
    // Our writer of ztocs gives the same result as theirs.
    let ours = Ztoc::of(blob, 40_000);
    let (by_theirs, by_ours) = (parsed(&ztoc, blob).unwrap(), parsed(&ours.bytes(), blob).unwrap());
    assert_eq!(by_theirs.checkpoints, by_ours.checkpoints);
    assert_eq!(by_theirs.chunks, by_ours.chunks);
}

fn items() -> Vec<Item> {
    let text: Vec<u8> =
        (0..60_000_u32).flat_map(|n| format!("{} ", n.wrapping_mul(2_654_435_761) >> 19).into_bytes()).collect();
    vec![
        Item::directory("d").xattr("user.a", "1"),
        Item::file("d/text", &text).owner(3_000_000_000, 1).mtime(-5, 250_000_000).xattr("user.b", b"\xff\0"),
        Item::file("empty", ""),
        Item::file("small", "small"),
        Item::hard_link("h", "d/text"),
        Item::symlink("s", "d/text"),
        Item::char_device("c", 1, 3),
        Item::whiteout("gone"),
        Item::opaque("d"),
        Item::file("text", &text[1..]),
    ]
}

fn layer() -> Vec<u8> {
    gzip_at(6, &tar(&items(), Dialect::Pax))
}

#[test]
fn a_layer_in_one_member_or_many_shows_what_streaming_shows() {
    let tar = tar(&items(), Dialect::Pax);
    for level in [1, 6, 9] {
        let blob = gzip_at(level, &tar);
        compare_with_stream(&Ztoc::of(&blob, 20_000).bytes(), &blob);
    }
    let blob = gzip_members(&tar, 50_000);
    assert!(compare_with_stream(&Ztoc::of(&blob, 20_000).bytes(), &blob) > 1);
}

#[test]
fn a_ztoc_of_the_first_version_implies_its_first_checkpoint() {
    let blob = layer();
    let mut ztoc = Ztoc::of(&blob, 100_000);
    assert!(ztoc.starts.len() > 2);
    let whole = parsed(&ztoc.bytes(), &blob).unwrap();
    ztoc.starts.remove(0);
    let implied = parsed(&ztoc.bytes(), &blob).unwrap();
    assert_eq!((implied.checkpoints.len(), &implied.checkpoints), (ztoc.starts.len() + 1, &whole.checkpoints));
    compare_with_stream(&ztoc.bytes(), &blob);
    ztoc.starts.remove(0);
    assert!(matches!(parsed(&ztoc.bytes(), &blob), Err(ZtocError::Malformed(_))));
}

#[test]
fn xattrs_are_those_with_the_prefix_and_none_if_the_index_disables_them() {
    let (blob, xattrs) =
        (layer(), |index: &LayerIndex| index.entries.iter().map(|entry| entry.attributes.xattrs.len()).sum::<usize>());
    let mut ztoc = Ztoc::of(&blob, 100_000);
    ztoc.entries[3].records =
        [("SCHILY.xattr.trusted.overlay.opaque", "y"), ("user.note", "no prefix"), ("SCHILY.xattr.user.c", "")]
            .map(|(key, value)| (key.into(), value.into()))
            .into();
    let bytes = Verified::seal(ztoc.bytes());
    let shown = index(&bytes, blob_of(&blob), Options::default()).unwrap();
    assert_eq!((xattrs(&shown), shown.dropped_xattrs), (3, 1));
    let hidden = index(&bytes, blob_of(&blob), Options { without_xattrs: true }).unwrap();
    assert_eq!((xattrs(&hidden), hidden.dropped_xattrs), (0, 0));
}

#[test]
fn a_name_is_of_the_ztoc_and_the_place_alone() {
    let blob = layer();
    let ztoc = Ztoc::of(&blob, 100_000);
    let names = |ztoc: &Ztoc| -> Vec<Digest> {
        let index = parsed(&ztoc.bytes(), &blob).unwrap();
        let name = |entry: &tarpon_layer::Entry| match &entry.node {
            Node::File(file) if file.size > 0 => Some(file.object),
            _ => None,
        };
        index.entries.iter().filter_map(name).collect()
    };
    let before = names(&ztoc);
    assert_eq!(before, names(&ztoc));
    let entry = &ztoc.entries[1];
    let place = (entry.offset.cast_unsigned(), entry.size.cast_unsigned());
    assert_eq!(before[0], object_name(&Digest::of(&ztoc.bytes()), place.0, place.1));
    let mut other = ztoc.clone();
    other.starts[1].window[7] ^= 1;
    let after = names(&other);
    assert!(before.iter().all(|name| !after.contains(name)), "another window may mean other bytes");
}

/// Names that are no digests are computed from a ztoc. A packed index could state any.
#[test]
fn nothing_but_a_ztoc_can_state_such_names() {
    let blob = layer();
    let index = parsed(&Ztoc::of(&blob, 100_000).bytes(), &blob).unwrap();
    assert!(unpack(&pack(&index), blob_of(&blob)).is_err());
}

/// The number of the last entry, a file.
const LAST: usize = 9;

#[test]
fn entries_and_spans_may_end_with_the_tar_and_only_files_have_a_size() {
    let blob = layer();
    let sound = Ztoc::of(&blob, 100_000);
    assert_eq!((sound.entries.len() - 1, sound.entries[LAST].kind), (LAST, "reg"));
    let changes: [Spoil; 3] = [
        |ztoc| ztoc.uncompressed = ztoc.entries[LAST].offset + ztoc.entries[LAST].size,
        |ztoc| {
            let last = ztoc.starts.len() - 1;
            ztoc.starts[last].decoded = ztoc.uncompressed.cast_unsigned();
        },
        |ztoc| {
            assert_eq!(ztoc.entries[4].kind, "hardlink");
            ztoc.entries[4].size = ztoc.uncompressed;
        },
    ];
    for change in changes {
        let mut ztoc = sound.clone();
        change(&mut ztoc);
        parsed(&ztoc.bytes(), &blob).unwrap();
    }
}

#[test]
fn a_ztoc_over_the_limit_is_refused_before_it_is_read() {
    let large = vec![0; usize::try_from(limits::ZTOC_BYTES).unwrap() + 1];
    assert_eq!(parsed(&large, &layer()).unwrap_err(), ZtocError::TooLarge(limits::ZTOC_BYTES + 1));
}

#[test]
fn contradictions_in_itself_or_with_the_layer_are_refused() {
    let blob = layer();
    let sound = Ztoc::of(&blob, 100_000);
    assert!(sound.starts.len() > 3 && parsed(&sound.bytes(), &blob).is_ok());
    let spoils: [(&str, Spoil); 34] = [
        ("another version", |ztoc| ztoc.version = "1.0"),
        ("another blob", |ztoc| ztoc.compressed += 1),
        ("a negative size", |ztoc| ztoc.compressed = -1),
        ("a tar that ends in a file", |ztoc| ztoc.uncompressed = ztoc.entries[1].offset + 100),
        ("a tar of less than nothing", |ztoc| ztoc.uncompressed = -1),
        ("no gzip", |ztoc| ztoc.algorithm = 2),
        ("too few digests", |ztoc| drop(ztoc.digests.pop())),
        ("too many spans", |ztoc| ztoc.last_span += 1),
        ("fewer than no spans", |ztoc| ztoc.last_span = -1),
        ("too many checkpoints", |ztoc| ztoc.count += 2),
        ("no checkpoints", |ztoc| (ztoc.count, ztoc.starts, ztoc.last_span) = (0, Vec::new(), -1)),
        ("a digest that is none", |ztoc| ztoc.digests[1] = "sha256:12".to_owned()),
        ("spans in another order", |ztoc| ztoc.starts.swap(1, 2)),
        ("two spans at one place", |ztoc| ztoc.starts[2] = ztoc.starts[1].clone()),
        ("a span behind the blob", |ztoc| ztoc.starts[3].offset = 1 << 40),
        ("a span before the blob", |ztoc| ztoc.starts[0].offset = u64::MAX),
        ("a first span that begins late", |ztoc| ztoc.starts[0].decoded = 1),
        ("decoded bytes that go back", |ztoc| ztoc.starts[2].decoded = ztoc.starts[1].decoded - 1),
        ("a span behind the tar", |ztoc| {
            let last = ztoc.starts.len() - 1;
            ztoc.starts[last].decoded = u64::try_from(ztoc.uncompressed).expect("a size") + 1;
        }),
        ("a last span of no bytes", |ztoc| {
            let last = ztoc.starts.len() - 1;
            (ztoc.starts[last].offset, ztoc.starts[last].bits) = (ztoc.compressed.cast_unsigned(), 0);
        }),
        ("a file that ends behind the tar", |ztoc| {
            ztoc.entries[LAST].size = ztoc.uncompressed - ztoc.entries[LAST].offset + 1
        }),
        ("a file that ends in the header of the next", |ztoc| {
            ztoc.entries[1].size = ztoc.entries[2].offset - ztoc.entries[1].offset - 511
        }),
        ("a user that means none", |ztoc| ztoc.entries[3].uid = u32::MAX),
        ("a group that means none", |ztoc| ztoc.entries[3].gid = u32::MAX),
        ("a device of a driver that cannot be", |ztoc| ztoc.entries[6].device = (1 << 12, 0)),
        ("a device of a driver that has not so many", |ztoc| ztoc.entries[6].device = (0, 1 << 20)),
        ("more bits than a byte has", |ztoc| ztoc.starts[1].bits = 8),
        ("an entry over another", |ztoc| ztoc.entries[3].offset -= 512),
        ("an entry between blocks", |ztoc| ztoc.entries[3].offset += 1),
        ("an entry nowhere", |ztoc| ztoc.entries[3].offset = -512),
        ("a size below nothing", |ztoc| ztoc.entries[3].size = -1),
        ("an unknown type", |ztoc| ztoc.entries[3].kind = "socket"),
        ("a time that is none", |ztoc| ztoc.entries[3].mtime = "yesterday".to_owned()),
        ("a sparse file", |ztoc| ztoc.entries[3].records = vec![(b"GNU.sparse.major".to_vec(), b"1".to_vec())]),
    ];
    for (what, spoil) in spoils {
        let mut ztoc = sound.clone();
        spoil(&mut ztoc);
        assert!(parsed(&ztoc.bytes(), &blob).is_err(), "{what}");
    }
}

#[test]
fn a_span_that_cannot_be_decoded_in_one_go_is_refused() {
    let blob = gzip_at(6, &tar(&[Item::file("zeros", vec![0; 70 << 20])], Dialect::Pax));
    let error = parsed(&Ztoc::of(&blob, u64::MAX).bytes(), &blob).unwrap_err();
    assert!(error.to_string().contains("too large to be fetched and decoded"), "{error}");
    let index = parsed(&Ztoc::of(&blob, 20 << 20).bytes(), &blob).unwrap();
    assert!(index.chunks.iter().all(|chunk| chunk.size <= 16 << 20));
}

#[test]
fn a_span_may_be_as_large_as_a_chunk_and_reach_as_far_as_a_member() {
    let ztoc = Ztoc::of(&layer(), u64::MAX);
    let of = |change: &dyn Fn(&mut Ztoc)| {
        let mut ztoc = ztoc.clone();
        change(&mut ztoc);
        let blob = Blob { digest: Digest::of(b"a layer"), size: ztoc.compressed.cast_unsigned() };
        index(&Verified::seal(ztoc.bytes()), blob, Options::default()).map_err(|error| error.to_string())
    };
    let encoded = |bytes: u64| of(&|ztoc| ztoc.compressed = (ztoc.starts[0].offset + bytes).cast_signed());
    let decoded = |bytes: u64| {
        of(&|ztoc| {
            ztoc.uncompressed = bytes.cast_signed();
            ztoc.entries[LAST].size = ztoc.uncompressed - ztoc.entries[LAST].offset;
        })
    };
    encoded(limits::CHUNK_ENCODED_BYTES).unwrap();
    decoded(limits::MEMBER_BYTES).unwrap();
    for too_large in [encoded(limits::CHUNK_ENCODED_BYTES + 1), decoded(limits::MEMBER_BYTES + 1)] {
        assert!(too_large.unwrap_err().contains("too large to be fetched and decoded"));
    }
}

#[test]
fn owners_and_devices_may_have_the_largest_numbers() {
    let blob = layer();
    let mut ztoc = Ztoc::of(&blob, 100_000);
    let id = u32::try_from(limits::ID).unwrap();
    (ztoc.entries[3].uid, ztoc.entries[3].gid, ztoc.entries[6].device) = (id, id, ((1 << 12) - 1, (1 << 20) - 1));
    parsed(&ztoc.bytes(), &blob).unwrap();
}

#[test]
fn a_cut_or_damaged_ztoc_is_an_error_or_another_sound_index() {
    let blob = layer();
    let bytes = Ztoc::of(&blob, 400_000).bytes();
    let step = bytes.len() / 2000 + 1;
    for place in (0..2000).chain((2000..bytes.len()).step_by(step)) {
        assert!(parsed(&bytes[..place], &blob).is_err(), "cut at {place}");
        for damage in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[place] ^= damage;
            let _ = parsed(&damaged, &blob);
        }
    }
}

/// Records that are all the same one would describe far more than the buffer contains.
#[test]
fn a_buffer_that_yields_more_than_it_has_is_refused() {
    const RECORDS: u32 = 1000;
    let blob = layer();
    let mut ztoc = Ztoc::of(&blob, u64::MAX);
    ztoc.entries[0].records = vec![(b"comment".to_vec(), vec![b'c'; 3000])];
    ztoc.entries[0].records.resize(RECORDS as usize, Default::default());
    let sound = ztoc.bytes();
    parsed(&sound, &blob).unwrap();
    let mut bytes = sound;
    let list = bytes.windows(4).position(|four| four == RECORDS.to_le_bytes()).unwrap();
    let first = u32::from_le_bytes(*bytes[list + 4..].first_chunk().unwrap());
    for (number, offset) in (0..RECORDS).zip(bytes[list + 4..].as_chunks_mut::<4>().0) {
        *offset = (first - 4 * number).to_le_bytes();
    }
    assert_eq!(parsed(&bytes, &blob), Err(ZtocError::Malformed("its parts overlap")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Any layer, whatever its compression and spans, shows by its ztoc the same as when it is streamed.
    #[test]
    fn any_layer_shows_by_its_ztoc_what_streaming_shows(items in random::layer(), level in 1_u32..10, span in 64_u64..100_000) {
        let blob = gzip_at(level, &tar(&items, Dialect::Pax));
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&blob[..]).read_to_end(&mut plain).unwrap();
        prop_assume!(plain.len() > 1024);
        compare_with_stream(&Ztoc::of(&blob, span).bytes(), &blob);
    }
}
