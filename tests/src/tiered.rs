//! Hosts that share the layers of an image through a tier.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Barrier;
use std::thread;

use serde_json::Value;
use tarpon_harness::bucket::Bucket;
use tarpon_oci::{Compression, Digest};
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, gzip_members, tar};

use crate::expected::Expected;
use crate::load::scatter;
use crate::real;
use crate::tarpon::Tarpon;
use crate::wire::Wire;

/// Smaller layers are not shared.
const SHARED_BYTES: u64 = 64 << 10;
/// The repositories of images that no test makes indexes of.
const REPOSITORY: &str = "dev-tier";
/// Files of a real image that hosts read: from all of its folders.
const FILES: usize = 120;
/// Files of each large layer of an image that is made here.
const FILES_OF_LAYER: usize = 16;
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

impl SharedImage {
    /// An image of a distribution.
    pub fn real(registry: &str) -> Self {
        let (original, name) = ("dev/redis:gzip", format!("{REPOSITORY}/redis:gzip"));
        copy(&format!("docker://{registry}/{original}"), registry, &name);
        let tree = Expected::of(registry, original).unwrap().tree;
        let files = tree.iter().filter(|(_, seen)| seen.size > 0);
        let files = files.filter_map(|(path, seen)| Some((text(path)?.into(), seen.content?)));
        let files: Vec<_> = files.collect();
        let step = files.len().div_ceil(FILES);
        Self::of(registry, name, files.into_iter().step_by(step).collect())
    }

    /// An image of files that do not compress, in layers of which any part can be read. `layers`: bytes of each file of a layer.
    pub fn made(registry: &str, tag: &str, layers: &[usize]) -> Self {
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

/// A tier, and what its hosts have in their environment.
#[derive(Clone)]
pub struct Place {
    /// Its URL.
    pub url: String,
    /// Credentials.
    pub environment: Vec<(&'static str, String)>,
}

impl Place {
    /// A folder.
    pub fn folder(folder: &Path) -> Self {
        Self { url: format!("file://{}", folder.display()), environment: Vec::new() }
    }

    /// A bucket.
    pub fn bucket(bucket: &Bucket) -> Self {
        Self { url: bucket.url(), environment: bucket.environment() }
    }

    /// A bucket behind a proxy.
    pub fn bucket_behind(bucket: &Bucket, wire: &Wire) -> Self {
        Self { url: bucket.url(), environment: bucket.environment_at(&wire.address()) }
    }
}

/// A host with a store and a server of its own.
pub struct TieredHost {
    /// Its store.
    pub tarpon: Tarpon,
    registry: String,
    place: Option<Place>,
}

/// What a server has counted for a host that serves an image, or for its tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests.
    pub requests: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Requests that failed.
    pub failures: u64,
}

impl TieredHost {
    /// A host that mounts images of this registry, through a tier if one is named.
    pub fn new(registry: &str, place: Option<&Place>) -> Self {
        Self { tarpon: Tarpon::new().unwrap(), registry: registry.to_owned(), place: place.cloned() }
    }

    /// Where it mounts an image.
    pub fn root(&self, image: &SharedImage) -> PathBuf {
        self.mounts().join(image.name.replace([':', '/'], "-"))
    }

    fn mounts(&self) -> PathBuf {
        self.tarpon.store().with_file_name("mounts")
    }

    /// A command of the host; arguments follow.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = self.tarpon.command(subcommand);
        command.envs(self.place.iter().flat_map(|place| place.environment.clone()));
        command
    }

    /// The command that mounts an image.
    pub fn mount_command(&self, image: &SharedImage) -> Command {
        let mut mount = self.mount_command_without_tier(image);
        mount.args(self.place.iter().flat_map(|place| ["--tier", &place.url]));
        mount
    }

    /// The same without the tier, but with its credentials in the environment.
    pub fn mount_command_without_tier(&self, image: &SharedImage) -> Command {
        let (mut mount, root) = (self.command("mount"), self.root(image));
        fs::create_dir_all(&root).unwrap();
        mount.arg(format!("{}/{}", self.registry, image.name)).arg(root);
        mount
    }

    /// Mounts an image. Returns what the command prints beside that.
    pub fn mount(&self, image: &SharedImage) -> String {
        let Output { status, stderr, .. } = self.mount_command(image).output().unwrap();
        let notes = String::from_utf8_lossy(&stderr).into_owned();
        assert!(status.success(), "{notes}");
        notes
    }

    /// What is wrong with files of a mounted image: errors and wrong bytes.
    pub fn problems(&self, image: &SharedImage, files: &[(PathBuf, Digest)]) -> Vec<String> {
        let problem = |(path, digest): &(PathBuf, Digest)| match fs::read(self.root(image).join(path)) {
            Ok(bytes) if Digest::of(&bytes) == *digest => None,
            Ok(_) => Some(format!("{}: wrong bytes", path.display())),
            Err(error) => Some(format!("{}: {error}", path.display())),
        };
        files.iter().filter_map(problem).collect()
    }

    /// Fails if a file of a mounted image has other bytes, or cannot be read.
    pub fn check(&self, image: &SharedImage) {
        assert_eq!(self.problems(image, &image.files), [""; 0]);
    }

    /// The endpoint of this kind in the details of a mount.
    pub fn endpoint(&self, image: &SharedImage, kind: &str) -> Value {
        let shown = self.tarpon.run("status", &["--json", &self.root(image).to_string_lossy()]).unwrap();
        let status: Value = serde_json::from_str(&shown).unwrap();
        let endpoints = status["endpoints"].as_array().unwrap();
        endpoints.iter().find(|endpoint| endpoint["kind"] == kind).cloned().unwrap_or_default()
    }

    /// What was counted for the tier of a mount.
    pub fn counted(&self, image: &SharedImage) -> Counted {
        let endpoint = self.endpoint(image, "tier");
        let number = |name: &str| endpoint[name].as_u64().unwrap_or_default();
        Counted { requests: number("requests"), bytes: number("bytes"), failures: number("failures") }
    }
}

impl Drop for TieredHost {
    fn drop(&mut self) {
        let _ = self.tarpon.output("umount", &["--all", "--lazy"]);
        // Failed tests may leave a mount without a server.
        for mount in fs::read_dir(self.mounts()).into_iter().flatten().flatten() {
            let _ = rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Lets all hosts mount an image and read its files at the same time. Returns what each command printed.
pub fn start(hosts: &[TieredHost], image: &SharedImage) -> Vec<String> {
    let one = |host: &TieredHost| {
        let notes = host.mount(image);
        host.check(image);
        notes
    };
    thread::scope(|scope| {
        let threads: Vec<_> = hosts.iter().map(|host| scope.spawn(move || one(host))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Lets all hosts read an image's files at the same time. `fault` happens after the first quarter, during the second, and before the others.
pub fn read_through(hosts: &[TieredHost], image: &SharedImage, fault: impl FnOnce()) {
    let quarter = image.files.len() / 4;
    let (before, after) = image.files.split_at(quarter);
    let (during, after) = after.split_at(quarter);
    let together = Barrier::new(hosts.len() + 1);
    let one = |host: &TieredHost| {
        let mut problems = host.problems(image, before);
        together.wait();
        problems.extend(host.problems(image, during));
        together.wait();
        problems.extend(host.problems(image, after));
        problems
    };
    let problems: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = hosts.iter().map(|host| scope.spawn(move || one(host))).collect();
        together.wait();
        fault();
        together.wait();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(problems, [""; 0]);
}
