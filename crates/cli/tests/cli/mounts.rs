//! The life of mounts, as users and scripts see it, with the real kernel: needs root and /dev/fuse, and is skipped
//! without.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use tarpon_registry::serve::Contents;
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::layers::{Image, ImageBuilder, Item, Layer};
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::world::World;

/// A world in which images are mounted. Dropping it unmounts everything and ends its servers.
pub(crate) struct MountFixture(World);

impl std::ops::Deref for MountFixture {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Drop for MountFixture {
    fn drop(&mut self) {
        self.output(&["umount", "--all", "--lazy"]);
        for mount in self.mounts() {
            let _gone = rustix::mount::unmount(&mount, UnmountFlags::DETACH);
        }
    }
}

impl MountFixture {
    /// Without a registry.
    pub(crate) fn new() -> Option<Self> {
        can_mount().then(|| Self(World::new()))
    }

    /// With `app:v1` in a registry.
    pub(crate) fn serving(auth: Auth) -> Option<Self> {
        can_mount().then(|| {
            let mut contents = Contents::new();
            lazy_image("hello\n").add_to(&mut contents, "app", "v1");
            Self(World::serving(contents, auth))
        })
    }

    /// The mounts in its folder, the topmost last.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("there");
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        points.filter(|point| point.starts_with(self.path(""))).collect()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.stdout(arguments)).expect("JSON")
    }

    /// Kills the server of the store and its holder, and waits until the kernel has released the server's lock.
    pub(crate) fn kill_server(&self) {
        tarpon_testkit::processes::kill_with_holder(&self.path("store"), self.server_process());
        self.wait_for_server_to_end();
    }

    /// The server of the store, which has mounted something.
    pub(crate) fn server_process(&self) -> Pid {
        let mounts = self.json(&["status", "--json"]);
        let mut alive = mounts.as_array().expect("mounts").iter().filter(|mount| mount["alive"] == true);
        let pid = alive.next().and_then(|mount| mount["server"].as_i64()).expect("a server");
        Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0")
    }

    pub(crate) fn wait_for_server_to_end(&self) {
        let lock = std::fs::File::open(self.path("store/run/server.lock")).expect("there");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("it ends");
        // Closing is not enough: another test may just be forking, and the inherited descriptor would keep the next server from starting.
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::Unlock).expect("it was ours");
    }

    /// Uppers that are kept for mounts.
    fn uppers(&self) -> usize {
        std::fs::read_dir(self.path("store/run/mounts")).expect("there").count()
    }
}

/// An image whose file data is fetched when it is read.
fn lazy_image(content: &str) -> Image {
    let items = [Item::directory("etc"), Item::file("etc/hello", content), Item::symlink("bin", "etc")];
    Image::of([Layer::estargz(&items)])
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn of_concurrent_mounts_on_one_directory_one_succeeds() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    let point = fixture.directory("mnt");
    fixture.stdout(&["--quiet", "ls", "HOST/app:v1"]);
    for round in 0..5 {
        let mut commands: Vec<Command> =
            (0..4).map(|_| fixture.command(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"])).collect();
        let children: Vec<_> = commands.iter_mut().map(|command| command.spawn().expect("it runs")).collect();
        let codes: Vec<_> = children.into_iter().map(|mut child| child.wait().expect("it ends").code()).collect();
        assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "round {round}: {codes:?}");
        assert_eq!(fixture.mounts(), std::slice::from_ref(&point), "round {round}");
        assert_eq!(fixture.json(&["status", "--json"])[0]["alive"], true, "round {round}");
        fixture.stdout(&["umount", "TMP/mnt"]);
        assert!(fixture.mounts().is_empty(), "round {round}");
    }
}

#[test]
fn a_mount_over_an_image_is_not_removed_with_it() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    let point = fixture.directory("mnt");
    fixture.stdout(&["mount", "HOST/app:v1", "TMP/mnt"]);
    rustix::mount::mount("tmpfs", &point, "tmpfs", MountFlags::empty(), None).expect("mounted");
    std::fs::write(point.join("precious"), "data").expect("written");
    let output = fixture.output(&["umount", "TMP/mnt"]);
    assert_eq!(code(&output), 7);
    assert!(stderr(&output).contains("tmpfs is mounted over it and would go with it\nhint: "), "{}", stderr(&output));
    assert_eq!(std::fs::read(point.join("precious")).expect("still there"), b"data");
    rustix::mount::unmount(&point, UnmountFlags::empty()).expect("unmounted");
    assert_eq!(std::fs::read(point.join("etc/hello")).expect("still mounted"), b"hello\n");
    fixture.stdout(&["umount", "TMP/mnt"]);
}

