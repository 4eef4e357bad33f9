//! Many hosts behind the caches of `contrib/nginx`: what the registry sends, and what hosts read when the cache fails.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tarpon_harness::nginx::{Nginx, entrypoint};
use tarpon_registry::serve::Contents;
use tarpon_testkit::matrix;
use tarpon_testkit::registry::{Auth, FakeRegistry, PASSWORD, USER};
use tarpon_testkit::server::TestServer;
use tarpon_tests::disks::SmallDisk;
use tarpon_tests::mirrored::{IMAGE, MirroredHost, Mount, assert_hosts_cost_what_one_costs};
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
    assert_hosts_cost_what_one_costs(if matrix::is_full() { 12 } else { 4 }, egress);
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

/// The user of the container image of the cache.
const USER_ID: u32 = 10_001;

/// A file of the certificates that tests have.
fn certificate(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tls").join(name);
    file.canonicalize().unwrap().display().to_string()
}

#[test]
fn the_cache_of_the_container_image_serves_https_to_hosts_as_an_ordinary_user() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let wire = Wire::to(&registry).unwrap();
    let folder = real::scratch().unwrap();
    let mut program = entrypoint(folder.path()).unwrap();
    for name in ["server.crt", "server.key"] {
        let copy = folder.path().join(name);
        fs::copy(certificate(&format!("server/{name}")), &copy).unwrap();
        chown(copy, Some(USER_ID), Some(USER_ID)).unwrap();
    }
    chown(folder.path(), Some(USER_ID), Some(USER_ID)).unwrap();
    program.uid(USER_ID).gid(USER_ID);
    program.env("TARPON_TLS_CERTIFICATE", folder.path().join("server.crt"));
    program.env("TARPON_TLS_KEY", folder.path().join("server.key"));
    let nginx = Nginx::cache_by(program, &wire.address(), folder.path()).unwrap();
    let cache = Cache { nginx, _folder: folder };

    let line = Wire::to(&registry).unwrap();
    let text = format!(
        "[[registry]]\nprefix = 'images.example'\n[[registry.endpoint]]\nurl = 'https://{}'\nca = '{}'\n\
         headers = {{ X-Tenant = 'a' }}\ntimeout = '4s'\n",
        cache.address(),
        certificate("certs/ca.crt"),
    );
    let host = MirroredHost::with_endpoints(&line.address(), &text);
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    assert_eq!(line.bytes(), 0, "the cache sent everything");
    assert!(!cache.slices().is_empty() && wire.bytes() > 100_000, "by way of its slices");
    let status = host.tarpon.status().unwrap();
    assert_eq!(status[0]["endpoints"][0]["endpoint"], cache.address(), "{status}");
    // Its certificate is trusted by this entry alone.
    let without = MirroredHost::with_endpoints(&line.address(), &text.replace("ca = ", "# "));
    let mount = without.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    assert!(line.bytes() > 100_000, "the registry sent it");
    let status = without.tarpon.status().unwrap();
    let why = status[0]["endpoints"][0]["last_failure"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("certificate"), "{status}");
}

/// Runs the entry point with these variables, to check its configuration. Returns the exit code, what it printed, and the configuration.
fn rendered(variables: &[(&str, &str)]) -> (i32, String, String) {
    let folder = real::scratch().unwrap();
    let mut program = entrypoint(folder.path()).unwrap();
    let output = program.arg("-t").envs(variables.iter().copied()).output().unwrap();
    let conf = fs::read_to_string(folder.path().join("tarpon-cache.conf")).unwrap_or_default();
    let main = fs::read_to_string(folder.path().join("nginx.conf")).unwrap_or_default();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap(), main + &conf)
}

#[test]
fn the_entry_point_of_the_cache_renders_its_variables_into_a_configuration_that_nginx_accepts() {
    if is_skipped() {
        return;
    }
    let (certificate, key, ca) =
        (certificate("server/server.crt"), certificate("server/server.key"), certificate("certs/ca.crt"));
    let all = [
        ("TARPON_REGISTRY_URL", "https://127.0.0.1"),
        ("TARPON_REGISTRY_CA", &*ca),
        ("TARPON_LISTEN", "[::1]:5443"),
        ("TARPON_TLS_CERTIFICATE", &*certificate),
        ("TARPON_TLS_KEY", &*key),
        ("TARPON_RESOLVER", "10.0.0.2 fd00::53"),
        ("TARPON_CACHE_SIZE", "50g"),
        ("TARPON_CACHE_KEEP", "7d"),
        ("TARPON_WORKERS", "2"),
    ];
    let (code, printed, conf) = rendered(&all);
    assert_eq!(code, 0, "{printed}");
    for line in [
        "worker_processes 2;",
        "keys_zone=tarpon:25m max_size=50g inactive=7d",
        "server 127.0.0.1:443;",
        "listen [::1]:5443 ssl;",
        "resolver 10.0.0.2 [fd00::53] valid=60s;",
        "proxy_set_header Host 127.0.0.1;",
        "proxy_ssl_name 127.0.0.1;",
        "proxy_pass https://tarpon_registry;",
        &format!("proxy_ssl_trusted_certificate {ca};"),
    ] {
        assert!(conf.contains(line), "{line} is not in {conf}");
    }
    assert!(!conf.contains("docker.io;") && !conf.contains("/var/cache"), "{conf}");
    for (size, keys) in [("200g", "100m"), ("1g", "10m"), ("90000m", "45m"), ("100m", "10m")] {
        let (code, printed, conf) =
            rendered(&[("TARPON_REGISTRY_URL", "http://[::1]:5000"), ("TARPON_CACHE_SIZE", size)]);
        assert_eq!(code, 0, "{printed}");
        assert!(conf.contains(&format!("keys_zone=tarpon:{keys} max_size={size} ")), "{conf}");
        assert!(conf.contains("server [::1]:5000;") && conf.contains("proxy_pass http://tarpon_registry;"), "{conf}");
    }
}

#[test]
fn the_entry_point_of_the_cache_refuses_values_that_would_change_its_configuration() {
    for (variable, value) in [
        ("TARPON_REGISTRY_URL", "ftp://registry.example"),
        ("TARPON_REGISTRY_URL", "https://registry.example/path"),
        ("TARPON_REGISTRY_URL", "https://a;b"),
        ("TARPON_REGISTRY_URL", "https://user@registry.example"),
        ("TARPON_REGISTRY_CA", "ca.crt"),
        ("TARPON_LISTEN", "5000; access_log /etc/x"),
        ("TARPON_LISTEN", "5000\n5001"),
        ("TARPON_LISTEN", "5000\n;"),
        ("TARPON_TLS_CERTIFICATE", "/a b"),
        ("TARPON_TLS_KEY", "/a"),
        ("TARPON_RESOLVER", "name.example"),
        ("TARPON_RESOLVER", "1.2.3.4;"),
        ("TARPON_CACHE_SIZE", "0g"),
        ("TARPON_CACHE_SIZE", "10"),
        ("TARPON_CACHE_KEEP", "1y"),
        ("TARPON_KEYS_SIZE", "1g"),
        ("TARPON_WORKERS", "0"),
        ("TARPON_CACHE_DIR", "/a|b"),
        ("TARPON_RUN_DIR", "/a\"b"),
    ] {
        let (code, printed, conf) = rendered(&[(variable, value)]);
        assert_eq!((code, conf.as_str()), (2, ""), "{variable}={value}: {printed}");
        assert!(printed.starts_with("tarpon-cache: TARPON_"), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
}
