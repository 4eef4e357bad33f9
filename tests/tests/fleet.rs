//! Many hosts behind the cache of `contrib/nginx`: what the registry sends, and what hosts read when the cache fails.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tarpon_registry::serve::Contents;
use tarpon_testkit::matrix;
use tarpon_testkit::registry::{Auth, FakeRegistry, PASSWORD, USER};
use tarpon_testkit::server::TestServer;
use tarpon_tests::mirrored::{IMAGE, MirroredHost, Mount};
use tarpon_tests::real;
use tarpon_tests::wait::wait_for;
use tarpon_tests::wire::Wire;
use tempfile::TempDir;

/// The file that is shipped.
const CONF: &str = include_str!("../../contrib/nginx/tarpon-cache.conf");

/// How long nginx may take to listen.
const START: Duration = Duration::from_secs(10);

/// The registry in the file, and Docker Hub's host in it.
const REGISTRY: &str = "registry-1.docker.io";

/// A running cache.
struct Cache {
    nginx: Child,
    address: String,
    folder: TempDir,
}

impl Cache {
    /// Starts the cache as it is shipped, but for the registry, which speaks plain HTTP, and for its folders.
    fn of(registry: &str) -> Self {
        let folder = real::scratch().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let here = folder.path().display().to_string();
        let edits = [
            (format!("{REGISTRY}:443"), registry.to_owned()),
            ("https://tarpon_registry".to_owned(), "http://tarpon_registry".to_owned()),
            (REGISTRY.to_owned(), registry.to_owned()),
            ("/var/cache/nginx".to_owned(), here.clone()),
            ("listen 5000".to_owned(), format!("listen {address}")),
        ];
        let conf = edits.iter().fold(CONF.to_owned(), |conf, (from, to)| {
            assert!(conf.contains(from), "{from}");
            conf.replace(from, to)
        });
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String = temporary.iter().map(|kind| format!("{kind}_temp_path {here}/{kind};")).collect();
        let main = format!(
            "worker_processes 1; daemon off; user root; pid {here}/pid; error_log {here}/error.log warn;\n\
             events {{ worker_connections 1024; }}\nhttp {{ access_log off; {temporary}\n{conf}\n}}"
        );
        fs::write(folder.path().join("nginx.conf"), main).unwrap();
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf"));
        let nginx = nginx.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        wait_for(START, "nginx listens", || TcpStream::connect(&address).ok());
        Self { nginx, address, folder }
    }

    /// Ends it as a crash of its machine would.
    fn kill(&mut self) {
        let pid = self.nginx.id().to_string();
        // Its workers are processes of their own, whose parent it is.
        let workers = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for process in workers.split_whitespace().chain([pid.as_str()]) {
            // A worker may have ended with its parent.
            let _ = Command::new("kill").args(["-KILL", process]).stderr(Stdio::null()).status();
        }
        let _ = self.nginx.wait();
    }

    /// Changes bytes in the middle and at the end of each slice in its cache. Returns how many slices there are.
    fn corrupt(&self) -> usize {
        let mut slices = 0;
        let mut folders = vec![self.folder.path().join("tarpon")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    corrupt(&entry.path());
                    slices += 1;
                }
            }
        }
        slices
    }
}

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

impl Drop for Cache {
    fn drop(&mut self) {
        self.kill();
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
    let hosts: Vec<_> = (0..hosts).map(|_| MirroredHost::new(&wire.address(), &cache.address)).collect();
    thread::scope(|scope| {
        for host in &hosts {
            scope.spawn(|| host.mount("base:zstdchunked", &[]).check("usr/bin", expected));
        }
    });
    wire.bytes()
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

#[test]
fn a_cache_that_dies_during_reads_costs_no_error() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let mut cache = Cache::of(&registry);
    let host = MirroredHost::new(&registry, &cache.address);
    let expected = host.mount_plain(&registry);
    let mount = host.mount("base:zstdchunked", &[]);
    mount.check("usr/bin", &expected);
    cache.kill();
    mount.check("usr/sbin", &expected);
}

#[test]
fn a_damaged_cache_costs_no_wrong_byte() {
    if is_skipped() {
        return;
    }
    let registry = real::registry().unwrap();
    let cache = Cache::of(&registry);
    let first = MirroredHost::new(&registry, &cache.address);
    let expected = first.mount_plain(&registry);
    first.mount("base:zstdchunked", &[]).check("usr/bin", &expected);
    assert!(cache.corrupt() > 0, "the cache has slices");
    let second = MirroredHost::new(&registry, &cache.address);
    second.mount("base:zstdchunked", &[]).check("usr/bin", &expected);
}

/// Reads a range through the cache. Returns the status of the response and its body.
fn get(cache: &Cache, path: &str, user: Option<&str>) -> (String, Vec<u8>) {
    let body = cache.folder.path().join("body");
    let mut curl = Command::new("curl");
    curl.args(["-s", "-r", "100000-699999", "-w", "%{http_code}", "-o"]).arg(&body);
    curl.args(user.map(|user| ["-u", user]).into_iter().flatten());
    let status = real::run(curl.arg(format!("http://{}/v2/{path}", cache.address))).unwrap();
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