#[test]
fn a_relative_layout_is_read_wherever_the_server_works() {
    let Some(fixture) = MountFixture::new() else { return };
    for (folder, content) in [("a", "first\n"), ("b", "second\n")] {
        fixture.directory(&format!("mnt-{folder}"));
        lazy_image(content).write_layout("v1", &fixture.directory(folder).join("app"));
        let point = format!("TMP/mnt-{folder}");
        let mut command = fixture.command(&["--quiet", "mount", "oci:app:v1", &point]);
        let output = command.current_dir(fixture.path(folder)).output().expect("it runs");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let read = std::fs::read(fixture.path(&format!("mnt-{folder}/etc/hello")));
        assert_eq!(read.expect("fetched"), content.as_bytes(), "one name in two places is two images");
    }
}

#[test]
fn a_replaced_archive_is_detected_and_a_removed_one_is_not_needed() {
    let Some(fixture) = MountFixture::new() else { return };
    fixture.directory("mnt");
    for content in ["old\n", "new\n"] {
        let layout = fixture.path("layout");
        let _none_at_first = std::fs::remove_dir_all(&layout);
        lazy_image(content).write_layout("v1", &layout);
        fixture.stdout(&["--quiet", "mount", "oci:TMP/layout:v1", "TMP/mnt"]);
        assert_eq!(std::fs::read(fixture.path("mnt/etc/hello")).expect("fetched"), content.as_bytes());
        fixture.stdout(&["umount", "TMP/mnt"]);
    }
    std::fs::remove_dir_all(fixture.path("layout")).expect("removed");
    fixture.stdout(&["--quiet", "mount", "oci:TMP/layout:v1", "TMP/mnt"]);
    assert_eq!(std::fs::read(fixture.path("mnt/etc/hello")).expect("kept"), b"new\n");
}

#[test]
fn wrong_credentials_fail_only_their_own_mount() {
    let Some(fixture) = MountFixture::serving(Auth::Basic) else { return };
    let good = format!("{USER}:{PASSWORD}");
    let (one, other) = (fixture.directory("one"), fixture.directory("other"));
    fixture.stdout(&["--quiet", "ls", "--creds", &good, "HOST/app:v1"]);
    fixture.stdout(&["--quiet", "mount", "--creds", "alice:wrong", "HOST/app:v1", "TMP/one"]);
    std::fs::read(one.join("etc/hello")).expect_err("access is denied");
    let status = fixture.stdout(&["status", "TMP/one"]);
    assert!(status.contains("failed\n") && status.contains("last failure  "), "{status}");
    fixture.stdout(&["--quiet", "mount", "--creds", &good, "HOST/app:v1", "TMP/other"]);
    assert_eq!(std::fs::read(other.join("etc/hello")).expect("fetched"), b"hello\n");
}

