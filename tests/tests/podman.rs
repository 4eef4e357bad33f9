//! Real Podman on images that tarpon shows it: listed, run, built on and pulled, and what becomes of all that when the server dies.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tarpon_tests::dump::{Dump, dump};
use tarpon_tests::expected::Expected;
use tarpon_tests::real::{self, run};
use tarpon_tests::tarpon::Tarpon;

/// How long the guard of a killed server may take to unmount, and a server to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// A private mount namespace with the cgroups that crun wants.
const ALONE: &str = "umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup; exec \"$@\"";

/// A store, and a Podman that was told of it.
struct Bed {
    tarpon: Tarpon,
    registry: String,
    /// Of a short name: Podman wants its runroot within 50 bytes.
    podman: tempfile::TempDir,
}

impl Bed {
    /// Unless these tests cannot run here.
    fn new() -> Option<Self> {
        let lacking = || (!real::have(&["podman", "buildah", "unshare"])).then(|| "no podman or buildah".to_owned());
        if let Some(reason) = real::missing().or_else(lacking) {
            println!("skipped: {reason}");
            return None;
        }
        let podman = tempfile::Builder::new().prefix("tp-").tempdir_in("/tmp").unwrap();
        let bed = Self { tarpon: Tarpon::new().unwrap(), registry: real::registry()?, podman };
        let at = |name: &str| bed.podman.path().join(name).display().to_string();
        let text =
            format!("[storage]\ndriver = \"overlay\"\nrunroot = \"{}\"\ngraphroot = \"{}\"\n", at("run"), at("root"));
        std::fs::write(bed.conf(), text).unwrap();
        bed.tarpon.run("podman", &["setup", "--file", bed.conf().to_str().unwrap()]).unwrap();
        Some(bed)
    }

    fn conf(&self) -> PathBuf {
        self.podman.path().join("storage.conf")
    }

    fn image(&self, name: &str) -> String {
        format!("{}/dev/{name}", self.registry)
    }

    fn add(&self, name: &str) {
        self.tarpon.run("podman", &["add", "--quiet", "--tls-verify=false", &self.image(name)]).unwrap();
    }

    fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "slave", "sh", "-c", ALONE, "sh"]).args(program);
        command.env("CONTAINERS_STORAGE_CONF", self.conf()).stdin(Stdio::null());
        command
    }

    fn podman(&self, arguments: &[&str]) -> String {
        run(&mut self.command(&[&["podman", "--cgroup-manager", "cgroupfs"], arguments].concat())).unwrap()
    }

    /// Runs a container; `options` go before the image.
    fn container(&self, options: &[&str], image: &str, program: &[&str]) -> String {
        let limits = ["--cgroups=disabled", "--ulimit", "nproc=1000:1000", "--ulimit", "nofile=1000:1000"];
        let first = ["run", "--rm", "--network", "none", "--pull", "never", "--entrypoint", ""];
        self.podman(&[&first, &limits[..], options, &[image], program].concat())
    }

    fn images(&self) -> Vec<Value> {
        let listed = bed.listed();
        let full = bed.image(&format!("{name}:gzip"));
        let mut images = listed.iter();
        let image = images.find(|image| image["names"][0] == full.as_str()).unwrap();
        let top = image["layer"].as_str().unwrap();
        assert_shows(&expected, &stack(&bed, top), true, name);
        let record = layers.iter().find(|layer| layer["id"] == top).unwrap();
        let is_same =
            |layer: &&Value| layer["diff-digest"] == record["diff-digest"] && layer["parent"] == record["parent"];
        let first = layers.iter().find(is_same).unwrap()["id"].as_str().unwrap();
        let is_only = layers.iter().filter(is_same).count() == 1;
        assert_eq!(is_only, first == top, "who looks for a layer's digest finds it alone");
        assert_shows(&expected, &stack(&bed, first), is_only, &format!("{name}, each layer alone"));
    }
}

#[test]
fn podman_goes_on_when_the_server_is_killed_and_images_come_back() {
    let Some(bed) = Bed::new() else { return };
    bed.add("debian-base:gzip");
    assert!(bed.is_mounted());
    bed.kill_server();
    wait_until("the guard unmounts", || !bed.is_mounted());
    assert_eq!(bed.images().len(), 0);
    bed.podman(&["ps", "--all"]);
    let dead = bed.tarpon.run("podman", &["ls"]).unwrap();
    assert!(dead.contains("dead: run `tarpon recover`"), "{dead}");
    bed.tarpon.run("recover", &[]).unwrap();
    assert_eq!(bed.images().len(), 1);
    bed.container(&[], &bed.image("debian-base:gzip"), &["true"]);
    // An orderly end is no wish to have the images gone.
    let pid = bed.tarpon.status().unwrap()[0]["server"].as_i64().unwrap();
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::TERM).unwrap();
    wait_until("the server ends", || !bed.is_mounted());
    wait_until("it is recovered", || bed.tarpon.run("recover", &[]).is_ok() && bed.is_mounted());
    assert_eq!(bed.images().len(), 1);
}

#[test]
fn an_image_that_a_container_uses_is_not_taken_away_and_names_move() {
    let Some(bed) = Bed::new() else { return };
    bed.add("manylayers:gzip");
    let image = bed.image("manylayers:gzip");
    bed.container(&["--detach", "--name", "sleeper"], &image, &["sleep", "1000"]);
    let refusal = failed(&bed.tarpon.output("podman", &["rm", &image]).unwrap());
    assert!(refusal.contains("a container uses it"), "{refusal}");
    bed.podman(&["rm", "--force", "-t", "0", "sleeper"]);
    for name in ["debian-base:gzip", "manylayers:gzip"] {
        let image = bed.image(name);
        let add = ["add", "--quiet", "--tls-verify=false", "--name", "localhost/moving:1", &image];
        bed.tarpon.run("podman", &add).unwrap();
    }
    let mut names: Vec<usize> = bed.listed().iter().map(|image| image["names"].as_array().unwrap().len()).collect();
    names.sort_unstable();
    assert_eq!(names, [0, 2], "the older image goes on without a name");
    bed.tarpon.run("podman", &["rm", "localhost/moving:1"]).unwrap();
    bed.container(&[], &image, &["true"]);
    bed.tarpon.run("podman", &["rm", "--all"]).unwrap();
    assert_eq!(bed.images().len(), 0);
    wait_until("nothing is mounted", || !bed.is_mounted());
    bed.tarpon.run("podman", &["setup", "--undo", "--file", bed.conf().to_str().unwrap()]).unwrap();
    assert!(!std::fs::read_to_string(bed.conf()).unwrap().contains("additionalimagestores"));
}
