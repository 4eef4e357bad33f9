//! Runs the fuzz targets on their seeds, without a panic.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use tarpon_layer::chunks::ChunkTableBuilder;
use tarpon_layer::decode::{Compression, LayerReader};
use tarpon_layer::packed::pack;
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::SpanReader;
use tarpon_layer::{ChunkPlace, Codec, LayerIndex};
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::fuzz;
use tarpon_testkit::layers::{
    Dialect, EstargzOptions, Item, Layer, ZstdChunkedOptions, Ztoc, estargz, gzip, gzip_members, hostile_tars,
    hostile_tocs, pax_record, tar, zstd, zstd_chunked, zstd_frames,
};

mod common;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(name)
}

fn replay(name: &str, target: fn(&[u8])) {
    let seeds: Vec<_> = fs::read_dir(folder(name)).expect("a folder of seeds").collect();
    assert!(seeds.len() >= 8, "{name} has {} seeds", seeds.len());
    for seed in seeds {
        target(&fs::read(seed.expect("readable").path()).expect("readable"));
    }
}

#[test]
fn seeds_of_tar_walk() {
    replay("tar_walk", fuzz::tar_walk);
}

#[test]
fn seeds_of_pax() {
    replay("pax", fuzz::pax);
}

#[test]
fn seeds_of_estargz_footer_toc() {
    replay("estargz_footer_toc", fuzz::estargz_footer_toc);
}

#[test]
fn seeds_of_zstd_chunked_toc() {
    replay("zstd_chunked_toc", fuzz::zstd_chunked_toc);
}

#[test]
fn seeds_of_decode_chunk() {
    replay("decode_chunk", fuzz::decode_chunk);
}

#[test]
fn seeds_of_chunk_table() {
    replay("chunk_table", fuzz::chunk_table);
}

/// Seeds of another version are refused at the first bytes, and the target tests nothing.
#[test]
fn the_seeds_of_chunk_table_are_those_of_the_current_format() {
    for (number, table) in chunk_tables().into_iter().enumerate() {
        let seed = fs::read(folder("chunk_table").join(format!("{number:03}"))).expect("a seed");
        assert!(seed == table, "seed {number:03} is not current: run the ignored test write_seeds");
    }
}

#[test]
fn seeds_of_packed_index() {
    replay("packed_index", fuzz::packed_index);
}

#[test]
fn seeds_of_ztoc() {
    replay("ztoc", fuzz::ztoc);
}

#[test]
fn seeds_of_spanned_layer() {
    replay("spanned_layer", fuzz::spanned_layer);
}

#[test]
fn seeds_of_write_layer() {
    replay("write_layer", fuzz::write_layer);
}

/// Runs the targets on the catalogue of bad layers as well.
#[test]
fn hostile_layers_pass_the_fuzz_targets() {
    for (_, tar) in hostile_tars() {
        fuzz::tar_walk(&tar);
        fuzz::write_layer(&tar);
    }
    for (_, layer) in hostile_tocs() {
        fuzz::estargz_footer_toc(&layer.blob);
    }
}

fn items() -> Vec<Item> {
    vec![
        Item::directory("d").xattr("user.a", "1"),
        Item::file("d/f", b"0123456789".repeat(200)).owner(3_000_000_000, 1).mtime(-5, 250_000_000),
        Item::file("d/zeros", vec![0; 2000]),
        Item::hard_link("h", "d/f"),
        Item::symlink("s", "d/f"),
        Item::char_device("c", 1, 3),
        Item::whiteout("gone"),
        Item::opaque("d"),
    ]
}

/// The tar in many compressions, behind a byte for the length of spans.
fn spanned(tar: &[u8]) -> Vec<Vec<u8>> {
    let cut = gzip(tar);
    let blobs = [
        gzip(tar),
        gzip_members(tar, 700),
        gzip_members(tar, 3000),
        zstd(tar),
        zstd_frames(tar, 700),
        zstd_frames(tar, 3000),
        tar.to_vec(),
        cut[..cut.len() - 5].to_vec(),
    ];
    blobs.into_iter().zip([0, 3, 15, 0, 1, 40, 0, 7]).map(|(blob, span)| [&[span][..], &blob].concat()).collect()
}