#[test]
fn the_credentials_files_of_the_client_are_used() {
    let Some(fixture) = MountFixture::serving(Auth::Basic) else { return };
    let (one, other) = (fixture.directory("one"), fixture.directory("other"));
    fixture.stdout(&["--quiet", "ls", "--creds", &format!("{USER}:{PASSWORD}"), "HOST/app:v1"]);
    // The server starts with an environment without credentials …
    fixture.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/one"]);
    std::fs::read(one.join("etc/hello")).expect_err("nobody may read it without");
    // … and another client has credentials.
    let auth = fixture.path("auth.json");
    let text =
        format!(r#"{{"auths":{{"{}":{{"username":"{USER}","password":"{PASSWORD}"}}}}}}"#, fixture.server().host());
    std::fs::write(&auth, text).expect("written");
    let mut command = fixture.command(&["--quiet", "mount", "HOST/app:v1", "TMP/other"]);
    let output =
        command.current_dir(fixture.path("")).env("REGISTRY_AUTH_FILE", "auth.json").output().expect("it runs");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(std::fs::read(other.join("etc/hello")).expect("fetched"), b"hello\n");
}

#[test]
fn a_mount_invisible_to_the_client_is_rejected() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    fixture.directory("other");
    fixture.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    let inside = fixture.command(&["--quiet", "mount", "HOST/app:v1", "TMP/other"]);
    let mut unshare = Command::new("unshare");
    unshare.arg("--mount").arg(inside.get_program()).args(inside.get_args());
    unshare.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = unshare.output().expect("unshare runs");
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    assert!(stderr(&output).contains("runs in another mount namespace"), "{}", stderr(&output));
    assert!(stderr(&output).contains("hint: use a store of its own"), "{}", stderr(&output));
}

#[test]
fn recover_reports_what_it_cannot_restore_after_a_killed_server() {
    let Some(fixture) = MountFixture::serving(Auth::Basic) else { return };
    let good = format!("{USER}:{PASSWORD}");
    for name in ["mnt", "kept"] {
        fixture.directory(name);
    }
    fixture.stdout(&["--quiet", "mount", "--rw", "--creds", &good, "HOST/app:v1", "TMP/mnt"]);
    fixture.stdout(&["--quiet", "mount", "--rw=TMP/upper", "--creds", &good, "HOST/app:v1", "TMP/kept"]);
    fixture.kill_server();
    let dead = fixture.json(&["status", "--json"]);
    assert_eq!((&dead[0]["alive"], &dead[0]["mode"]), (&false.into(), &"native".into()), "as it was mounted");

    // One of the mounts cannot be restored.
    std::fs::rename(fixture.path("upper"), fixture.path("away")).expect("renamed");
    std::fs::write(fixture.path("upper"), "no directory").expect("written");
    let output = fixture.output(&["recover"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("/kept again: "), "{}", stderr(&output));
    assert!(stderr(&output).contains("/mnt: --creds are not stored"), "{}", stderr(&output));
    assert!(fixture.stdout(&["status", "TMP/kept"]).contains("not mounted: run `tarpon recover`"));
    assert_eq!(fixture.uppers(), 1, "the one that is in use again");

    // It is retried once the obstacle is removed.
    fixture.kill_server();
    std::fs::remove_file(fixture.path("upper")).expect("removed");
    std::fs::rename(fixture.path("away"), fixture.path("upper")).expect("renamed");
    let output = fixture.output(&["recover"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(fixture.mounts().len(), 2);
    fixture.stdout(&["umount", "--all"]);
    fixture.wait_for_server_to_end();
    assert_eq!(fixture.uppers(), 0);
    assert!(!fixture.path(".upper.tarpon-work").exists());
}

#[test]
fn an_unrecoverable_mount_can_be_unmounted() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    fixture.stdout(&["--quiet", "mount", "--rw=TMP/upper", "HOST/app:v1", "TMP/mnt"]);
    fixture.kill_server();
    std::fs::remove_dir(fixture.path("upper")).expect("empty");
    std::fs::write(fixture.path("upper"), "no directory").expect("written");
    fixture.stdout(&["umount", "TMP/mnt"]);
    assert_eq!(fixture.stdout(&["status"]), "nothing is mounted\n");
    assert!(fixture.mounts().is_empty());
}

#[test]
fn a_plain_umount_frees_the_mount_point_at_once() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    let point = fixture.directory("mnt");
    for _ in 0..10 {
        fixture.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
        rustix::mount::unmount(&point, UnmountFlags::empty()).expect("not in use");
    }
    fixture.wait_for_server_to_end();
    assert_eq!(fixture.stdout(&["status"]), "nothing is mounted\n");
}

#[test]
fn an_unsuitable_upper_directory_is_rejected_with_a_reason() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    fixture.directory("other");
    let disk = fixture.directory("disk");
    rustix::mount::mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), None).expect("mounted");
    let own = fixture.output(&["--quiet", "mount", "--rw=TMP/disk", "HOST/app:v1", "TMP/mnt"]);
    assert_eq!(code(&own), 7);
    assert!(stderr(&own).contains("use a directory inside of it"), "{}", stderr(&own));
    fixture.stdout(&["--quiet", "mount", "--rw=TMP/disk/upper", "HOST/app:v1", "TMP/mnt"]);
    let shared = fixture.output(&["--quiet", "mount", "--rw=TMP/disk/upper", "HOST/app:v1", "TMP/other"]);
    assert_eq!(code(&shared), 7);
    assert!(stderr(&shared).contains("writes to it already"), "{}", stderr(&shared));
    fixture.stdout(&["umount", "TMP/mnt"]);
}

