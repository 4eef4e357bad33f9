//! The output of the writers equals the tar.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]
#![expect(clippy::cast_possible_truncation, reason = "tests hold small data")]

mod common;

use std::io::{Cursor, Read};

use common::{RANDOM, chunks, comparable, import_blob, import_tar, index_by_toc, open_toc, read_by_chunks, toc_json};
use proptest::prelude::*;
use serde_json::Value;
use tarpon_layer::decode::LayerReader;
use tarpon_layer::plain::Options;
use tarpon_layer::toc::{Claim, TocPlace};
use tarpon_layer::write::{
    EstargzOptions, Unrepresentable, WriteError, Written, ZstdChunkedOptions, estargz, estargz_prioritised,
    zstd_chunked,
};
use tarpon_layer::{Allowance, Chunk, ChunkPlace, Entry, LayerIndex, LayerPath, Node};
use tarpon_oci::{Blob, Digest, MediaType};
use tarpon_testkit::layers::{Dialect, Item, Layer, RawHeader, Tar, hostile_tars, random, tar};

const CLAIMED: Options = Options { hides_toc_files: true, ..RANDOM };

/// Bytes without pattern.
fn noise(count: u32) -> Vec<u8> {
    let mut state = 2_463_534_242_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    };
    (0..count).flat_map(|_| next()).collect()
}

fn sample() -> Vec<Item> {
    let holes = [noise(30_000), vec![0; 5000], noise(20), vec![0; 1023], noise(5), vec![0; 1 << 20]].concat();
    vec![
        Item::directory("./"),
        Item::directory("etc").mtime(-5, 250_000_000).xattr("security.selinux", "label"),
        Item::file("etc/small", b"small\n").mode(0o4755).owner(70_000, 4_294_967_294),
        Item::file("etc/empty", b"").mtime(0, 0),
        Item::file("./etc/noise", noise(400_000)),
        Item::file("etc/holes", holes),
        Item::file("etc/zeros", vec![0; 120_000]),
        Item::file("etc/block", vec![7; 512]),
        Item::file(format!("etc/{}/long", "n".repeat(150)), b"x"),
        Item::hard_link("etc/again", "etc/noise"),
        Item::hard_link("etc/thrice", "./etc/again"),
        Item::symlink("etc/link", "/etc/small"),
        Item::symlink("etc/long", "t".repeat(200)),
        Item::char_device("etc/null", 1, 3),
        Item::block_device("etc/loop", 7, 0),
        Item::fifo("etc/fifo"),
        Item::whiteout("etc/gone"),
        Item::opaque("var"),
        Item::file("var/attr", b"x").xattr("user.note", b"\0\xff").xattr("trusted.overlay.opaque", b"y"),
        Item::file("\u{e9}\n\"\u{1f980}", b"name"),
    ]
}

fn small_chunks() -> EstargzOptions {
    EstargzOptions { chunk_bytes: 60_000, threads: 2, ..EstargzOptions::default() }
}

/// Checks the description of the blob in the result.
fn layer(written: &Written, blob: Vec<u8>) -> Layer {
    assert_eq!(written.blob, Blob { digest: Digest::of(&blob), size: blob.len() as u64 });
    let decoded = decoded(&blob);
    assert_eq!(written.diff_id, Digest::of(&decoded));
    assert_eq!(written.uncompressed_size, decoded.len() as u64);
    let annotations = written.annotations.clone();
    Layer { compression: written.compression, annotations, blob, diff_id: written.diff_id }
}

fn decoded(blob: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    LayerReader::sniffed(blob).unwrap().read_to_end(&mut decoded).unwrap();
    decoded
}

fn as_estargz(tar: &[u8], options: &EstargzOptions) -> Result<Layer, WriteError> {
    let mut blob = Vec::new();
    let written = estargz(tar, &mut blob, options, &Allowance::unbounded())?;
    Ok(layer(&written, blob))
}

fn as_zstd_chunked(tar: &[u8]) -> Result<Layer, WriteError> {
    let mut blob = Vec::new();
    let written = zstd_chunked(
        tar,
        &mut blob,
        &ZstdChunkedOptions { threads: 2, ..Default::default() },
        &Allowance::unbounded(),
    )?;
    Ok(layer(&written, blob))
}