/// Ztocs without their windows, which are most of their size: valid ones for a blob of 4 KiB, and damaged ones.
fn ztocs(tar: &[u8]) -> Vec<Vec<u8>> {
    let sound = Ztoc { compressed: 1 << 12, count: 1, ..Ztoc::of(&gzip(tar), u64::MAX) };
    let implied = Ztoc { starts: Vec::new(), ..sound.clone() };
    let spoils: [fn(&mut Ztoc); 9] = [
        |_| (),
        |ztoc| ztoc.version = "1.0",
        |ztoc| ztoc.compressed = 77,
        |ztoc| ztoc.uncompressed = 2000,
        |ztoc| ztoc.digests.clear(),
        |ztoc| ztoc.entries.reverse(),
        |ztoc| ztoc.entries[1].size = i64::MAX,
        |ztoc| ztoc.entries[0].records = vec![(b"SCHILY.xattr.user.a".to_vec(), vec![0xff; 3]); 4],
        |ztoc| ztoc.entries.truncate(1),
    ];
    let spoilt = spoils.iter().map(|spoil| {
        let mut ztoc = implied.clone();
        spoil(&mut ztoc);
        ztoc.bytes()
    });
    let cut = implied.bytes();
    spoilt.chain([cut[..cut.len() / 2].to_vec(), b"".to_vec()]).collect()
}

/// A layer with all kinds of places: compressed chunks, holes, files within a member.
fn small_estargz() -> Layer {
    estargz(&items(), EstargzOptions { chunk_bytes: 700, min_member_bytes: 1000, ..Default::default() })
}

fn small_zstd_chunked() -> Layer {
    zstd_chunked(&items(), ZstdChunkedOptions { chunk_bytes: 700, ..Default::default() })
}

/// Tables with each kind of place: sound ones, two of them with one bit flipped in every part, and one that is cut.
fn chunk_tables() -> Vec<Vec<u8>> {
    let tables = [
        table(&[]),
        table(&[&toc_index(&small_estargz())]),
        table(&[&toc_index(&small_zstd_chunked())]),
        // Two layers with the same objects.
        table(&[&toc_index(&small_estargz()), &toc_index(&small_zstd_chunked())]),
        table(&[&spans(&gzip(&tar(&items(), Dialect::Pax)))]),
        table(&[&raw()]),
    ];
    let broken = [&tables[1], &tables[4]].into_iter().flat_map(|table| {
        let places = [8, 16, 20, 24, 28, 32, 64, 105, table.len() / 3, table.len() / 2, table.len() - 3];
        places.map(|place| {
            let mut broken = table.clone();
            broken[place] ^= 1;
            broken
        })
    });
    let cut = tables[1][..tables[1].len() - 7].to_vec();
    tables.iter().cloned().chain(broken).chain([cut]).collect()
}

fn table(layers: &[&(LayerIndex, Compression)]) -> Vec<u8> {
    let mut table = ChunkTableBuilder::new();
    for (index, compression) in layers {
        let blob = Blob { digest: Digest::of(b"layer"), size: 1 << 20 };
        let number = table.add_layer(blob, *compression).expect("a layer");
        table.add_index(number, index).expect("files");
    }
    table.finish().expect("a table")
}

fn toc_index(layer: &Layer) -> (LayerIndex, Compression) {
    (common::index_by_toc(layer).expect("a TOC"), layer.compression)
}

/// A layer whose chunks are in spans. Their windows are left out, which are most of their size.
fn spans(blob: &[u8]) -> (LayerIndex, Compression) {
    let mut reader = SpanReader::with_spans_of(64, blob).expect("a decoder");
    let (compression, access) = (reader.compression(), Access::Spans(reader.starts()));
    let options = Options { access, hides_toc_files: false };
    let mut index = import(&mut reader, options, &mut common::Kept::default()).expect("a layer");
    index.place_in_spans(&reader.finish(), compression);
    index
        .checkpoints
        .iter_mut()
        .for_each(|checkpoint| checkpoint.window = checkpoint.window.iter().take(40).copied().collect());
    (index, compression)
}

fn raw() -> (LayerIndex, Compression) {
    let options = Options { access: Access::Random, hides_toc_files: false };
    let (index, _) = common::import_tar(&tar(&items(), Dialect::Pax), options).expect("a tar");
    assert!(matches!(index.chunks[0].place, ChunkPlace::Blob { codec: Codec::Raw, .. }));
    (index, Compression::None)
}

