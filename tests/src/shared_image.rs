//! Images without tables of contents and without indexes, whose layers hosts share through a tier.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tarpon_oci::{Compression, Digest};
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, gzip_members, tar};

use crate::expected::Expected;
use crate::load::scatter;
use crate::real;
use crate::wire::Wire;

/// Smaller layers are not shared.
const SHARED_BYTES: u64 = 64 << 10;
/// The repositories of images that no test makes indexes of.
const REPOSITORY: &str = "dev-tier";
/// Files of a real image that hosts read: from all of its folders.
const FILES: usize = 120;
/// Files of each large layer of an image that is made here.
const FILES_OF_LAYER: usize = 16;
/// Bytes of each file in the layers of [`image`]. The first layer has more bytes than one part of an upload.
const LAYERS: [usize; 3] = [768 << 10, 320 << 10, 320 << 10];
/// A reader can begin at each member of a layer.
const MEMBER: usize = 256 << 10;

/// An image without tables of contents and without indexes, in the registry of the images.
pub struct SharedImage {
    /// REPOSITORY:TAG.
    pub name: String,
    /// Files and the digests of their contents.
    pub files: Vec<(PathBuf, Digest)>,
    /// The layers that hosts share.
    pub layers: Vec<Digest>,
    /// Compressed bytes of them.
    pub bytes: u64,
}

/// An image of a distribution.
pub fn real_image() -> &'static SharedImage {
    static IMAGE: OnceLock<SharedImage> = OnceLock::new();
    IMAGE.get_or_init(|| SharedImage::real(&real::registry().unwrap()))
}

/// An image of three shared layers, whose files are fetched in many requests.
pub fn image() -> &'static SharedImage {
    static IMAGE: OnceLock<SharedImage> = OnceLock::new();
    IMAGE.get_or_init(|| SharedImage::made(&real::registry().unwrap(), "first", &LAYERS))
}

/// Another one, of one shared layer.
pub fn other_image() -> &'static SharedImage {
    static IMAGE: OnceLock<SharedImage> = OnceLock::new();
    IMAGE.get_or_init(|| SharedImage::made(&real::registry().unwrap(), "second", &LAYERS[1..2]))
}

impl SharedImage {
    fn real(registry: &str) -> Self {
        let (original, name) = ("dev/redis:gzip", format!("{REPOSITORY}/redis:gzip"));
        copy(&format!("docker://{registry}/{original}"), registry, &name);
        let tree = Expected::of(registry, original).unwrap().tree;
        let files = tree.iter().filter(|(_, seen)| seen.size > 0);
        let files = files.filter_map(|(path, seen)| Some((text(path)?.into(), seen.content?)));
        let files: Vec<_> = files.collect();
        let step = files.len().div_ceil(FILES);
        Self::of(registry, name, files.into_iter().step_by(step).collect())
    }

    /// An image of files that do not compress. `layers`: bytes of each file of a layer.
    fn made(registry: &str, tag: &str, layers: &[usize]) -> Self {
        let (mut made, mut files) = (Vec::new(), Vec::new());
        for (number, size) in layers.iter().enumerate() {
            let path = |file| format!("layer-{number}/{tag}-{file}");
            let item = |file| Item::file(path(file), noise(&path(file), *size));
            let items: Vec<Item> = (0..FILES_OF_LAYER).map(item).collect();
            let digests = items.iter().map(|item| Digest::of(item.content()));
            files.extend(digests.enumerate().map(|(file, digest)| (file, (PathBuf::from(path(file)), digest))));
            made.push(layer(&items));
        }
        made.push(Layer::gzip(&[Item::file("small", b"too small to be shared")]));
        // Of all layers in turn.
        files.sort_by_key(|(file, _)| *file);
        let (folder, name) = (real::scratch().unwrap(), format!("{REPOSITORY}/made:{tag}"));
        let layout = folder.path().join("layout");
        Image::of(made).write_layout("v1", &layout);
        copy(&format!("oci:{}:v1", layout.display()), registry, &name);
        Self::of(registry, name, files.into_iter().map(|(_, file)| file).collect())
    }

    fn of(registry: &str, name: String, files: Vec<(PathBuf, Digest)>) -> Self {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["inspect", "--raw", "--tls-verify=false", &format!("docker://{registry}/{name}")]);
        let manifest: Value = serde_json::from_str(&real::run(&mut skopeo).unwrap()).unwrap();
        let layers = manifest["layers"].as_array().unwrap().iter();
        let layers: Vec<(Digest, u64)> = layers
            .map(|layer| (layer["digest"].as_str().unwrap().parse().unwrap(), layer["size"].as_u64().unwrap()))
            .filter(|(_, size)| *size >= SHARED_BYTES)
            .collect();
        let bytes = layers.iter().map(|(_, size)| size).sum();
        Self { name, files, layers: layers.into_iter().map(|(digest, _)| digest).collect(), bytes }
    }

    /// How often each shared layer was requested through a proxy.
    pub fn requests(&self, wire: &Wire) -> Vec<usize> {
        let asked = wire.asked();
        let is_of = |path: &str, layer: &Digest| path.ends_with(&format!("/blobs/{layer}"));
        self.layers.iter().map(|layer| asked.iter().filter(|path| is_of(path, layer)).count()).collect()
    }
}

fn text(path: &[u8]) -> Option<String> {
    String::from_utf8(path.to_vec()).ok()
}

fn copy(from: &str, registry: &str, name: &str) {
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false", from]);
    real::run(skopeo.arg(format!("docker://{registry}/{name}"))).unwrap();
}

/// A layer of which any part can be read.
fn layer(items: &[Item]) -> Layer {
    let tar = tar(items, Dialect::Pax);
    Layer {
        compression: Compression::Gzip,
        annotations: BTreeMap::new(),
        blob: gzip_members(&tar, MEMBER),
        diff_id: Digest::of(&tar),
    }
}

/// Bytes that do not compress.
fn noise(path: &str, size: usize) -> Vec<u8> {
    let first = path.bytes().fold(0, |seed, byte| scatter(seed ^ u64::from(byte)));
    (0..size as u64 / 8).flat_map(|word| scatter(first ^ word).to_le_bytes()).collect()
}