/// Checks that the layer shows the same as the tar, and every file can be read chunk by chunk.
fn check_shows(layer: &Layer, tar: &[u8]) -> LayerIndex {
    let (plain, kept) = import_tar(tar, CLAIMED).unwrap();
    let index = index_by_toc(layer).unwrap();
    assert_eq!(comparable(&index, false), comparable(&plain, false));
    let (streamed, objects) = import_blob(&layer.blob, CLAIMED).unwrap();
    assert_eq!(comparable(&streamed, false), comparable(&plain, false));
    assert_eq!(objects.objects, kept.objects);
    for entry in &index.entries {
        if let Node::File(content) = &entry.node {
            let bytes = read_by_chunks(&index, entry, &layer.blob);
            assert_eq!(Digest::of(&bytes), content.object, "{}", entry.path);
        }
    }
    index
}

fn toc(layer: &Layer) -> Value {
    serde_json::from_slice(&toc_json(layer).unwrap()).unwrap()
}

fn place(chunk: &Chunk) -> Option<u64> {
    match chunk.place {
        ChunkPlace::Blob { offset, .. } => Some(offset),
        ChunkPlace::Zeros => None,
    }
}

fn names(toc: &Value) -> Vec<&str> {
    toc["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect()
}

#[test]
fn estargz_shows_the_tar_and_holds_it() {
    for dialect in [Dialect::Pax, Dialect::Gnu] {
        let tar = tar(&sample(), dialect);
        for options in [EstargzOptions::default(), small_chunks()] {
            let layer = as_estargz(&tar, &options).unwrap();
            let index = check_shows(&layer, &tar);
            assert!(index.chunks.iter().all(|chunk| chunk.size <= options.chunk_bytes));
            // The landmark takes two blocks. The TOC replaces the tar's trailer.
            let decoded = decoded(&layer.blob);
            assert!(decoded[1024..].starts_with(&tar[..tar.len() - 1024]));
            assert_eq!(names(&toc(&layer))[0], ".no.prefetch.landmark");
            assert_eq!(layer.annotations["io.containers.estargz.uncompressed-size"], decoded.len().to_string());
        }
    }
}

#[test]
fn zstd_chunked_shows_the_tar_and_is_it() {
    for dialect in [Dialect::Pax, Dialect::Gnu] {
        let tar = tar(&sample(), dialect);
        let layer = as_zstd_chunked(&tar).unwrap();
        assert_eq!(layer.diff_id, Digest::of(&tar));
        let index = check_shows(&layer, &tar);
        let holes: Vec<u64> =
            index.chunks.iter().filter(|chunk| chunk.place == ChunkPlace::Zeros).map(|chunk| chunk.size).collect();
        assert_eq!(holes, [5000, 1 << 20, 120_000]);
        assert!(index.chunks.len() > 20, "large files are cut");
    }
}

#[test]
fn an_external_toc_leaves_the_tar_as_it_is() {
    let tar = [tar(&sample(), Dialect::Pax), vec![0; 9000]].concat();
    let mut blob = Vec::new();
    let written =
        estargz(&tar[..], &mut blob, &EstargzOptions { keep_diff_id: true, ..small_chunks() }, &Allowance::unbounded())
            .unwrap();
    let layer = layer(&written, blob);
    assert_eq!(decoded(&layer.blob), tar);
    let Ok(Claim::Toc(claim)) =
        Claim::of(&MediaType::Layer(layer.compression), &layer.annotations, layer.blob.len() as u64)
    else {
        panic!("no claim")
    };
    let place = claim.locate(&layer.blob[claim.first_range().start as usize..]).unwrap();
    assert_eq!(place, TocPlace::External { data_end: layer.blob.len() as u64 - 46 });
    let external = written.external_toc.unwrap();
    assert_eq!(external.diff_id, Digest::of(&decoded(&external.bytes)));
    assert_eq!(external.annotations["containerd.io/snapshot/stargz/layer.digest"], written.blob.digest.to_string());
    let index = claim.open(&place, &external.bytes, &Allowance::default()).unwrap().index().unwrap();
    let (plain, _) = import_tar(&tar, RANDOM).unwrap();
    assert_eq!(comparable(&index, false), comparable(&plain, false));
}

#[test]
fn the_number_of_threads_does_not_show() {
    let tar = tar(&sample(), Dialect::Pax);
    let with = |threads| {
        let (mut gzip, mut zstd) = (Vec::new(), Vec::new());
        let options = EstargzOptions { threads, ..small_chunks() };
        let written = [
            estargz(&tar[..], &mut gzip, &options, &Allowance::unbounded()).unwrap(),
            zstd_chunked(
                &tar[..],
                &mut zstd,
                &ZstdChunkedOptions { threads, ..Default::default() },
                &Allowance::unbounded(),
            )
            .unwrap(),
        ];
        (written, gzip, zstd)
    };
    let one = with(1);
    assert!(with(3) == one && with(0) == one && with(3) == one);
}

#[test]
fn a_layer_that_is_estargz_already_is_rewritten() {
    let tar = tar(&sample(), Dialect::Pax);
    let once = as_estargz(&tar, &small_chunks()).unwrap();
    let inside = decoded(&once.blob);
    assert_eq!(as_estargz(&inside, &small_chunks()).unwrap(), once);
    check_shows(&as_zstd_chunked(&inside).unwrap(), &inside);
    let keep = EstargzOptions { keep_diff_id: true, ..EstargzOptions::default() };
    assert!(matches!(as_estargz(&inside, &keep), Err(WriteError::HoldsToc)));
}

#[test]
fn prioritised_entries_come_first_with_what_they_need() {
    let items = [
        Item::directory("usr"),
        Item::directory("usr/bin"),
        Item::file("usr/bin/a", noise(10)),
        Item::directory("etc").mode(0o700),
        Item::file("etc/first", noise(3000)),
        Item::hard_link("second", "usr/bin/a"),
        Item::symlink("lib", "usr/bin"),
        Item::file("twice", b"old"),
        Item::file("twice", b"new"),
        Item::file("last", b"last"),
    ];
    let tar = tar(&items, Dialect::Pax);
    let paths = ["second", "missing", "etc/first", "twice", "lib", "etc/first", "lib/a"];
    let paths = paths.map(|path| LayerPath::from_tar_name(path.as_bytes()).unwrap());
    let mut blob = Vec::new();
    let written =
        estargz_prioritised(Cursor::new(&tar), &paths, &mut blob, &small_chunks(), &Allowance::unbounded()).unwrap();
    let layer = layer(&written, blob);
    assert_eq!(
        names(&toc(&layer)),
        ["usr/", "usr/bin/", "usr/bin/a", "second", "etc/", "etc/first", "lib", ".prefetch.landmark", "twice", "last"]
    );
    assert_eq!(written.not_prioritised, [1, 3, 6].map(|number: usize| paths[number].clone()));
    let index = check_shows(&layer, &tar);
    assert!(index.entries.iter().any(|entry| entry.path.as_bytes() == b"last"));
    let (_, prefetch) = open_toc(&layer).unwrap().index_and_prefetch().unwrap();
    let before = |entry: &&Entry| chunks(&index, entry).iter().any(|chunk| place(chunk) < prefetch);
    let before: Vec<&[u8]> = index.entries.iter().filter(before).map(|entry| entry.path.as_bytes()).collect();
    assert_eq!(before, [&b"usr/bin/a"[..], b"etc/first"]);
    let keep = EstargzOptions { keep_diff_id: true, ..small_chunks() };
    let refused = estargz_prioritised(Cursor::new(&tar), &paths, Vec::new(), &keep, &Allowance::unbounded());
    assert!(matches!(refused, Err(WriteError::Options(_))));
}

#[test]
fn hard_links_in_a_circle_are_not_moved() {
    let items = [Item::hard_link("a", "b"), Item::hard_link("b", "a")];
    let paths = ["a", "b"].map(|path| LayerPath::from_tar_name(path.as_bytes()).unwrap());
    let tar = tar(&items, Dialect::Pax);
    let result = estargz_prioritised(Cursor::new(&tar), &paths, Vec::new(), &small_chunks(), &Allowance::unbounded());
    assert!(result.is_err());
}

#[test]
fn of_entries_with_one_name_the_last_is_in_the_toc() {
    let items = [
        Item::directory("d").mode(0o700),
        Item::file("d/a", noise(1000)),
        Item::directory("./d").mode(0o750),
        Item::file("d//a", b"new"),
        Item::whiteout("gone"),
        Item::whiteout("./gone"),
    ];
    let tar = tar(&items, Dialect::Pax);
    let layer = as_zstd_chunked(&tar).unwrap();
    check_shows(&layer, &tar);
    assert_eq!(names(&toc(&layer)), ["./d/", "d//a", "./.wh.gone"]);
    // containers/storage refuses tar-split data with a name twice.
    assert!(!layer.annotations.contains_key("io.github.containers.zstd-chunked.tarsplit-position"));
    check_shows(&as_estargz(&tar, &small_chunks()).unwrap(), &tar);
}

#[test]
fn layers_whose_order_cannot_be_kept_are_refused() {
    // Replacing a file leaves its content to its other name, which a TOC would link to the new file.
    let heir = [Item::file("a", b"old"), Item::hard_link("b", "a"), Item::file("a", b"new")];
    let below_link = [Item::symlink("lib", "usr/lib"), Item::file("lib/a", b"x")];
    let removed = [Item::directory("d"), Item::file("d/a", b"x"), Item::file("d", b"x")];
    for items in [&heir[..], &below_link, &removed] {
        let tar = tar(items, Dialect::Pax);
        assert!(import_tar(&tar, RANDOM).is_ok());
        assert!(as_estargz(&tar, &small_chunks()).is_err());
        assert!(as_zstd_chunked(&tar).is_err());
    }
    let tar = tar(&heir, Dialect::Pax);
    assert!(matches!(as_estargz(&tar, &small_chunks()), Err(WriteError::OrderMatters(name)) if name == "/b"));
}

#[test]
fn what_json_cannot_hold_is_refused() {
    let items = |item: Item| tar(&[item], Dialect::Pax);
    let cases = [
        (items(Item::file(b"not-\xff-utf8", b"x")), Unrepresentable::Name),
        (items(Item::file("replaced-\u{fffd}", b"x")), Unrepresentable::Name),
        (items(Item::whiteout(b"not-\xff-utf8")), Unrepresentable::Name),
        (items(Item::symlink("link", b"\xff")), Unrepresentable::Link),
        (items(Item::file("x", b"x").xattr(b"user.\xff", b"1")), Unrepresentable::Xattr),
        (items(Item::file("x", b"x").mtime(1 << 40, 0)), Unrepresentable::Time),
    ];
    for (tar, expected) in cases {
        for result in [as_estargz(&tar, &small_chunks()), as_zstd_chunked(&tar)] {
            let Err(WriteError::Unrepresentable { problem, .. }) = result else { panic!("{expected}: {result:?}") };
            assert_eq!(problem, expected);
        }
    }
}

#[test]
fn empty_layers_stay_empty() {
    for tar in [Vec::new(), vec![0; 512], vec![0; 1024], vec![0; 10_240]] {
        let layer = as_zstd_chunked(&tar).unwrap();
        assert_eq!(decoded(&layer.blob), tar);
        assert!(index_by_toc(&layer).unwrap().entries.is_empty());
        let layer = as_estargz(&tar, &small_chunks()).unwrap();
        assert!(index_by_toc(&layer).unwrap().entries.is_empty());
        let mut blob = Vec::new();
        estargz(&tar[..], &mut blob, &EstargzOptions { keep_diff_id: true, ..small_chunks() }, &Allowance::unbounded())
            .unwrap();
        assert_eq!(decoded(&blob), tar);
    }
}

#[test]
fn an_archive_that_ends_early_ends_properly_as_estargz() {
    let tar = Tar::new().sized(RawHeader::new("a"), b"x").unfinished();
    let layer = as_estargz(&tar[..513], &small_chunks()).unwrap();
    check_shows(&layer, &tar);
    let layer = as_zstd_chunked(&tar[..513]).unwrap();
    assert_eq!(decoded(&layer.blob), tar[..513]);
    let path = [LayerPath::from_tar_name(b"a").unwrap()];
    let mut blob = Vec::new();
    let written =
        estargz_prioritised(Cursor::new(&tar[..513]), &path, &mut blob, &small_chunks(), &Allowance::unbounded())
            .unwrap();
    assert_eq!(written.not_prioritised, path);
}

#[test]
fn sizes_may_be_in_base_256_and_global_comments_stay() {
    let mut size = [0; 12];
    (size[0], size[11]) = (0x80, 3);
    let comment = b"13 comment=1\n";
    let tar = Tar::new()
        .sized(RawHeader::new("g").kind(b'g'), comment)
        .entry(&RawHeader::new("a").gnu().field(124, size), b"abc")
        .sized(RawHeader::new("c").kind(b'7'), b"contiguous")
        .finish();
    let layer = as_estargz(&tar, &small_chunks()).unwrap();
    check_shows(&layer, &tar);
    assert!(decoded(&layer.blob).windows(comment.len()).any(|window| window == comment));
    let layer = as_zstd_chunked(&tar).unwrap();
    check_shows(&layer, &tar);
    // containers/storage accepts neither global headers nor contiguous files.
    assert!(toc(&layer).get("tarSplitDigest").is_none());
}

#[test]
fn tar_split_gives_the_tar_again() {
    let trailing = [tar(&sample(), Dialect::Gnu), vec![0; 3 << 20]].concat();
    for tar in [tar(&sample(), Dialect::Pax), tar(&sample(), Dialect::Gnu), trailing] {
        let layer = as_zstd_chunked(&tar).unwrap();
        let (_, kept) = import_tar(&tar, RANDOM).unwrap();
        let toc = toc(&layer);
        assert_eq!(
            assembled(&layer, &toc, |name| {
                let entry = toc["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == *name).unwrap();
                kept.objects[&entry["digest"].as_str().unwrap().parse().unwrap()].clone()
            }),
            tar
        );
    }
}

/// Reassembles the tar from the tar-split data of a layer and its files.
fn assembled(layer: &Layer, toc: &Value, content: impl Fn(&str) -> Vec<u8>) -> Vec<u8> {
    use base64::Engine as _;
    let base64 = |value: &Value| base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap();
    let position = &layer.annotations["io.github.containers.zstd-chunked.tarsplit-position"];
    let numbers: Vec<usize> = position.split(':').map(|number| number.parse().unwrap()).collect();
    let compressed = &layer.blob[numbers[0]..][..numbers[1]];
    assert_eq!(toc["tarSplitDigest"], Digest::of(compressed).to_string());
    let lines = zstd::decode_all(compressed).unwrap();
    assert_eq!(lines.len(), numbers[2]);
    let mut tar = Vec::new();
    for (number, line) in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate() {
        let line: Value = serde_json::from_slice(line).unwrap();
        assert_eq!(line["position"], number);
        match line["type"].as_u64().unwrap() {
            2 => tar.extend(base64(&line["payload"])),
            _ if line["payload"].is_null() => assert!(line.get("size").is_none()),
            _ => {
                let content = content(line["name"].as_str().unwrap());
                assert_eq!(line["size"], content.len());
                assert_eq!(base64(&line["payload"]).len(), 8);
                tar.extend(content);
            }
        }
    }
    tar
}

#[test]
fn the_footer_of_zstd_chunked_equals_the_annotations() {
    let layer = as_zstd_chunked(&tar(&sample(), Dialect::Pax)).unwrap();
    let footer = layer.blob.last_chunk::<72>().unwrap();
    assert_eq!(footer[..8], *b"\x50\x2a\x4d\x18\x40\0\0\0");
    assert_eq!(footer[64..], *b"GNUlInUx");
    let words: Vec<String> =
        footer[8..64].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()).to_string()).collect();
    let prefix = "io.github.containers.zstd-chunked.";
    assert_eq!(layer.annotations[&format!("{prefix}manifest-position")], words[..4].join(":"));
    assert_eq!(layer.annotations[&format!("{prefix}tarsplit-position")], words[4..].join(":"));
}

