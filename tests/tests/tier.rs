//! Hosts that share layers through a tier: what the registry sends, who can use a tier, and where its credentials are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tarpon_oci::Digest;
use tarpon_testkit::{matrix, processes};
use tarpon_tests::manager::Manager;
use tarpon_tests::ordinary::{self, Ordinary};
use tarpon_tests::real;
use tarpon_tests::shared_image::{SharedImage, image, other_image, real_image};
use tarpon_tests::tiered::{
    Place, Shared, SharedBucket, TieredHost, assert_none_requested, crowd, fill, hosts, is_skipped, mounted,
    read_through, start, wire,
};
use tarpon_tests::wait::wait_for;
use tarpon_tests::wire::Behaviour;

/// What takes longer hangs.
const HUNG: Duration = Duration::from_secs(120);

/// Hosts that start together transfer each layer once, and later ones transfer none.
fn storm(image: &SharedImage, place: &Place, what: &str) {
    let alone = wire();
    start(&[TieredHost::new(&alone.address(), None)], image);
    let wire = wire();
    let notes = start(&hosts(crowd(), &wire, place), image);
    let (one, all, requests) = (alone.bytes(), wire.bytes(), image.requests(&wire));
    println!(
        "{}, {what}: the registry sent {one} bytes for one host without a tier, and {all} for {} with it, {requests:?} requests for its layers; notes of \
         the hosts: {notes:#?}",
        image.name,
        crowd()
    );
    assert!(one >= image.bytes, "{one} bytes");
    assert!(all * 10 <= one * 11, "{all} bytes for {} hosts, {one} for one", crowd());
    assert_eq!(requests, vec![1; image.layers.len()], "each layer is requested once");
    start(&hosts(2, &wire, place), image);
    assert_eq!(image.requests(&wire), vec![1; image.layers.len()], "later hosts request no layer");
}

#[test]
fn hosts_that_share_a_folder_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    storm(real_image(), &Shared::new().place(), "a folder");
    if matrix::is_full() {
        storm(image(), &Shared::new().place(), "a folder");
    }
}

#[test]
fn hosts_that_share_a_bucket_cost_the_registry_what_one_costs() {
    if is_skipped() {
        return;
    }
    let images = if matrix::is_full() { vec![image(), real_image()] } else { vec![image()] };
    for image in images {
        let Some(shared) = SharedBucket::new() else { return };
        storm(image, &Place::bucket(&shared.bucket), &format!("{:?}", shared.bucket.server()));
    }
}

fn server(host: &TieredHost) -> Pid {
    wait_for(HUNG, "a server runs", || processes::servers(&host.tarpon.store()).first().copied())
}

fn kill(process: Pid) {
    kill_process(process, Signal::KILL).unwrap();
}

/// The other image of the tier, which is mounted later, is also read from there.
fn check_that_the_tier_is_used(host: &TieredHost) {
    host.mount(other_image());
    host.check(other_image());
    assert!(host.counted(other_image()).bytes > 0);
}

#[test]
fn the_successor_of_a_server_that_is_killed_while_programs_read_uses_the_tier() {
    if is_skipped() {
        return;
    }
    let Some(shared) = SharedBucket::new() else { return };
    let (wire, place) = (wire(), Place::bucket(&shared.bucket));
    fill(&place, other_image());
    let hosts = mounted(2, &wire, &place);
    let servers: Vec<_> = hosts.iter().map(server).collect();
    read_through(&hosts, image(), || servers.iter().copied().for_each(kill));
    for (host, killed) in hosts.iter().zip(servers) {
        check_that_the_tier_is_used(host);
        assert_ne!(server(host), killed);
    }
    assert_none_requested(image(), &wire);
    assert_none_requested(other_image(), &wire);
}

