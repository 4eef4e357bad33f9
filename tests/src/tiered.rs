//! Hosts that share the layers of an image through a tier.

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
/// Large layers of the image that is made here: bytes of each file. The first one has more bytes than one part of an upload.
const LAYERS: [usize; 3] = [768 << 10, 320 << 10, 320 << 10];
/// Files of each of them.
const FILES_OF_LAYER: usize = 16;
/// A reader can begin at each member of a layer.
const MEMBER: usize = 256 << 10;

/// An image without tables of contents and without indexes, in the registry of the images.
pub struct SharedImage {
    /// REPOSITORY:TAG.
    pub name: String,
    /// Files and the digests of their contents, of all layers in turn.
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

    /// An image of large files, whose layers are fetched in many requests.
    pub fn made(registry: &str) -> Self {
        let (mut layers, mut files) = (Vec::new(), Vec::new());
        for (number, size) in LAYERS.into_iter().enumerate() {
            let item =
                |file| Item::file(format!("layer-{number}/file-{file}"), noise(number * FILES_OF_LAYER + file, size));
            let items: Vec<Item> = (0..FILES_OF_LAYER).map(item).collect();
            let digest = |(file, item): (usize, &Item)| {
                (file, PathBuf::from(format!("layer-{number}/file-{file}")), Digest::of(item.content()))
            };
            files.extend(items.iter().enumerate().map(digest));
            layers.push(layer(&items));
        }
        layers.push(Layer::gzip(&[Item::file("small", b"too small to be shared")]));
        files.sort_by_key(|(file, _, _)| *file);
        let (folder, name) = (real::scratch().unwrap(), format!("{REPOSITORY}/made:v1"));
        let layout = folder.path().join("layout");
        Image::of(layers).write_layout("v1", &layout);
        copy(&format!("oci:{}:v1", layout.display()), registry, &name);
        Self::of(registry, name, files.into_iter().map(|(_, path, digest)| (path, digest)).collect())
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
    Layer { blob: gzip_members(&tar, MEMBER), ..Layer::plain(&tar, Compression::Gzip) }
}

/// Bytes that do not compress.
fn noise(seed: usize, size: usize) -> Vec<u8> {
    let first = (seed as u64) << 32;
    (0..size as u64 / 8).flat_map(|word| scatter(first | word).to_le_bytes()).collect()
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

/// A host with a store and a server of its own, and one mount point.
pub struct TieredHost {
    /// Its store.
    pub tarpon: Tarpon,
    image: String,
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
    /// A host that mounts the image from this registry, through a tier if one is named.
    pub fn new(registry: &str, image: &SharedImage, place: Option<&Place>) -> Self {
        let host =
            Self { tarpon: Tarpon::new().unwrap(), image: format!("{registry}/{}", image.name), place: place.cloned() };
        fs::create_dir(host.root()).unwrap();
        host
    }

    /// Where it mounts the image.
    pub fn root(&self) -> PathBuf {
        self.tarpon.store().with_file_name("mnt")
    }

    /// A command of the host; arguments follow.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = self.tarpon.command(subcommand);
        command.envs(self.place.iter().flat_map(|place| place.environment.clone()));
        command
    }

    /// The command that mounts the image.
    pub fn mount_command(&self) -> Command {
        let mut mount = self.command("mount");
        mount.args(self.place.iter().flat_map(|place| ["--tier", &place.url]));
        mount.arg(&self.image).arg(self.root());
        mount
    }

    /// Mounts the image. Returns what the command prints beside that.
    pub fn mount(&self) -> String {
        let Output { status, stderr, .. } = self.mount_command().output().unwrap();
        let notes = String::from_utf8_lossy(&stderr).into_owned();
        assert!(status.success(), "{notes}");
        notes
    }

    /// What is wrong with these files: errors and wrong bytes.
    pub fn problems(&self, files: &[(PathBuf, Digest)]) -> Vec<String> {
        let problem = |(path, digest): &(PathBuf, Digest)| match fs::read(self.root().join(path)) {
            Ok(bytes) if Digest::of(&bytes) == *digest => None,
            Ok(_) => Some(format!("{}: wrong bytes", path.display())),
            Err(error) => Some(format!("{}: {error}", path.display())),
        };
        files.iter().filter_map(problem).collect()
    }

    /// Fails if one of these files has other bytes, or cannot be read.
    pub fn check(&self, files: &[(PathBuf, Digest)]) {
        assert_eq!(self.problems(files), [""; 0]);
    }

    /// The endpoint of this kind in the details of the mount.
    pub fn endpoint(&self, kind: &str) -> Value {
        let shown = self.tarpon.run("status", &["--json", &self.root().to_string_lossy()]).unwrap();
        let status: Value = serde_json::from_str(&shown).unwrap();
        let endpoints = status["endpoints"].as_array().unwrap();
        endpoints.iter().find(|endpoint| endpoint["kind"] == kind).cloned().unwrap_or_default()
    }

    /// What was counted for it.
    pub fn counted(&self, kind: &str) -> Counted {
        let endpoint = self.endpoint(kind);
        let number = |name: &str| endpoint[name].as_u64().unwrap_or_default();
        Counted { requests: number("requests"), bytes: number("bytes"), failures: number("failures") }
    }
}

impl Drop for TieredHost {
    fn drop(&mut self) {
        let root = self.root();
        let _ = self.tarpon.output("umount", &["--lazy", &root.to_string_lossy()]);
        // Failed tests may leave a mount without a server.
        let _ = rustix::mount::unmount(&root, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Lets all hosts mount the image and read its files at the same time. Returns what each command printed.
pub fn start(hosts: &[TieredHost], image: &SharedImage) -> Vec<String> {
    let one = |host: &TieredHost| {
        let notes = host.mount();
        host.check(&image.files);
        notes
    };
    thread::scope(|scope| {
        let threads: Vec<_> = hosts.iter().map(|host| scope.spawn(move || one(host))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Lets all hosts read the files at the same time. `fault` happens after the first quarter, during the second, and before the others.
pub fn read_through(hosts: &[TieredHost], files: &[(PathBuf, Digest)], fault: impl FnOnce()) {
    let quarter = files.len() / 4;
    let (before, after) = files.split_at(quarter);
    let (during, after) = after.split_at(quarter);
    let together = Barrier::new(hosts.len() + 1);
    let one = |host: &TieredHost| {
        let mut problems = host.problems(before);
        together.wait();
        problems.extend(host.problems(during));
        together.wait();
        problems.extend(host.problems(after));
        problems
    };
    let problems: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = hosts.iter().map(|host| scope.spawn(move || one(host))).collect();
        together.wait();
        fault();
        together.wait();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    if !problems.is_empty() {
        for host in hosts {
            println!("LOG {}", fs::read_to_string(host.tarpon.store().join("run/server.log")).unwrap());
            println!("{}", host.tarpon.run("why", &[&host.root().to_string_lossy()]).unwrap());
        }
    }
    assert_eq!(problems, [""; 0]);
}
