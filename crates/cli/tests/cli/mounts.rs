//! The life of mounts, as users and scripts see it, with the real kernel: needs root and /dev/fuse, and is skipped
//! without.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use tarpon_registry::serve::Contents;
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::layers::{EstargzOptions, Image, ImageBuilder, Item, estargz};
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::world::{World, add, write_layout};

/// A world in which images are mounted. Dropping it unmounts everything and ends its servers.
pub(crate) struct Bed(World);

impl std::ops::Deref for Bed {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.output(&["umount", "--all", "--lazy"]);
        for mount in self.mounts() {
            let _gone = rustix::mount::unmount(&mount, UnmountFlags::DETACH);
        }
    }
}

impl Bed {
    /// Without a registry.
    pub(crate) fn new() -> Option<Self> {
        can_mount().then(|| Self(World::new()))
    }

    /// With `app:v1` in a registry.
    pub(crate) fn serving(auth: Auth) -> Option<Self> {
        can_mount().then(|| {
            let mut contents = Contents::new();
            add(&mut contents, ("app", "v1"), &lazy_image("hello\n"), |_| true);
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

    /// Kills the server of the store, and waits until the kernel has released its lock.
    pub(crate) fn kill_server(&self) {
        kill_process(self.server_process(), Signal::KILL).expect("it is ours");
        self.wait_for_server_to_end();
    }

    /// The server of the store, which has mounted something.
    pub(crate) fn server_process(&self) -> Pid {
        let mounts = self.json(&["status", "--json"]);
        let mut alive = mounts.as_array().expect("mounts").iter().filter(|mount| mount["alive"] == true);
        let pid = alive.next().and_then(|mount| mount["server"].as_i64()).expect("a server");
        Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0")
    }

    fn wait_for_server_to_end(&self) {
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
    ImageBuilder::new().layer(estargz(&items, EstargzOptions::default())).build()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn of_several_who_mount_at_one_place_one_does() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    let point = bed.directory("mnt");
    bed.stdout(&["--quiet", "ls", "HOST/app:v1"]);
    for round in 0..5 {
        let mut commands: Vec<Command> =
            (0..4).map(|_| bed.command(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"])).collect();
        let children: Vec<_> = commands.iter_mut().map(|command| command.spawn().expect("it runs")).collect();
        let codes: Vec<_> = children.into_iter().map(|mut child| child.wait().expect("it ends").code()).collect();
        assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "round {round}: {codes:?}");
        assert_eq!(bed.mounts(), std::slice::from_ref(&point), "round {round}");
        assert_eq!(bed.json(&["status", "--json"])[0]["alive"], true, "round {round}");
        bed.stdout(&["umount", "TMP/mnt"]);
        assert!(bed.mounts().is_empty(), "round {round}");
    }
}

#[test]
fn what_is_mounted_over_an_image_is_not_taken_along() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    let point = bed.directory("mnt");
    bed.stdout(&["mount", "HOST/app:v1", "TMP/mnt"]);
    rustix::mount::mount("tmpfs", &point, "tmpfs", MountFlags::empty(), None).expect("mounted");
    std::fs::write(point.join("precious"), "data").expect("written");
    let output = bed.output(&["umount", "TMP/mnt"]);
    assert_eq!(code(&output), 7);
    assert!(stderr(&output).contains("tmpfs is mounted over it and would go with it\nhint: "), "{}", stderr(&output));
    assert_eq!(std::fs::read(point.join("precious")).expect("still there"), b"data");
    rustix::mount::unmount(&point, UnmountFlags::empty()).expect("unmounted");
    assert_eq!(std::fs::read(point.join("etc/hello")).expect("still mounted"), b"hello\n");
    bed.stdout(&["umount", "TMP/mnt"]);
}

#[test]
fn a_relative_layout_is_read_wherever_the_server_works() {
    let Some(bed) = Bed::new() else { return };
    for (folder, content) in [("a", "first\n"), ("b", "second\n")] {
        bed.directory(&format!("mnt-{folder}"));
        write_layout(&lazy_image(content), &bed.directory(folder).join("app"));
        let point = format!("TMP/mnt-{folder}");
        let mut command = bed.command(&["--quiet", "mount", "oci:app:v1", &point]);
        let output = command.current_dir(bed.path(folder)).output().expect("it runs");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let read = std::fs::read(bed.path(&format!("mnt-{folder}/etc/hello")));
        assert_eq!(read.expect("fetched"), content.as_bytes(), "one name in two places is two images");
    }
}

#[test]
fn an_archive_that_was_made_anew_is_noticed_and_one_that_is_gone_is_not_needed() {
    let Some(bed) = Bed::new() else { return };
    bed.directory("mnt");
    for content in ["old\n", "new\n"] {
        let layout = bed.path("layout");
        let _none_at_first = std::fs::remove_dir_all(&layout);
        write_layout(&lazy_image(content), &layout);
        bed.stdout(&["--quiet", "mount", "oci:TMP/layout:v1", "TMP/mnt"]);
        assert_eq!(std::fs::read(bed.path("mnt/etc/hello")).expect("fetched"), content.as_bytes());
        bed.stdout(&["umount", "TMP/mnt"]);
    }
    std::fs::remove_dir_all(bed.path("layout")).expect("removed");
    bed.stdout(&["--quiet", "mount", "oci:TMP/layout:v1", "TMP/mnt"]);
    assert_eq!(std::fs::read(bed.path("mnt/etc/hello")).expect("kept"), b"new\n");
}

#[test]
fn a_mount_with_wrong_credentials_fails_alone_and_says_so() {
    let Some(bed) = Bed::serving(Auth::Basic) else { return };
    let good = format!("{USER}:{PASSWORD}");
    let (one, other) = (bed.directory("one"), bed.directory("other"));
    bed.stdout(&["--quiet", "ls", "--creds", &good, "HOST/app:v1"]);
    bed.stdout(&["--quiet", "mount", "--creds", "alice:wrong", "HOST/app:v1", "TMP/one"]);
    std::fs::read(one.join("etc/hello")).expect_err("access is denied");
    let status = bed.stdout(&["status", "TMP/one"]);
    assert!(status.contains("failed\n") && status.contains("last failure  "), "{status}");
    bed.stdout(&["--quiet", "mount", "--creds", &good, "HOST/app:v1", "TMP/other"]);
    assert_eq!(std::fs::read(other.join("etc/hello")).expect("fetched"), b"hello\n");
}

#[test]
fn the_credential_files_are_those_of_the_client() {
    let Some(bed) = Bed::serving(Auth::Basic) else { return };
    let (one, other) = (bed.directory("one"), bed.directory("other"));
    bed.stdout(&["--quiet", "ls", "--creds", &format!("{USER}:{PASSWORD}"), "HOST/app:v1"]);
    // The server starts with an environment without credentials …
    bed.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/one"]);
    std::fs::read(one.join("etc/hello")).expect_err("nobody may read it without");
    // … and another client has credentials.
    let auth = bed.path("auth.json");
    let text = format!(r#"{{"auths":{{"{}":{{"username":"{USER}","password":"{PASSWORD}"}}}}}}"#, bed.server().host());
    std::fs::write(&auth, text).expect("written");
    let mut command = bed.command(&["--quiet", "mount", "HOST/app:v1", "TMP/other"]);
    let output = command.current_dir(bed.path("")).env("REGISTRY_AUTH_FILE", "auth.json").output().expect("it runs");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(std::fs::read(other.join("etc/hello")).expect("fetched"), b"hello\n");
}

#[test]
fn a_mount_that_nobody_here_would_see_is_refused() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    bed.directory("mnt");
    bed.directory("other");
    bed.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    let inside = bed.command(&["--quiet", "mount", "HOST/app:v1", "TMP/other"]);
    let mut unshare = Command::new("unshare");
    unshare.arg("--mount").arg(inside.get_program()).args(inside.get_args());
    unshare.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = unshare.output().expect("unshare runs");
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    assert!(stderr(&output).contains("runs in another mount namespace"), "{}", stderr(&output));
    assert!(stderr(&output).contains("hint: use a store of its own"), "{}", stderr(&output));
}

#[test]
fn a_killed_server_leaves_no_upper_and_recover_says_what_it_could_not_do() {
    let Some(bed) = Bed::serving(Auth::Basic) else { return };
    let good = format!("{USER}:{PASSWORD}");
    for name in ["mnt", "kept"] {
        bed.directory(name);
    }
    bed.stdout(&["--quiet", "mount", "--rw", "--creds", &good, "HOST/app:v1", "TMP/mnt"]);
    bed.stdout(&["--quiet", "mount", "--rw=TMP/upper", "--creds", &good, "HOST/app:v1", "TMP/kept"]);
    bed.kill_server();
    let dead = bed.json(&["status", "--json"]);
    assert_eq!((&dead[0]["alive"], &dead[0]["mode"]), (&false.into(), &"native".into()), "as it was mounted");

    // One of the mounts cannot be restored.
    std::fs::rename(bed.path("upper"), bed.path("away")).expect("renamed");
    std::fs::write(bed.path("upper"), "no directory").expect("written");
    let output = bed.output(&["recover"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("/kept again: "), "{}", stderr(&output));
    assert!(stderr(&output).contains("/mnt: --creds are not stored"), "{}", stderr(&output));
    assert!(bed.stdout(&["status", "TMP/kept"]).contains("not mounted: run `tarpon recover`"));
    assert_eq!(bed.uppers(), 1, "the one that is in use again");

    // It is retried once the obstacle is removed.
    bed.kill_server();
    std::fs::remove_file(bed.path("upper")).expect("removed");
    std::fs::rename(bed.path("away"), bed.path("upper")).expect("renamed");
    let output = bed.output(&["recover"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(bed.mounts().len(), 2);
    bed.stdout(&["umount", "--all"]);
    bed.wait_for_server_to_end();
    assert_eq!(bed.uppers(), 0);
    assert!(!bed.path(".upper.tarpon-work").exists());
}

#[test]
fn what_cannot_be_recovered_can_be_given_up() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    bed.directory("mnt");
    bed.stdout(&["--quiet", "mount", "--rw=TMP/upper", "HOST/app:v1", "TMP/mnt"]);
    bed.kill_server();
    std::fs::remove_dir(bed.path("upper")).expect("empty");
    std::fs::write(bed.path("upper"), "no directory").expect("written");
    bed.stdout(&["umount", "TMP/mnt"]);
    assert_eq!(bed.stdout(&["status"]), "nothing is mounted\n");
    assert!(bed.mounts().is_empty());
}

#[test]
fn a_plain_umount_is_noticed_and_the_place_is_free_at_once() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    let point = bed.directory("mnt");
    for _ in 0..10 {
        bed.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
        rustix::mount::unmount(&point, UnmountFlags::empty()).expect("not in use");
    }
    bed.wait_for_server_to_end();
    assert_eq!(bed.stdout(&["status"]), "nothing is mounted\n");
}

#[test]
fn an_upper_that_does_not_do_is_refused_with_the_reason() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    bed.directory("mnt");
    bed.directory("other");
    let disk = bed.directory("disk");
    rustix::mount::mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), None).expect("mounted");
    let own = bed.output(&["--quiet", "mount", "--rw=TMP/disk", "HOST/app:v1", "TMP/mnt"]);
    assert_eq!(code(&own), 7);
    assert!(stderr(&own).contains("use a directory inside of it"), "{}", stderr(&own));
    bed.stdout(&["--quiet", "mount", "--rw=TMP/disk/upper", "HOST/app:v1", "TMP/mnt"]);
    let shared = bed.output(&["--quiet", "mount", "--rw=TMP/disk/upper", "HOST/app:v1", "TMP/other"]);
    assert_eq!(code(&shared), 7);
    assert!(stderr(&shared).contains("writes to it already"), "{}", stderr(&shared));
    bed.stdout(&["umount", "TMP/mnt"]);
}

#[test]
fn a_mount_in_the_foreground_ends_with_the_signal_that_ended_it() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    bed.directory("mnt");
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 0)] {
        let mut command = bed.command(&["mount", "--foreground", "--json", "HOST/app:v1", "TMP/mnt"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        said.read_line(&mut String::new()).expect("it is mounted");
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        assert_eq!(child.wait().expect("it ends").code(), Some(expected));
        assert!(bed.mounts().is_empty());
    }
}

/// Checks of `status` before the test assumes a hang.
const LOOKS: usize = 1000;

#[test]
fn an_image_is_completed_in_the_background_also_by_a_server_that_comes_after_a_killed_one() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    bed.directory("mnt");
    let completed = || {
        let mut looks = (0..LOOKS).map(|_| bed.json(&["status", "--json"])[0].clone());
        looks.find(|mount| mount["backfill"]["state"] == "complete").expect("completed")
    };
    bed.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    assert!(bed.json(&["status", "--json"])[0]["backfill"].is_null(), "not unless it is asked for");
    bed.stdout(&["umount", "TMP/mnt"]);
    bed.stdout(&["--quiet", "mount", "--backfill", "idle", "HOST/app:v1", "TMP/mnt"]);
    assert_eq!(completed()["verification"][0]["state"], "diffID-verified", "of the mount that goes on");
    assert!(bed.stdout(&["status", "TMP/mnt"]).contains("  complete, 1 of 1 layer\n"));
    bed.kill_server();
    bed.stdout(&["recover"]);
    assert_eq!(completed()["backfill"]["how"], "idle");
    bed.stdout(&["umount", "TMP/mnt"]);
    bed.wait_for_server_to_end();
}