#[test]
fn a_mount_in_the_foreground_ends_with_the_signal_that_ended_it() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 0)] {
        let mut command = fixture.command(&["mount", "--foreground", "--json", "HOST/app:v1", "TMP/mnt"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
        let mut printed = BufReader::new(child.stdout.take().expect("piped"));
        printed.read_line(&mut String::new()).expect("it is mounted");
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        assert_eq!(child.wait().expect("it ends").code(), Some(expected));
        assert!(fixture.mounts().is_empty());
    }
}

/// Checks of `status` before the test assumes a hang.
const LOOKS: usize = 1000;

#[test]
fn backfill_continues_after_a_killed_server() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    let completed = || {
        let mut looks = (0..LOOKS).map(|_| fixture.json(&["status", "--json"])[0].clone());
        looks.find(|mount| mount["backfill"]["state"] == "complete").expect("completed")
    };
    fixture.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    assert!(fixture.json(&["status", "--json"])[0]["backfill"].is_null(), "not unless it is asked for");
    fixture.stdout(&["umount", "TMP/mnt"]);
    fixture.stdout(&["--quiet", "mount", "--backfill", "idle", "HOST/app:v1", "TMP/mnt"]);
    assert_eq!(completed()["verification"][0]["state"], "diffID-verified", "of the mount that goes on");
    assert!(fixture.stdout(&["status", "TMP/mnt"]).contains("  complete, 1 of 1 layer\n"));
    fixture.kill_server();
    fixture.stdout(&["recover"]);
    assert_eq!(completed()["backfill"]["how"], "idle");
    fixture.stdout(&["umount", "TMP/mnt"]);
    fixture.wait_for_server_to_end();
}

#[test]
fn a_failed_mount_keeps_no_server() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    assert_eq!(code(&fixture.output(&["--quiet", "mount", "--rw=/proc", "HOST/app:v1", "TMP/mnt"])), 7);
    fixture.wait_for_server_to_end();
    assert_eq!(fixture.stdout(&["status"]), "nothing is mounted\n");
}