/// Cases that a tar can represent and a table of contents cannot, by the number in their name: sparse files, names that are not
/// text, entries below a symbolic link, and names with several meanings one after another.
const ONLY_IN_TARS: &[&str] = &["060", "070", "073", "094", "110", "112", "122", "123", "124", "126"];

#[test]
fn hostile_tars_are_refused_or_shown() {
    let (mut shown, mut refused) = (0, 0);
    for (name, tar) in hostile_tars() {
        let plain = import_tar(&tar, CLAIMED);
        let options = EstargzOptions { chunk_bytes: 1000, ..small_chunks() };
        for result in [as_estargz(&tar, &options), as_zstd_chunked(&tar)] {
            let is_expected = plain.is_ok() && !ONLY_IN_TARS.iter().any(|number| name.starts_with(number));
            match result {
                Ok(layer) => {
                    assert!(is_expected, "{name}: no table of contents can hold it");
                    let (plain, _) = plain.as_ref().expect(name);
                    let index = index_by_toc(&layer).expect(name);
                    assert_eq!(comparable(&index, false), comparable(plain, false), "{name}");
                    shown += 1;
                }
                Err(error) => {
                    assert!(!is_expected, "{name} is refused: {error}");
                    assert!(!error.to_string().is_empty(), "{name}");
                    refused += 1;
                }
            }
        }
    }
    // In both formats. A reader and a writer that refuse everything, or nothing, do not pass.
    assert!(shown >= 38 && refused >= 186, "{shown} shown, {refused} refused");
}