#[test]
fn the_successor_of_a_worker_that_is_killed_while_programs_read_uses_the_tier() {
    if is_skipped() {
        return;
    }
    for place in [None, Some(Shared::new())] {
        let bucket = if place.is_none() { SharedBucket::new() } else { None };
        let place = place.as_ref().map(Shared::place).or_else(|| Some(Place::bucket(&bucket.as_ref()?.bucket)));
        let (Some(place), wire) = (place, wire()) else { continue };
        fill(&place, other_image());
        let hosts = mounted(2, &wire, &place);
        read_through(&hosts, image(), || {
            hosts.iter().flat_map(|host| processes::workers_of(server(host))).for_each(kill);
        });
        hosts.iter().for_each(check_that_the_tier_is_used);
        assert_none_requested(image(), &wire);
        assert_none_requested(other_image(), &wire);
    }
}

#[test]
fn an_ordinary_user_uses_a_folder() {
    if let Some(reason) = ordinary::missing() {
        return println!("skipped: {reason}");
    }
    let (anna, wire, image) = (Ordinary::new().unwrap(), wire(), image());
    let tier = format!("file://{}/shared", anna.home().display());
    anna.run("mkdir", &["shared"]).unwrap();
    for host in ["first", "second"] {
        anna.run("mkdir", &[host]).unwrap();
        let (store, name) = (format!("store-{host}"), format!("{}/{}", wire.address(), image.name));
        anna.tarpon(&["--store", &store, "mount", "--tier", &tier, &name, host]).unwrap();
        let paths: Vec<String> = image.files.iter().map(|(path, _)| format!("{host}/{}", path.display())).collect();
        let sums = anna.run("sha256sum", &paths.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        let sums: Vec<Digest> = sums.lines().map(|line| format!("sha256:{}", &line[..64]).parse().unwrap()).collect();
        assert_eq!(sums, image.files.iter().map(|(_, digest)| *digest).collect::<Vec<_>>());
        assert_eq!(image.requests(&wire), vec![1; image.layers.len()], "the first host has streamed the layers");
    }
    let shown = anna.tarpon(&["--store", "store-second", "status", "--json", "second"]).unwrap();
    let status: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(status["endpoints"][0]["kind"], "tier");
    assert!(status["endpoints"][0]["bytes"].as_u64().unwrap() > image.bytes / 2, "{shown}");
}

/// A daemon of a host. Dropping it ends it.
struct Daemon<'a> {
    host: &'a TieredHost,
    process: Child,
}

impl<'a> Daemon<'a> {
    fn start(host: &'a TieredHost, tier: &Place) -> Self {
        let mut command = host.command("daemon");
        command.args(["--tier", &tier.url, "--listen", &format!("unix://{}", Self::socket(host).display())]);
        let process = Manager::new(&host.tarpon.store().with_file_name("notify.sock")).start(&mut command);
        Self { host, process }
    }

    fn socket(host: &TieredHost) -> PathBuf {
        host.tarpon.store().with_file_name("api.sock")
    }

