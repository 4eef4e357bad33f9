//! All formats of one layer show one tree and one content.

#![expect(clippy::cast_possible_truncation, reason = "tests hold small data")]

mod common;

use common::{RANDOM, comparable, import_blob, import_tar, index_by_toc, open_toc, read_by_chunks, stream};
use proptest::prelude::*;
use tarpon_layer::plain::Options;
use tarpon_layer::toc::{Claim, NotLazy, TocError, TocPlace};
use tarpon_layer::{Allowance, ChunkPlace, Codec, LayerIndex, Node};
use tarpon_oci::{Compression, MediaType};
use tarpon_testkit::layers::{
    Dialect, EstargzOptions, FooterKind, Item, ItemKind, Layer, Spelling, ZstdChunkedOptions, estargz, gzip,
    gzip_members, random, tar, zstd_chunked, zstd_frames,
};

fn sample() -> Vec<Item> {
    let noise: Vec<u8> = (0..40_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    vec![
        Item::directory("etc"),
        Item::file("etc/small", b"small\n").mode(0o4755).owner(70_000, 4_294_967_294),
        Item::file("etc/empty", b""),
        Item::file("etc/noise", &noise),
        Item::file("etc/zeros", vec![0; 120_000]),
        Item::hard_link("etc/again", "etc/noise"),
        Item::symlink("etc/link", "/etc/small"),
        Item::char_device("etc/null", 1, 3),
        Item::block_device("etc/loop", 7, 0),
        Item::fifo("etc/fifo"),
        Item::whiteout("etc/gone"),
        Item::opaque("var"),
        Item::file("var/attr", b"x").xattr("user.note", b"\0\xff").xattr("trusted.overlay.opaque", b"y"),
    ]
}

fn check_contents(index: &LayerIndex, items: &[Item], raw: &[u8]) {
    for entry in &index.entries {
        if let Node::File(_) = &entry.node {
            let item = items
                .iter()
                .find(|item| item.path == entry.path.as_bytes() && matches!(item.kind, ItemKind::File(_)))
                .expect("an item");
            assert_eq!(read_by_chunks(index, entry, raw), item.content(), "{}", entry.path);
        }
    }
}

#[test]
fn every_compression_of_a_plain_layer_shows_the_same() {
    let items = sample();
    let bytes = tar(&items, Dialect::Pax);
    let (index, kept) = import_tar(&bytes, RANDOM).unwrap();
    check_contents(&index, &items, &bytes);
    assert_eq!(index.dropped_xattrs, 1);
    assert_eq!(kept.objects.len(), 4);
    for blob in [gzip(&bytes), gzip_members(&bytes, 700), zstd_frames(&bytes, 5000)] {
        let (streamed, objects) = import_blob(&blob, stream()).unwrap();
        assert_eq!(comparable(&streamed, false), comparable(&index, false));
        assert_eq!(objects.objects, kept.objects);
        check_contents(&streamed, &items, &bytes);
    }
}

#[test]
fn estargz_in_all_its_shapes_shows_the_tar() {
    let items = sample();
    let (plain, _) = import_tar(&tar(&items, Dialect::Pax), RANDOM).unwrap();
    for chunk_bytes in [4 << 20, 64 << 10, 1000] {
        for min_member_bytes in [0, 5000, 1 << 20] {
            for footer in [FooterKind::Current, FooterKind::Legacy] {
                for landmark in [None, Some(".prefetch.landmark"), Some(".no.prefetch.landmark")] {
                    let options = EstargzOptions { chunk_bytes, min_member_bytes, footer, landmark };
                    let layer = estargz(&items, options);
                    let index = index_by_toc(&layer).unwrap();
                    assert_eq!(comparable(&index, true), comparable(&plain, true), "{options:?}");
                    check_contents(&index, &items, &layer.blob);
                }
            }
        }
    }
}

#[test]
fn one_landmark_marks_what_to_prefetch_and_another_prevents_it() {
    let items = sample();
    let of = |landmark| {
        let toc = open_toc(&estargz(&items, EstargzOptions { landmark, ..Default::default() })).unwrap();
        toc.index_and_prefetch().unwrap().1
    };
    assert_eq!((of(None), of(Some(".no.prefetch.landmark"))), (None, None));
    // Before all files: only its own header precedes it.
    assert!(of(Some(".prefetch.landmark")).is_some_and(|until| until < 1024));
}

#[test]
fn zstd_chunked_in_both_spellings_shows_the_tar() {
    let items = sample();
    let (plain, _) = import_tar(&tar(&items, Dialect::Pax), RANDOM).unwrap();
    for chunk_bytes in [1 << 20, 64 << 10, 1000] {
        for spelling in [Spelling::Old, Spelling::New] {
            let layer = zstd_chunked(&items, ZstdChunkedOptions { chunk_bytes, spelling });
            let index = index_by_toc(&layer).unwrap();
            assert_eq!(comparable(&index, false), comparable(&plain, false));
            check_contents(&index, &items, &layer.blob);
            assert!(index.chunks.iter().any(|chunk| chunk.place == ChunkPlace::Zeros));
        }
    }
}

#[test]
fn streaming_a_claimed_layer_shows_what_its_toc_shows() {
    let items = sample();
    let layer = estargz(&items, EstargzOptions { landmark: Some(".prefetch.landmark"), ..Default::default() });
    let claimed = Options { hides_toc_files: true, ..stream() };
    let (streamed, _) = import_blob(&layer.blob, claimed).unwrap();
    assert_eq!(comparable(&streamed, true), comparable(&index_by_toc(&layer).unwrap(), true));
    // Without the claim these are ordinary files.
    let (unclaimed, _) = import_blob(&layer.blob, stream()).unwrap();
    assert_eq!(unclaimed.entries.len(), streamed.entries.len() + 2);
}

#[test]
fn an_external_toc_is_requested_and_then_used() {
    let items = sample();
    let layer = estargz(&items, EstargzOptions { footer: FooterKind::External, ..Default::default() });
    let inside = estargz(&items, EstargzOptions::default());
    let Ok(Claim::Toc(claim)) =
        Claim::of(&MediaType::Layer(Compression::Gzip), &layer.annotations, layer.blob.len() as u64)
    else {
        panic!("no claim")
    };
    let first = &layer.blob[claim.first_range().start as usize..];
    let place = claim.locate(first).unwrap();
    assert_eq!(place, TocPlace::External { data_end: layer.blob.len() as u64 - 46 });
    // The blob of the TOC image is the member that would be in the layer.
    let member = &inside.blob[layer.blob.len() - 46..inside.blob.len() - 51];
    let index = claim.open(&place, member, &Allowance::default()).unwrap().index().unwrap();
    check_contents(&index, &items, &layer.blob);
}

#[test]
fn a_toc_of_another_digest_is_not_parsed() {
    let layer = estargz(&sample(), EstargzOptions::default());
    let other = estargz(&sample()[..3], EstargzOptions::default());
    let swapped = Layer { annotations: other.annotations.clone(), ..layer };
    assert!(matches!(index_by_toc(&swapped), Err(TocError::Digest(_))));
    let mut layer = zstd_chunked(&sample(), ZstdChunkedOptions::default());
    let at = layer.blob.len() - 100;
    layer.blob[at] ^= 1;
    assert!(matches!(index_by_toc(&layer), Err(TocError::Digest(_))));
}

#[test]
fn a_name_that_json_cannot_hold_makes_the_layer_a_stream() {
    let items = [Item::file(b"not-\xff-utf8", b"x")];
    for layer in [estargz(&items, EstargzOptions::default()), zstd_chunked(&items, ZstdChunkedOptions::default())] {
        assert!(matches!(index_by_toc(&layer), Err(TocError::NotLazy(NotLazy::NameNotUtf8(_)))));
        let (index, _) = import_blob(&layer.blob, Options { hides_toc_files: true, ..stream() }).unwrap();
        assert_eq!(index.entries[0].path.as_bytes(), b"not-\xff-utf8");
    }
}

#[test]
fn large_files_of_a_bare_tar_are_cut_and_others_are_not() {
    let large = vec![7; (9 << 20) + 1];
    let items = [Item::file("large", &large), Item::file("exact", vec![1; 4 << 20])];
    let bytes = tar(&items, Dialect::Gnu);
    let (index, _) = import_tar(&bytes, RANDOM).unwrap();
    let sizes: Vec<u64> = index.chunks.iter().map(|chunk| chunk.size).collect();
    assert_eq!(sizes, [4 << 20, 4 << 20, (1 << 20) + 1, 4 << 20]);
    check_contents(&index, &items, &bytes);
    let (index, _) = import_tar(&bytes, stream()).unwrap();
    assert_eq!(index.chunks.len(), 2);
    assert!(matches!(index.chunks[0].place, ChunkPlace::Blob { codec: Codec::Stream, .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn every_format_of_a_random_layer_shows_the_same(
        items in random::layer(),
        chunk_bytes in prop_oneof![Just(512_usize), Just(4096), Just(1 << 20)],
        min_member_bytes in prop_oneof![Just(0_usize), Just(3000)],
    ) {
        let bytes = tar(&items, Dialect::Pax);
        let (plain, kept) = import_tar(&bytes, RANDOM).unwrap();
        check_contents(&plain, &items, &bytes);
        prop_assert_eq!(plain.entries.len(), items.len());
        let layer = estargz(&items, EstargzOptions { chunk_bytes, min_member_bytes, ..Default::default() });
        let index = index_by_toc(&layer).unwrap();
        prop_assert_eq!(comparable(&index, false), comparable(&plain, false));
        check_contents(&index, &items, &layer.blob);
        let claimed = Options { hides_toc_files: true, ..stream() };
        let (streamed, objects) = import_blob(&layer.blob, claimed).unwrap();
        prop_assert_eq!(comparable(&streamed, false), comparable(&plain, false));
        prop_assert_eq!(objects.objects, kept.objects);
        let layer = zstd_chunked(&items, ZstdChunkedOptions { chunk_bytes, spelling: Spelling::New });
        let index = index_by_toc(&layer).unwrap();
        prop_assert_eq!(comparable(&index, false), comparable(&plain, false));
        check_contents(&index, &items, &layer.blob);
    }
}