#[test]
#[ignore = "writes the seeds in fixtures/fuzz anew"]
fn write_seeds() {
    let save = |target: &str, seeds: Vec<Vec<u8>>| {
        fs::create_dir_all(folder(target)).expect("a folder");
        for (number, seed) in seeds.into_iter().filter(|seed| seed.len() < 20_000).enumerate() {
            fs::write(folder(target).join(format!("{number:03}")), seed).expect("a seed");
        }
    };
    let (pax_tar, gnu_tar) = (tar(&items(), Dialect::Pax), tar(&items(), Dialect::Gnu));
    let sparse = hostile_tars().into_iter().filter(|(name, _)| name.contains("sparse") || name.contains("size"));
    save("tar_walk", [vec![pax_tar.clone(), gnu_tar], sparse.map(|(_, tar)| tar).collect()].concat());
    let repeated = hostile_tars().into_iter().filter(|(name, _)| name.contains("link") || name.contains("twice"));
    let written = estargz(&items(), EstargzOptions::default());
    let mut estargz_tar = Vec::new();
    let mut decoder = LayerReader::new(&written.blob[..], written.compression).expect("a decoder");
    decoder.read_to_end(&mut estargz_tar).expect("it decodes");
    let tars = vec![pax_tar.clone(), tar(&items(), Dialect::Gnu), estargz_tar];
    save("write_layer", [tars, repeated.map(|(_, tar)| tar).collect()].concat());
    let records: [(&str, &[u8]); 12] = [
        ("path", b"a/b"),
        ("linkpath", b"c"),
        ("size", b"0"),
        ("size", b"1024"),
        ("uid", b"70000"),
        ("mtime", b"-1.5"),
        ("SCHILY.xattr.user.a", b"\0\n=\xff"),
        ("GNU.sparse.map", b"0,0"),
        ("GNU.sparse.size", b"100"),
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.name", b"n"),
        ("comment", b""),
    ];
    let mut seeds: Vec<Vec<u8>> = records.iter().map(|(key, value)| pax_record(key.as_bytes(), value)).collect();
    seeds.push(seeds.concat());
    save("pax", seeds);
    let layer = small_estargz();
    let tocs = |hostile: std::ops::Range<usize>| hostile_tocs().into_iter().skip(hostile.start).take(hostile.len());
    let json = |layer: &tarpon_testkit::layers::Layer| common::toc_json(layer);
    let mut seeds = vec![layer.blob.clone(), json(&layer).expect("a TOC")];
    seeds.extend(tocs(0..30).filter_map(|(_, layer)| json(&layer)));
    save("estargz_footer_toc", seeds);
    let chunked = small_zstd_chunked();
    let mut seeds = vec![b"100:50:400:1".to_vec(), json(&chunked).expect("a TOC")];
    seeds.extend(tocs(40..90).filter_map(|(_, layer)| json(&layer)));
    save("zstd_chunked_toc", seeds);
    let text = b"all work and no play ".repeat(40);
    let with = |codec: u8, skip: u16, size: u16, encoded: Vec<u8>| {
        [&[codec][..], &skip.to_le_bytes(), &size.to_le_bytes(), &encoded].concat()
    };
    let mut seeds = Vec::new();
    for (skip, size) in [(0, 840), (100, 300), (839, 1), (0, 841)] {
        seeds.push(with(0, skip, size, text.clone()));
        seeds.push(with(1, skip, size, gzip(&text)));
        seeds.push(with(1, skip, size, gzip_members(&text, 100)));
        seeds.push(with(2, skip, size, zstd(&text)));
        seeds.push(with(2, skip, size, zstd_frames(&text, 100)));
    }
    save("decode_chunk", seeds);
    save("spanned_layer", spanned(&pax_tar));
    save("ztoc", ztocs(&pax_tar));
    let mut seeds = vec![pack(&LayerIndex::default())];
    for layer in [&layer, &chunked] {
        seeds.push(pack(&common::index_by_toc(layer).expect("a TOC")));
    }
    // The last one is truncated.
    for blob in spanned(&pax_tar).iter().rev().skip(1) {
        let mut reader = SpanReader::with_spans_of(64, &blob[1..]).expect("a decoder");
        let (compression, access) = (reader.compression(), Access::Spans(reader.starts()));
        let options = Options { access, hides_toc_files: false };
        let mut index = import(&mut reader, options, &mut common::Kept::default()).expect("a layer");
        index.place_in_spans(&reader.finish(), compression);
        seeds.push(pack(&index));
    }
    save("packed_index", seeds);
    save("chunk_table", chunk_tables());
}
