//! Hosts that share the layers of images through a tier.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Barrier;
use std::thread;

use serde_json::Value;
use tarpon_harness::bucket::{self, Bucket};
use tarpon_oci::Digest;
use tarpon_testkit::matrix;
use tempfile::TempDir;

use crate::real;
use crate::shared_image::{SharedImage, image};
use crate::tarpon::Tarpon;
use crate::wire::Wire;

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

    /// The details of a mount.
    pub fn status(&self, image: &SharedImage) -> Value {
        let shown = self.tarpon.run("status", &["--json", &self.root(image).to_string_lossy()]).unwrap();
        serde_json::from_str(&shown).unwrap()
    }

    /// The endpoint of this kind in the details of a mount.
    pub fn endpoint(&self, image: &SharedImage, kind: &str) -> Value {
        let status = self.status(image);
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

/// An empty folder that hosts share.
pub struct Shared(TempDir);

impl Shared {
    /// A new one.
    #[expect(clippy::new_without_default, reason = "it creates a folder")]
    pub fn new() -> Self {
        Self(real::scratch().unwrap())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// It as a tier.
    pub fn place(&self) -> Place {
        Place::folder(self.path())
    }

    /// As [`objects`].
    pub fn objects(&self, name: &str) -> Vec<PathBuf> {
        objects(self.path(), name)
    }
}

/// Objects of layers with this name in the folder of a tier; with `-` at its end, those whose names begin so.
pub fn objects(tier: &Path, name: &str) -> Vec<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = entries(&tier.join("v1/layers")).flat_map(|layer| entries(&layer).collect::<Vec<_>>());
    let is_meant = |found: &str| found == name || name.ends_with('-') && found.starts_with(name);
    all.filter(|object| is_meant(&object.file_name().unwrap().to_string_lossy())).collect()
}

/// An empty bucket and its folder.
pub struct SharedBucket {
    /// The bucket.
    pub bucket: Bucket,
    _folder: TempDir,
}

impl SharedBucket {
    /// `None`, with a line that gives the reason, if there is no server.
    pub fn new() -> Option<Self> {
        if let Some(reason) = bucket::missing() {
            println!("skipped: {reason}");
            return None;
        }
        let folder = real::scratch().unwrap();
        Some(Self { bucket: Bucket::start(folder.path()).unwrap(), _folder: folder })
    }
}

/// Whether these tests cannot run here; the reason is printed.
pub fn is_skipped() -> bool {
    let missing = real::missing();
    if let Some(reason) = &missing {
        println!("skipped: {reason}");
    }
    missing.is_some()
}

/// How many hosts start at the same time.
pub fn crowd() -> usize {
    if matrix::is_full() { 12 } else { 4 }
}

/// A proxy of the registry.
pub fn wire() -> Wire {
    Wire::to(&real::registry().unwrap()).unwrap()
}

/// New hosts that use the registry behind a proxy, and a tier.
pub fn hosts(count: usize, wire: &Wire, place: &Place) -> Vec<TieredHost> {
    (0..count).map(|_| TieredHost::new(&wire.address(), Some(place))).collect()
}

/// Lets a host copy an image to the tier.
pub fn fill(place: &Place, image: &SharedImage) {
    TieredHost::new(&real::registry().unwrap(), Some(place)).mount(image);
}

/// Hosts that have mounted [`image`] through the tier, which has all of its layers.
pub fn mounted(count: usize, wire: &Wire, place: &Place) -> Vec<TieredHost> {
    fill(place, image());
    let hosts = hosts(count, wire, place);
    hosts.iter().for_each(|host| drop(host.mount(image())));
    assert_none_requested(image(), wire);
    hosts
}

/// Fails if a shared layer was requested from the registry.
pub fn assert_none_requested(image: &SharedImage, wire: &Wire) {
    assert_eq!(image.requests(wire), vec![0; image.layers.len()], "the tier has the layers");
}
