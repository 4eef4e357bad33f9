//! Other tools read the layers that we write. Each test is skipped if its tool is missing.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};

use tarpon_layer::Allowance;
use tarpon_layer::decode::LayerReader;
use tarpon_layer::write::{EstargzOptions, Written, ZstdChunkedOptions, estargz, zstd_chunked};
use tarpon_testkit::layers::{Dialect, Image, ImageBuilder, Item, Layer, tar};

fn items() -> Vec<Item> {
    let text: Vec<u8> =
        (0..60_000_u32).flat_map(|number| format!("{}\n", number * number % 9973).into_bytes()).collect();
    vec![
        Item::directory("etc"),
        Item::file("etc/small", b"small\n").mode(0o4755),
        Item::file("etc/empty", b""),
        Item::file("etc/text", &text),
        Item::file("etc/holes", [&text[..5000], &[0; 100_000], b"end"].concat()),
        Item::hard_link("etc/again", "etc/text"),
        Item::symlink("etc/link", "small"),
        Item::whiteout("etc/gone"),
        Item::file("\u{e9}", b"x").xattr("user.note", "1"),
    ]
}

fn layer(written: Written, blob: Vec<u8>) -> Layer {
    let Written { compression, annotations, diff_id, .. } = written;
    Layer { compression, annotations, blob, diff_id }
}

fn estargz_layer(tar: &[u8]) -> Layer {
    let mut blob = Vec::new();
    let options = EstargzOptions { chunk_bytes: 64 << 10, threads: 2, ..EstargzOptions::default() };
    let written = estargz(tar, &mut blob, &options, &Allowance::unbounded()).unwrap();
    layer(written, blob)
}

fn zstd_chunked_layer(tar: &[u8]) -> Layer {
    let mut blob = Vec::new();
    let written = zstd_chunked(tar, &mut blob, &ZstdChunkedOptions::default(), &Allowance::unbounded()).unwrap();
    layer(written, blob)
}

fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn gzip_and_zstd_decompress_what_they_know_nothing_of() {
    let bytes = tar(&items(), Dialect::Pax);
    let folder = tempfile::tempdir().unwrap();
    for (program, layer) in [("gzip", estargz_layer(&bytes)), ("zstd", zstd_chunked_layer(&bytes))] {
        if !have(program) {
            eprintln!("skipped: {program} is not installed");
            continue;
        }
        let path = folder.path().join(program);
        fs::write(&path, &layer.blob).unwrap();
        let output = run(Command::new(program).arg("-dc").stdin(fs::File::open(path).unwrap()));
        let mut decoded = Vec::new();
        LayerReader::sniffed(&layer.blob[..]).unwrap().read_to_end(&mut decoded).unwrap();
        assert!(output.stdout == decoded, "{program}");
    }
}

fn write_layout(image: &Image, root: &Path) {
    for (path, bytes) in image.layout("image") {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn skopeo_unpacks_both_formats() {
    if !have("skopeo") {
        eprintln!("skipped: skopeo is not installed");
        return;
    }
    let bytes = tar(&items(), Dialect::Pax);
    let image = ImageBuilder::new().layer(estargz_layer(&bytes)).layer(zstd_chunked_layer(&bytes)).build();
    let folder = tempfile::tempdir().unwrap();
    write_layout(&image, &folder.path().join("layout"));
    let source = format!("oci:{}:image", folder.path().join("layout").display());
    let unpacked = folder.path().join("unpacked");
    let target = format!("dir:{}", unpacked.display());
    run(Command::new("skopeo").args(["--insecure-policy", "copy", "-q", "--dest-decompress", &source, &target]));
    for layer in &image.layers {
        // Named by its digest, which is the diffID.
        assert!(unpacked.join(layer.diff_id.hex()).is_file());
    }
}

#[test]
fn stargz_snapshotter_verifies_every_chunk() {
    if !have("go") {
        eprintln!("skipped: go is not installed");
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tools/estargz-verify");
    let go = |arguments: &[&str]| Command::new("go").args(arguments).current_dir(&source).output().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("estargz-verify");
    if !go(&["mod", "download"]).status.success() {
        eprintln!("skipped: the Go modules cannot be had");
        return;
    }
    let built = go(&["build", "-o", program.to_str().unwrap(), "."]);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let layer = estargz_layer(&tar(&items(), Dialect::Pax));
    let blob = folder.path().join("blob");
    fs::write(&blob, &layer.blob).unwrap();
    let digest = &layer.annotations["containerd.io/snapshot/stargz/toc.digest"];
    let output = run(Command::new(&program).arg(&blob).arg(digest));
    // The hard link and the landmark count as files, too.
    assert!(output.stdout.starts_with(b"verified 6 files in "), "{}", String::from_utf8_lossy(&output.stdout));
    let wrong = layer.diff_id.to_string();
    assert!(!Command::new(&program).arg(&blob).arg(wrong).output().unwrap().status.success());
    let mut damaged = layer.blob;
    // In the first chunk of the text: behind the landmark and some headers.
    damaged[2000] ^= 1;
    fs::write(&blob, &damaged).unwrap();
    assert!(!Command::new(&program).arg(&blob).arg(digest).output().unwrap().status.success());
}
