//! The images: a base, and for each image a layer of files of its own, so that they do not fit into the store together.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};
use tarpon_harness::{process, registry};

use crate::random::Random;

/// The image that all others contain, in the registry of `cargo xtask images`.
const BASE: &str = "dev/debian-base:gzip";
/// Several times as many as are in use at any time.
pub(super) const COUNT: usize = 8;
/// Files of an image's own layer.
const OWN_FILES: u64 = 48;
/// Sizes of these files: below and above the size of a chunk of the formats.
const SMALLEST: u64 = 1 << 10;
const LARGEST: u64 = 1 << 20;
/// Files of the base larger than this are not read: hashing them would only heat.
const LARGEST_OF_BASE: u64 = 4 << 20;

/// An image, and the digests of the files that containers read.
pub(super) struct Image {
    /// NAME:TAG in the registry.
    pub(super) name: String,
    /// Paths in the image with their digests in hexadecimal: those of its own, and those of the base.
    pub(super) own: Vec<(String, String)>,
    pub(super) base: Vec<(String, String)>,
}

/// Builds the images with umoci and pushes them with skopeo, by turns as plain gzip, eStargz and zstd:chunked. Neither is
/// part of tarpon: what containers read is compared with the files that went in.
pub(super) fn build(folder: &Path, address: &str, tarpon: &Path, seed: u64) -> Result<Vec<Image>> {
    let layout = folder.join("layout");
    remove(&layout)?;
    let source = format!("docker://{}/{BASE}", registry::address());
    skopeo(folder, &["copy", "--src-tls-verify=false", &source, &format!("oci:{}:base", layout.display())])
        .with_context(|| format!("cannot get {source}: build it with cargo xtask images --quick"))?;
    let base = files_of_base(folder, &layout)?;
    let mut random = Random::new(seed);
    let mut images = Vec::new();
    for number in 0..COUNT {
        let content = folder.join("content");
        remove(&content)?;
        let own = write_files(&content, number, &mut random)?;
        let image = format!("{}:base", layout.display());
        let tag = format!("soak-{number}");
        let mut insert = Command::new("umoci");
        insert.args(["insert", "--image", &image, "--tag", &tag]).arg(&content).arg("/soak");
        process::check_logged(&mut insert, &folder.join("umoci.log"))?;
        let name = push(folder, address, tarpon, &layout, number)?;
        images.push(Image { name, own, base: base.clone() });
    }
    Ok(images)
}

/// Pushes an image, and converts it.
fn push(folder: &Path, address: &str, tarpon: &Path, layout: &Path, number: usize) -> Result<String> {
    let from = format!("oci:{}:soak-{number}", layout.display());
    let plain = format!("soak/image-{number}:gzip");
    skopeo(folder, &["copy", "--dest-tls-verify=false", &from, &format!("docker://{address}/{plain}")])?;
    let (format, tag) = match number % 4 {
        0 | 1 => ("zstd:chunked", "zstdchunked"),
        2 => ("estargz", "estargz"),
        _ => return Ok(plain),
    };
    let name = format!("soak/image-{number}:{tag}");
    let mut convert = Command::new(tarpon);
    convert.args(["--quiet", "--store"]).arg(folder.join("convert-store")).arg("convert");
    convert.args(["--format", format, &format!("{address}/{plain}"), &format!("{address}/{name}")]);
    process::check_logged(&mut convert, &folder.join("convert.log"))?;
    Ok(name)
}

/// Regular files of the base, unpacked by umoci.
fn files_of_base(folder: &Path, layout: &Path) -> Result<Vec<(String, String)>> {
    let root = folder.join("base");
    remove(&root)?;
    let mut unpack = Command::new("umoci");
    unpack.args(["raw", "unpack", "--image", &format!("{}:base", layout.display())]).arg(&root);
    process::check_logged(&mut unpack, &folder.join("umoci.log"))?;
    let mut found = BTreeMap::new();
    hash_files(&root, &root, &mut found)?;
    remove(&root)?;
    Ok(found.into_iter().collect())
}

fn hash_files(root: &Path, folder: &Path, found: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let size = entry.metadata()?.len();
        if kind.is_dir() {
            hash_files(root, &path, found)?;
        } else if let Some(name) = listed(root, &path).filter(|_| kind.is_file() && size <= LARGEST_OF_BASE) {
            found.insert(name, hex(&fs::read(&path)?));
        }
    }
    Ok(())
}

/// The path in the image, if a line of `sha256sum` can hold it as it is, and if no runtime mounts something else there.
fn listed(root: &Path, path: &Path) -> Option<String> {
    let name = path.strip_prefix(root).ok()?.to_str()?;
    let is_mounted = ["etc/hosts", "etc/resolv.conf", "etc/hostname", "dev/", "proc/", "sys/", "run/"];
    let is_plain = !name.contains(['\\', '\n']) && !is_mounted.iter().any(|prefix| name.starts_with(prefix));
    is_plain.then(|| format!("/{name}"))
}

/// Files of random bytes, which no codec makes smaller.
fn write_files(folder: &Path, number: usize, random: &mut Random) -> Result<Vec<(String, String)>> {
    fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    for file in 0..OWN_FILES {
        let size = SMALLEST + random.below(LARGEST - SMALLEST);
        let bytes: Vec<u8> = (0..=size / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        let name = format!("file-{number}-{file}");
        fs::write(folder.join(&name), &bytes)?;
        files.push((format!("/soak/{name}"), hex(&bytes)));
    }
    Ok(files)
}

fn skopeo(folder: &Path, arguments: &[&str]) -> Result<()> {
    process::check_logged(Command::new("skopeo").args(arguments), &folder.join("skopeo.log"))
}

fn remove(folder: &PathBuf) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("cannot remove {}: {error}", folder.display())
        }
        _ => Ok(()),
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
