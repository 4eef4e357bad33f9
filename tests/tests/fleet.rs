//! Many hosts behind the caches of `contrib/nginx`: what the registry sends, and what hosts read when the cache fails.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tarpon_harness::nginx::Nginx;
use tarpon_registry::serve::Contents;
use tarpon_testkit::matrix;
use tarpon_testkit::registry::{Auth, FakeRegistry, PASSWORD, USER};
use tarpon_testkit::server::TestServer;
use tarpon_tests::disks::SmallDisk;
use tarpon_tests::mirrored::{IMAGE, MirroredHost, Mount};
use tarpon_tests::real;
use tarpon_tests::wire::{Behaviour, Wire};
use tempfile::TempDir;

/// A running cache.
struct Cache {
    nginx: Nginx,
    _folder: TempDir,
}

impl Cache {
    fn of(registry: &str) -> Self {
        let folder = real::scratch().unwrap();
        Self { nginx: Nginx::cache(registry, folder.path()).unwrap(), _folder: folder }
    }

    fn address(&self) -> String {
        self.nginx.address()
    }

    /// Changes bytes in the middle and at the end of each slice in its cache. Returns how many slices there are.
    fn corrupt(&self) -> usize {
        let slices = self.slices();
        slices.iter().for_each(|slice| corrupt(slice));
        slices.len()
    }

    /// The files of its slices.
    fn slices(&self) -> Vec<PathBuf> {
        let mut slices = Vec::new();
        let mut folders = vec![self.nginx.folder().join("tarpon")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let list = if entry.file_type().unwrap().is_dir() { &mut folders } else { &mut slices };
                list.push(entry.path());
            }
        }
        slices
    }
}

/// Bytes of a slice.
const SLICE: u64 = 256 << 10;

/// Behind the head of nginx and the head of the response.
const HEADS: u64 = 2 << 10;

fn corrupt(file: &Path) {
    let mut file = fs::File::options().read(true).write(true).open(file).unwrap();
    let length = file.metadata().unwrap().len();
    for at in (HEADS..length).step_by(1 << 10) {
        let mut byte = [0];
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut byte).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[byte[0] ^ 1]).unwrap();
    }
}

fn is_skipped() -> bool {
    let missing = real::missing().or_else(|| (!real::have(&["nginx"])).then(|| "nginx is not installed".to_owned()));
    if let Some(reason) = &missing {
        eprintln!("skipped: {reason}");
    }
    missing.is_some()
}

/// What the registry sent while this many hosts started the image at the same time through a new cache.
fn egress(hosts: usize, expected: &Mount, registry: &str) -> u64 {
    let wire = Wire::to(registry).unwrap();
    let cache = Cache::of(&wire.address());
    start(hosts, &wire, &cache.address(), expected);
    wire.bytes()
}

/// Lets new hosts, at the same time, mount the image through the mirror and read from it.
fn start(hosts: usize, registry: &Wire, mirror: &str, expected: &Mount) {
    let hosts: Vec<_> = (0..hosts).map(|_| MirroredHost::new(&registry.address(), mirror)).collect();
    thread::scope(|scope| {
        for host in &hosts {
            scope.spawn(|| host.mount("base:zstdchunked", &[]).check("usr/bin", expected));
        }
    });
}

#[test]
fn hosts_behind_the_cache_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let plain = MirroredHost::new(&registry, &registry);
    let expected = plain.mount_plain(&registry);
    let hosts = if matrix::is_full() { 12 } else { 4 };
    let one = egress(1, &expected, &registry);
    let all = egress(hosts, &expected, &registry);
    println!("the registry sent {one} bytes for one host and {all} for {hosts}");
    // Tags and manifests are not cached.
    assert!(all * 10 <= one * 11, "{all} bytes for {hosts} hosts, {one} for one");
}

/// Three caches and a balancer, with a line to each.
struct Caches {
    balancer: Nginx,
    caches: [(Cache, Wire); 3],
    _folder: TempDir,
}

impl Caches {
    fn of(registry: &str) -> Self {
        let caches: [(Cache, Wire); 3] = std::array::from_fn(|_| {
            let cache = Cache::of(registry);
            let line = Wire::to(&cache.address()).unwrap();
            (cache, line)
        });
        let addresses = caches.each_ref().map(|(_, line)| line.address());
        let folder = real::scratch().unwrap();
        let balancer = Nginx::balancer(addresses.each_ref().map(String::as_str), folder.path()).unwrap();
        Self { balancer, caches, _folder: folder }
    }

    /// The number of slices in all caches but one.
    fn slices_beside(&self, at: usize) -> usize {
        let others = self.caches.iter().enumerate().filter(|(number, _)| *number != at);
        others.map(|(_, (cache, _))| cache.slices().len()).sum()
    }
}