    /// The status of the answer, and its body.
    fn post(&self, path: &str, body: &Value) -> (String, String) {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-w", "\n%{http_code}", "--unix-socket"]).arg(Self::socket(self.host));
        let answer = real::run(curl.args(["-d", &body.to_string(), &format!("http://localhost{path}")])).unwrap();
        let (body, status) = answer.rsplit_once('\n').unwrap();
        (status.to_owned(), body.to_owned())
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.host.tarpon.output("umount", &["--all", "--lazy"]);
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

#[test]
fn a_daemon_uses_its_tier_for_all_requests_and_none_can_name_one() {
    if is_skipped() {
        return;
    }
    if !real::have(&["curl"]) {
        return println!("skipped: curl is not installed");
    }
    let (shared, others, wire, image) = (Shared::new(), Shared::new(), wire(), image());
    fill(&shared.place(), image);
    let host = TieredHost::new(&wire.address(), None);
    let daemon = Daemon::start(&host, &shared.place());
    let root = host.root(image);
    fs::create_dir_all(&root).unwrap();
    let name = format!("{}/{}", wire.address(), image.name);
    let mut wish = json!({"image": name, "mountpoint": root.canonicalize().unwrap()});
    wish["tier"] = others.place().url.into();
    let (status, body) = daemon.post("/v1/mounts", &wish);
    assert!(status.starts_with('4') && body.contains("tier"), "{status} {body}");
    wish.as_object_mut().unwrap().remove("tier");
    let (status, body) = daemon.post("/v1/mounts", &wish);
    assert_eq!(status, "201", "{body}");
    host.check(image);
    assert_none_requested(image, &wire);
    assert!(host.counted(image).bytes > image.bytes / 2);
    assert_eq!(fs::read_dir(others.path()).unwrap().count(), 0);
}

/// A file of a process, if it still runs.
fn of_process(process: Pid, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{}/{file}", process.as_raw_nonzero())).unwrap_or_default()
}

fn has(bytes: &[u8], secret: &str) -> bool {
    bytes.windows(secret.len()).any(|part| part == secret.as_bytes())
}

/// Fails if a file below the folder has the secret.
fn assert_in_no_file(secret: &str, folder: &Path) {
    let found = Command::new("grep").args(["-rlF", "--devices=skip", secret]).arg(folder).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    assert_eq!(found.status.code(), Some(1), "{}", String::from_utf8_lossy(&found.stderr));
}

fn assert_in_no_command_line(secret: &str) {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let processes = numbers.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    for process in processes {
        let line = of_process(process, "cmdline");
        assert!(!has(&line, secret), "{}", String::from_utf8_lossy(&line));
    }
}

#[test]
fn the_secret_of_a_bucket_is_in_no_file_no_command_line_and_no_environment_of_a_worker() {
    if is_skipped() {
        return;
    }
    let Some(shared) = SharedBucket::new() else { return };
    let (wire, place) = (wire(), Place::bucket(&shared.bucket));
    let secret = place.environment.iter().find(|(name, _)| *name == "AWS_SECRET_ACCESS_KEY").unwrap().1.clone();
    let host = TieredHost::new(&wire.address(), Some(&place));
    // While an image is prepared, with all that is logged.
    wire.behave(Behaviour::SilentAfter(1 << 20));
    let mut mount = host.mount_command(other_image());
    let mount = mount.env("RUST_LOG", "debug").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(HUNG, "a layer is streamed", || (wire.bytes() >= 1 << 20).then_some(()));
    let client = Pid::from_child(&mount);
    assert!(has(&of_process(client, "environ"), &secret), "this test finds it where it is");
    let workers = processes::workers_of(client);
    assert!(!workers.is_empty());
    workers.iter().for_each(|worker| assert!(!has(&of_process(*worker, "environ"), &secret)));
    assert_in_no_command_line(&secret);
    wire.behave(Behaviour::Honest);
    let output = mount.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.len() > 1000, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!has(&output.stderr, &secret) && !has(&output.stdout, &secret));
    // While images are read, one of them without the tier.
    fill(&place, image());
    host.mount(image());
    real::run(&mut host.mount_command_without_tier(real_image())).unwrap();
    [image(), other_image(), real_image()].into_iter().for_each(|image| host.check(image));
    assert!(host.counted(image()).bytes > 0 && host.endpoint(real_image(), "tier").is_null());
    let server = server(&host);
    assert!(has(&of_process(server, "environ"), &secret), "it reads the tier");
    let workers = processes::workers_of(server);
    assert!(!workers.is_empty());
    workers.iter().for_each(|worker| assert!(!has(&of_process(*worker, "environ"), &secret)));
    assert_in_no_command_line(&secret);
    let log = fs::read(host.tarpon.store().join("run/server.log")).unwrap();
    assert!(!log.is_empty() && !has(&log, &secret));
    assert_in_no_file(&secret, &host.tarpon.store());
}
