//! Generated images of any size: OCI layouts with layers of numbered files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tarpon_harness::paths;

use crate::machine;
use crate::sha256::{Hashing, hash_of};

/// The composition of an image.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) layers: u64,
    /// Number per layer.
    pub(super) files: u64,
    /// Size per file.
    pub(super) bytes: u64,
    /// Number of different contents. Files differ in a few bytes, and are zeros otherwise.
    pub(super) contents: u64,
    /// Compressed, to save disk space.
    pub(super) gzip: bool,
}

/// Files per directory.
const DIRECTORY: u64 = 256;

/// The reference of an image of this shape in a layout, which is generated if missing.
pub(super) fn made(name: &str, shape: Shape) -> Result<String> {
    let folder = paths::benchmarks().join("layouts").join(name);
    if !folder.join("index.json").exists() {
        machine::remove(&folder)?;
        write(&folder, shape).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    Ok(format!("oci:{}:made", folder.display()))
}

fn write(folder: &Path, shape: Shape) -> Result<()> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
    for number in 0..shape.layers {
        let (descriptor, diff_id) = layer(&blobs, number, shape)?;
        layers.push(descriptor);
        diff_ids.push(diff_id);
    }
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = blob(&blobs, "application/vnd.oci.image.config.v1+json", &config)?;
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let mut manifest = blob(&blobs, "application/vnd.oci.image.manifest.v1+json", &manifest)?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "made"});
    fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    // The index is written last: a layout with an index is complete.
    fs::write(folder.join("index.json"), json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())?;
    Ok(())
}

/// This machine's architecture, as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes JSON as a blob, and returns its descriptor.
fn blob(blobs: &Path, media_type: &str, content: &Value) -> Result<Value> {
    let text = content.to_string();
    let hash = hash_of(text.as_bytes());
    fs::write(blobs.join(&hash), &text)?;
    Ok(json!({"mediaType": media_type, "digest": format!("sha256:{hash}"), "size": text.len()}))
}

/// Writes a layer; returns its descriptor and diffID.
fn layer(blobs: &Path, number: u64, shape: Shape) -> Result<(Value, String)> {
    let draft = blobs.join("draft");
    let file = Hashing::new(BufWriter::new(File::create(&draft)?));
    let (media_type, file, diff_id) = if shape.gzip {
        let mut tar = Hashing::new(GzEncoder::new(file, Compression::fast()));
        fill(&mut tar, number, shape)?;
        let (gzip, diff_id, _) = tar.end();
        ("application/vnd.oci.image.layer.v1.tar+gzip", gzip.finish()?, diff_id)
    } else {
        let mut tar = Hashing::new(file);
        fill(&mut tar, number, shape)?;
        let (file, diff_id, _) = tar.end();
        ("application/vnd.oci.image.layer.v1.tar", file, diff_id)
    };
    let (mut file, hash, size) = file.end();
    file.flush()?;
    fs::rename(draft, blobs.join(&hash))?;
    Ok((
        json!({"mediaType": media_type, "digest": format!("sha256:{hash}"), "size": size}),
        format!("sha256:{diff_id}"),
    ))
}

/// Writes the tar of a layer.
fn fill(to: impl Write, number: u64, shape: Shape) -> Result<()> {
    let mut tar = tar::Builder::new(to);
    let mut content = vec![0; usize::try_from(shape.bytes)?];
    for file in 0..shape.files {
        let directory = PathBuf::from(format!("layer-{number}/{}", file / DIRECTORY));
        if file % DIRECTORY == 0 {
            let mut header = header(0o755, 0);
            header.set_entry_type(tar::EntryType::Directory);
            tar.append_data(&mut header, &directory, io::empty())?;
        }
        let which = (number * shape.files + file) % shape.contents.max(1);
        let seed = which.to_le_bytes();
        let length = seed.len().min(content.len());
        content[..length].copy_from_slice(&seed[..length]);
        tar.append_data(&mut header(0o644, shape.bytes), directory.join(format!("file-{file}")), &content[..])?;
    }
    tar.finish().context("cannot end a tar")
}

fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(1_700_000_000);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_holds_what_its_digests_say() {
        let folder = tempfile::tempdir().unwrap();
        let shape = Shape { layers: 2, files: 300, bytes: 20, contents: 7, gzip: true };
        write(folder.path(), shape).unwrap();
        let index: Value = serde_json::from_slice(&fs::read(folder.path().join("index.json")).unwrap()).unwrap();
        let read = |descriptor: &Value| {
            let hash = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let bytes = fs::read(folder.path().join("blobs/sha256").join(hash)).unwrap();
            assert_eq!((hash_of(&bytes).as_str(), descriptor["size"].as_u64()), (hash, Some(bytes.len() as u64)));
            bytes
        };
        let manifest: Value = serde_json::from_slice(&read(&index["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(&read(&manifest["config"])).unwrap();
        for (number, layer) in manifest["layers"].as_array().unwrap().iter().enumerate() {
            let mut tar = Vec::new();
            io::copy(&mut flate2::read::GzDecoder::new(&read(layer)[..]), &mut tar).unwrap();
            let diff_id = config["rootfs"]["diff_ids"][number].as_str().unwrap();
            assert_eq!(format!("sha256:{}", hash_of(&tar)), diff_id);
            // 300 files in two directories.
            assert_eq!(tar::Archive::new(&tar[..]).entries().unwrap().count(), 302);
        }
    }
}
