//! The images that the machine mounts: three, in three formats, in an OCI layout on a disk.
//!
//! Their files have contents of their own, so that the objects of an image are known by it. Small files are written at
//! once, large ones have several chunks and become partial objects first. The layer of `c` has no table of contents: it
//! is streamed, and large enough to be resumed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tarpon_harness::process;

use super::account::{Objects, SHORT};
use crate::random::Random;
use crate::vm;

/// An image of the layout.
struct Image {
    name: &'static str,
    /// For `tarpon convert`; `None`: as it is, plain gzip.
    format: Option<&'static str>,
    small: u32,
    large: u32,
}

const IMAGES: [Image; 3] = [
    Image { name: "a", format: Some("zstd:chunked"), small: 120, large: 8 },
    Image { name: "b", format: Some("estargz"), small: 120, large: 8 },
    // Above the 8 MiB from which the store keeps the beginning of a layer.
    Image { name: "c", format: None, small: 60, large: 12 },
];

/// Below the 64 KiB up to which the store writes an object at once.
const SMALL_BYTES: u64 = 24 << 10;
/// Above it, and above the size of a chunk.
const LARGE_BYTES: std::ops::Range<u64> = 512 << 10..1280 << 10;

/// Room for the layout and the metadata of its file system.
const DISK_BYTES: u64 = 128 << 20;

/// Builds the images and writes them to a disk. Returns the objects of each.
pub(super) fn build(disk: &Path, folder: &Path, tarpon: &Path) -> Result<BTreeMap<String, Objects>> {
    let _absent = fs::remove_dir_all(folder);
    let (plain, root) = (folder.join("plain"), folder.join("root"));
    let layout = root.join("layout");
    let mut objects = BTreeMap::new();
    for (image, seed) in IMAGES.iter().zip(1..) {
        let files = folder.join(image.name);
        let sums = write_files(&files, image, &mut Random::new(seed))?;
        fs::create_dir_all(&root)?;
        fs::write(root.join(format!("{}.sums", image.name)), &sums)?;
        objects.insert(image.name.to_owned(), sums.lines().map(|line| line[..SHORT].to_owned()).collect());
        add_image(if image.format.is_some() { &plain } else { &layout }, image.name, &files)?;
        if let Some(format) = image.format {
            let at = |layout: &Path| format!("oci:{}:{}", layout.display(), image.name);
            let mut convert = Command::new(tarpon);
            convert.args(["convert", "--format", format, &at(&plain), &at(&layout)]);
            convert.env("TARPON_STORE", folder.join("store"));
            process::check_logged(&mut convert, &folder.join("convert.log"))?;
        }
    }
    vm::make_disk(&root, disk, DISK_BYTES)?;
    fs::remove_dir_all(folder)?;
    Ok(objects)
}

/// Writes the files of an image. Returns their digests and names, as `sha256sum` prints them.
fn write_files(folder: &Path, image: &Image, random: &mut Random) -> Result<String> {
    fs::create_dir_all(folder)?;
    let mut sums = String::new();
    for number in 0..image.small + image.large {
        let (kind, size) = if number < image.small {
            ("small", 1 + random.below(SMALL_BYTES))
        } else {
            ("large", LARGE_BYTES.start + random.below(LARGE_BYTES.end - LARGE_BYTES.start))
        };
        // Random, so that a layer is about as large as its files.
        let content: Vec<u8> = (0..size / 8 + 1).flat_map(|_| random.next().to_le_bytes()).collect();
        let name = format!("{kind}-{number}");
        fs::write(folder.join(&name), &content)?;
        writeln!(sums, "{}  {name}", digest(&content))?;
    }
    Ok(sums)
}

/// Adds an image of one layer to a layout.
fn add_image(layout: &Path, name: &str, files: &Path) -> Result<()> {
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let (tar, gzip) = (blobs.join("layer"), blobs.join("layer.gz"));
    let mut pack = Command::new("tar");
    pack.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-cf"]).arg(&tar);
    process::check(pack.arg("-C").arg(files).arg("."))?;
    let diff_id = digest(&fs::read(&tar)?);
    process::check(Command::new("gzip").args(["-n", "-1"]).arg(&tar))?;
    let (digest, size) = name_blob(&blobs, &fs::read(&gzip)?)?;
    fs::remove_file(gzip)?;
    let layer = descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &digest, size);
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff_id}")] },
    });
    let (digest, size) = name_blob(&blobs, config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", &digest, size), "layers": [layer],
    });
    let (digest, size) = name_blob(&blobs, manifest.to_string().as_bytes())?;
    let mut entry = descriptor(MANIFEST, &digest, size);
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = layout.join("index.json");
    let mut manifests = match fs::read(&index) {
        Ok(text) => serde_json::from_slice::<Value>(&text)?["manifests"].as_array().cloned().unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    manifests.push(entry);
    fs::write(index, json!({ "schemaVersion": 2, "manifests": manifests }).to_string())?;
    Ok(fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?)
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn descriptor(media_type: &str, digest: &str, size: usize) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size })
}

fn name_blob(blobs: &Path, content: &[u8]) -> Result<(String, usize)> {
    let digest = digest(content);
    fs::write(blobs.join(&digest), content)?;
    Ok((digest, content.len()))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