#[test]
fn the_size_of_the_store_is_remembered() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    fixture.directory("mnt");
    let budget = || fixture.json(&["cache", "usage", "--json"])["budget_bytes"].clone();
    let mount = |size: &str| {
        let output = fixture.output(&["mount", "--store-size", size, "HOST/app:v1", "TMP/mnt"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        fixture.stdout(&["umount", "TMP/mnt"]);
        stderr(&output)
    };
    assert!(mount("1G").contains("size limit of the store set to 1.0 GiB\n"));
    assert_eq!(budget(), 1_u64 << 30);
    assert!(!mount("1G").contains("size limit"), "no change");
    assert!(mount("2G").contains("size limit of the store set to 2.0 GiB (was 1.0 GiB)\n"));
    assert_eq!(budget(), 2_u64 << 30);
}

#[test]
fn an_image_for_another_machine_is_not_what_was_asked_for() {
    let foreign = if cfg!(target_arch = "s390x") { "arm64" } else { "s390x" };
    let image = ImageBuilder::new().layer(lazy_image("x").layers[0].clone()).architecture(foreign).build();
    let mut contents = Contents::new();
    image.add_to(&mut contents, "foreign", "v1");
    let world = World::serving(contents, Auth::Anonymous);
    let named = world.output(&["ls", "--platform", "linux/riscv64", "HOST/foreign:v1"]);
    assert_eq!(code(&named), 3);
    assert!(stderr(&named).contains(&format!("is for linux/{foreign} only, not for linux/riscv64")));
    world.assert_untouched();
    let unnamed = world.output(&["ls", "HOST/foreign:v1"]);
    assert_eq!(code(&unnamed), 0);
    assert!(stderr(&unnamed).contains(&format!("the image is for linux/{foreign}, this machine is ")));
    let named = world.output(&["ls", "--platform", "linux/riscv64", "HOST/foreign:v1"]);
    assert_eq!(code(&named), 3, "also if it is in the store");
    let right = world.output(&["ls", "--platform", &format!("linux/{foreign}"), "HOST/foreign:v1"]);
    assert_eq!((code(&right), stderr(&right).contains("this machine")), (0, false));
}

#[test]
fn a_folder_is_listed_through_a_link_that_ends_in_a_slash() {
    let world = World::new();
    lazy_image("x").write_layout("v1", &world.path("layout"));
    for arguments in [&["--quiet", "ls", "oci:TMP/layout:v1:/bin/"][..], &["--quiet", "ls", "oci:TMP/layout:v1:/bin"]] {
        assert_eq!(world.stdout(arguments), "hello\n");
    }
    assert!(world.stdout(&["--quiet", "ls", "-l", "oci:TMP/layout:v1:/bin/"]).ends_with(" hello\n"));
}

#[test]
fn the_server_serves_metrics_and_explains_waits() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    let point = fixture.directory("mnt");
    fixture.directory("other");
    fixture.stdout(&["mount", "--mode", "fuse", "--metrics", "0", "HOST/app:v1", "TMP/mnt"]);
    assert_eq!(std::fs::read(point.join("etc/hello")).expect("mounted"), b"hello\n");
    let address = fixture.json(&["status", "--json", "TMP/mnt"])["metrics"].as_str().expect("told").to_owned();
    assert!(fixture.stdout(&["status", "TMP/mnt"]).contains(&format!("http://{address}/metrics\n")));
    assert!(scrape(&address).contains("\ntarpon_mounts{mode=\"fuse\"} 1\n"));
    let why = fixture.stdout(&["why", "TMP/mnt"]);
    assert!(why.contains("1 read waited") && why.contains("/etc/hello, 6 B at 0"), "{why}");
    assert_eq!(fixture.json(&["why", "--json", "TMP/mnt"])["slowest"][0]["path"], "/etc/hello");

    let refused = fixture.output(&["mount", "--metrics", "127.0.0.2:1", "HOST/app:v1", "TMP/other"]);
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).contains(&format!("serves them at {address} already\nhint: ")), "{}", stderr(&refused));
    assert_eq!(fixture.mounts(), [point]);

    fixture.kill_server();
    fixture.stdout(&["recover"]);
    let address = fixture.json(&["status", "--json", "TMP/mnt"])["metrics"].as_str().expect("told again").to_owned();
    assert!(scrape(&address).contains("\ntarpon_mounts{mode=\"fuse\"} 1\n"));
}