#[test]
fn each_blob_is_on_one_of_several_caches_and_moves_when_that_one_fails() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let plain = MirroredHost::new(&registry, &registry);
    let expected = plain.mount_plain(&registry);
    let one = egress(1, &expected, &registry);
    for failure in [Behaviour::Dead, Behaviour::Silent] {
        let wire = Wire::to(&registry).unwrap();
        let caches = Caches::of(&wire.address());
        let mirror = caches.balancer.address();
        start(4, &wire, &mirror, &expected);
        assert!(wire.bytes() * 10 <= one * 11, "{} bytes for 4 hosts, {one} for one", wire.bytes());
        let at = caches.caches.iter().position(|(cache, _)| !cache.slices().is_empty()).unwrap();
        caches.caches[at].1.behave(failure);
        let before = caches.slices_beside(at);
        start(1, &wire, &mirror, &expected);
        assert!(caches.slices_beside(at) > before, "{failure:?}: another cache has its blobs now");
    }
}

#[test]
fn a_cache_that_dies_during_reads_costs_no_error() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let mut cache = Cache::of(&registry);
    let host = MirroredHost::new(&registry, &cache.address());
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    cache.nginx.kill();
    mount.check("usr/sbin", &expected);
}

#[test]
fn a_cache_that_falls_silent_during_reads_costs_no_error() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let cache = Cache::of(&registry);
    let line = Wire::to(&cache.address()).unwrap();
    let host = MirroredHost::new(&registry, &line.address());
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    line.behave(Behaviour::Silent);
    mount.check("usr/sbin", &expected);
}

#[test]
fn a_cache_whose_disk_is_full_costs_no_error() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    // Less than four slices with their heads.
    let disk = SmallDisk::of(1 << 20);
    let cache = Nginx::cache(&registry, disk.path()).unwrap();
    let host = MirroredHost::new(&registry, &cache.address());
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    for folder in ["usr/bin", "usr/sbin", "usr/lib/x86_64-linux-gnu"] {
        mount.check(folder, &expected);
    }
    let free = rustix::fs::statvfs(disk.path()).unwrap();
    assert!(free.f_bavail * free.f_frsize < SLICE, "there is room for another slice");
}

#[test]
fn a_damaged_cache_costs_no_wrong_byte() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let cache = Cache::of(&registry);
    let first = MirroredHost::new(&registry, &cache.address());
    let expected = first.mount_plain(&registry);
    first.mount("base:zstdchunked", &[]).check("usr/bin", &expected);
    assert!(cache.corrupt() > 0, "the cache has slices");
    let second = MirroredHost::new(&registry, &cache.address());
    second.mount("base:zstdchunked", &[]).check("usr/bin", &expected);
}

/// Reads a range through the cache. Returns the status of the response and its body.
fn get(cache: &Cache, path: &str, user: Option<&str>) -> (String, Vec<u8>) {
    let body = cache.nginx.folder().join("body");
    let mut curl = Command::new("curl");
    curl.args(["-s", "-r", "100000-699999", "-w", "%{http_code}", "-o"]).arg(&body);
    curl.args(user.map(|user| ["-u", user]).into_iter().flatten());
    let status = real::run(curl.arg(format!("http://{}/v2/{path}", cache.address()))).unwrap();
    (status, fs::read(body).unwrap())
}

#[test]
fn a_cached_blob_is_for_clients_that_the_registry_admits_also_where_it_redirects() {
    if is_skipped() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for presigned in [None, Some(Duration::from_secs(600))] {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let mut contents = Contents::new();
        let digest = contents.add_blob(bytes.clone());
        let model = Arc::new(FakeRegistry::new(contents, Auth::Basic, presigned));
        let registry = runtime.block_on(TestServer::start(model)).unwrap();
        let cache = Cache::of(&registry.host());
        let path = format!("app/blobs/{digest}");
        let user = format!("{USER}:{PASSWORD}");
        for user in [None, Some("other:wrong")] {
            assert_eq!(get(&cache, &path, user).0, "401", "before it is cached");
        }
        assert_eq!(get(&cache, &path, Some(&user)), ("206".to_owned(), bytes[100_000..700_000].to_vec()));
        let sent = registry.stats().bytes;
        assert_eq!(get(&cache, &path, Some(&user)), ("206".to_owned(), bytes[100_000..700_000].to_vec()));
        assert!(registry.stats().bytes < sent + 10_000, "it is cached");
        for user in [None, Some("other:wrong")] {
            assert_eq!(get(&cache, &path, user).0, "401", "when it is cached");
        }
        let missing = format!("app/blobs/{}", tarpon_oci::Digest::of(b"missing"));
        // A registry that redirects does so before it looks for the blob.
        let refused = if presigned.is_some() { "404" } else { "403" };
        assert_eq!(get(&cache, &missing, Some(&user)).0, refused);
    }
}

#[test]
fn a_cached_blob_is_not_sent_from_a_repository_that_lacks_it() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let cache = Cache::of(&registry);
    let manifest = real::run(Command::new("skopeo").args([
        "inspect",
        "--raw",
        "--tls-verify=false",
        &format!("docker://{registry}/{IMAGE}:gzip"),
    ]));
    let manifest: serde_json::Value = serde_json::from_str(&manifest.unwrap()).unwrap();
    let digest = manifest["layers"][0]["digest"].as_str().unwrap();
    assert_eq!(get(&cache, &format!("{IMAGE}/blobs/{digest}"), None).0, "206");
    assert_eq!(get(&cache, &format!("another/repository/blobs/{digest}"), None).0, "403");
}