#[test]
fn options_out_of_range_are_refused() {
    let gzip = EstargzOptions::default();
    for options in [
        EstargzOptions { chunk_bytes: 0, ..gzip },
        EstargzOptions { chunk_bytes: (16 << 20) + 1, ..gzip },
        EstargzOptions { level: 10, ..gzip },
    ] {
        assert!(matches!(as_estargz(&[], &options), Err(WriteError::Options(_))));
    }
    for level in [0, 23, -5] {
        let result =
            zstd_chunked(&[][..], Vec::new(), &ZstdChunkedOptions { level, threads: 1 }, &Allowance::unbounded());
        assert!(matches!(result, Err(WriteError::Options(_))));
    }
    let best = as_estargz(&[0; 1024], &EstargzOptions { level: 9, ..gzip }).unwrap();
    assert!(index_by_toc(&best).is_ok());
    let mut blob = Vec::new();
    zstd_chunked(&[0; 1024][..], &mut blob, &ZstdChunkedOptions { level: 22, threads: 1 }, &Allowance::unbounded())
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn random_layers_show_the_same_in_every_format(
        items in random::layer(),
        chunk_bytes in prop_oneof![Just(512_u64), Just(5000), Just(1 << 20)],
        dialect in prop_oneof![Just(Dialect::Pax), Just(Dialect::Gnu)],
        paths in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let tar = tar(&items, dialect);
        let options = EstargzOptions { chunk_bytes, ..small_chunks() };
        check_shows(&as_estargz(&tar, &options).unwrap(), &tar);
        let chunked = as_zstd_chunked(&tar).unwrap();
        prop_assert_eq!(chunked.diff_id, Digest::of(&tar));
        check_shows(&chunked, &tar);
        if !items.is_empty() {
            let path = |index: &prop::sample::Index| LayerPath::from_tar_name(&items[index.index(items.len())].path);
            let paths: Vec<LayerPath> = paths.iter().map(|index| path(index).unwrap()).collect();
            let mut blob = Vec::new();
            let written = estargz_prioritised(Cursor::new(&tar), &paths, &mut blob, &options, &Allowance::unbounded()).unwrap();
            check_shows(&layer(&written, blob), &tar);
        }
    }
}