/// Looks at the status of a mount before the test assumes that no successor starts.
const PATIENCE: Duration = Duration::from_secs(60);

impl MountFixture {
    /// Replaces the server, and waits until the successor serves.
    fn replace_server(&self, replace: impl FnOnce(Pid)) {
        let (before, began) = (self.server_process(), Instant::now());
        replace(before);
        loop {
            let mount = &self.json(&["status", "--json"])[0];
            if mount["alive"] == true && mount["server"] != before.as_raw_nonzero().get() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{mount}");
        }
    }

    /// The counters of a scrape and of the status of `TMP/mnt`.
    fn counters(&self) -> BTreeMap<String, f64> {
        let status = self.json(&["status", "--json", "TMP/mnt"]);
        let page = scrape(status["metrics"].as_str().expect("an address"));
        let mut counters = BTreeMap::new();
        let mut is_counter = false;
        for line in page.lines().skip_while(|line| !line.starts_with('#')) {
            if line.starts_with("# TYPE") {
                is_counter = line.ends_with(" counter") || line.ends_with(" histogram");
            } else if let Some((series, value)) = line.rsplit_once(' ').filter(|_| is_counter && !line.starts_with('#'))
            {
                counters.insert(series.to_owned(), value.parse().expect("a number"));
            }
        }
        for name in ["fetched_bytes", "requests", "failed_reads"] {
            counters.insert(format!("status {name}"), status[name].as_f64().expect("a number"));
        }
        for name in ["requests", "bytes", "failures"] {
            let count = &status["endpoints"][0][name];
            counters.insert(format!("status endpoint {name}"), count.as_f64().expect("a number"));
        }
        counters
    }
}

#[test]
fn counters_continue_when_the_server_is_killed_or_upgraded() {
    if !can_mount() {
        return;
    }
    let mut seed = 1_u64;
    let mut content = || -> String {
        let next = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b' ' + u8::try_from(seed >> 58).expect("6 bits"))
        };
        (0..200_000).map(next).collect()
    };
    let names = ["first", "second", "third"];
    let items = names.map(|name| Item::file(name, content()));
    for mode in ["fuse", "native"] {
        let mut contents = Contents::new();
        Image::of([Layer::estargz(&items)]).add_to(&mut contents, "app", "v1");
        let fixture = MountFixture(World::serving(contents, Auth::Anonymous));
        let point = fixture.directory("mnt");
        fixture.directory("other");
        fixture.stdout(&["mount", "--mode", mode, "--metrics", "0", "HOST/app:v1", "TMP/mnt"]);
        let read = |name| std::fs::read(point.join(name)).expect("mounted");
        read("first");
        let mut before = fixture.counters();
        assert!(before["status fetched_bytes"] > 0.0 && before["status requests"] > 0.0, "{before:?}");
        for (is_killed, name) in [(true, "second"), (false, "third")] {
            fixture.replace_server(|server| match is_killed {
                true => kill_process(server, Signal::KILL).expect("it runs"),
                false => drop(fixture.stdout(&["server", "upgrade"])),
            });
            let after = fixture.counters();
            let fallen: Vec<_> = before.iter().filter(|(name, count)| after.get(*name) < Some(count)).collect();
            assert!(fallen.is_empty(), "fallen in mode {mode}: {fallen:?}");
            read(name);
            before = fixture.counters();
            assert!(before["status fetched_bytes"] > after["status fetched_bytes"], "{name} was fetched");
            assert!(before["status requests"] > after["status requests"]);
            assert!(before["status endpoint bytes"] > after["status endpoint bytes"]);
        }
        fixture.stdout(&["mount", "--mode", mode, "HOST/app:v1", "TMP/other"]);
        let other = fixture.json(&["status", "--json", "TMP/other"]);
        assert_eq!(other["fetched_bytes"], 0, "those are bytes of the other mount");
    }
}

fn scrape(address: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("somebody listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}