#[test]
fn a_failed_mount_keeps_no_server() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    bed.directory("mnt");
    assert_eq!(code(&bed.output(&["--quiet", "mount", "--rw=/proc", "HOST/app:v1", "TMP/mnt"])), 7);
    bed.wait_for_server_to_end();
    assert_eq!(bed.stdout(&["status"]), "nothing is mounted\n");
}

#[test]
fn the_size_of_the_store_is_remembered() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    bed.directory("mnt");
    let budget = || bed.json(&["cache", "usage", "--json"])["budget_bytes"].clone();
    let mount = |size: &str| {
        let output = bed.output(&["mount", "--store-size", size, "HOST/app:v1", "TMP/mnt"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        bed.stdout(&["umount", "TMP/mnt"]);
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
    add(&mut contents, ("foreign", "v1"), &image, |_| true);
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
    write_layout(&lazy_image("x"), &world.path("layout"));
    for arguments in [&["--quiet", "ls", "oci:TMP/layout:v1:/bin/"][..], &["--quiet", "ls", "oci:TMP/layout:v1:/bin"]] {
        assert_eq!(world.stdout(arguments), "hello\n");
    }
    assert!(world.stdout(&["--quiet", "ls", "-l", "oci:TMP/layout:v1:/bin/"]).ends_with(" hello\n"));
}

#[test]
fn the_server_tells_metrics_and_why_readers_waited() {
    let Some(bed) = Bed::serving(Auth::Anonymous) else { return };
    let point = bed.directory("mnt");
    bed.directory("other");
    bed.stdout(&["mount", "--mode", "fuse", "--metrics", "0", "HOST/app:v1", "TMP/mnt"]);
    assert_eq!(std::fs::read(point.join("etc/hello")).expect("mounted"), b"hello\n");
    let address = bed.json(&["status", "--json", "TMP/mnt"])["metrics"].as_str().expect("told").to_owned();
    assert!(bed.stdout(&["status", "TMP/mnt"]).contains(&format!("http://{address}/metrics\n")));
    assert!(scrape(&address).contains("\ntarpon_mounts{mode=\"fuse\"} 1\n"));
    let why = bed.stdout(&["why", "TMP/mnt"]);
    assert!(why.contains("1 read waited") && why.contains("/etc/hello, 6 B at 0"), "{why}");
    assert_eq!(bed.json(&["why", "--json", "TMP/mnt"])["slowest"][0]["path"], "/etc/hello");

    let refused = bed.output(&["mount", "--metrics", "127.0.0.2:1", "HOST/app:v1", "TMP/other"]);
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).contains(&format!("serves them at {address} already\nhint: ")), "{}", stderr(&refused));
    assert_eq!(bed.mounts(), [point]);

    bed.kill_server();
    bed.stdout(&["recover"]);
    let address = bed.json(&["status", "--json", "TMP/mnt"])["metrics"].as_str().expect("told again").to_owned();
    assert!(scrape(&address).contains("\ntarpon_mounts{mode=\"fuse\"} 1\n"));
}

fn scrape(address: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("somebody listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}
