//! A real Podman with stores of its own, configured to use a tarpon store.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tarpon_testkit::processes;

use crate::dump::{Dump, dump};
use crate::real::{self, run};
use crate::tarpon::Tarpon;

/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// A private mount namespace with the cgroups that crun needs.
const ALONE: &str = "umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup; exec \"$@\"";

/// A store, and a Podman that is configured to use it. Dropping it removes both.
pub struct Podman {
    /// The store.
    pub tarpon: Tarpon,
    /// Registry of the images.
    pub registry: String,
    /// Has a short name: Podman limits its runroot to 50 bytes.
    pub folder: tempfile::TempDir,
}

impl Podman {
    /// Starts both; `None` if these tests cannot run here. `setup`: options of `tarpon podman setup`.
    pub fn new(setup: &[&str]) -> Option<Self> {
        let lacking = || (!real::have(&["podman", "buildah", "unshare"])).then(|| "no podman or buildah".to_owned());
        if let Some(reason) = real::missing().or_else(lacking) {
            println!("skipped: {reason}");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("tp-").tempdir_in("/tmp").unwrap();
        let podman = Self { tarpon: Tarpon::new().unwrap(), registry: real::registry()?, folder };
        let at = |name: &str| podman.folder.path().join(name).display().to_string();
        let text =
            format!("[storage]\ndriver = \"overlay\"\nrunroot = \"{}\"\ngraphroot = \"{}\"\n", at("run"), at("root"));
        std::fs::write(podman.conf(), text).unwrap();
        let file = podman.conf().display().to_string();
        podman.tarpon.run("podman", &[&["setup", "--file", &file], setup].concat()).unwrap();
        Some(podman)
    }

    /// Podman's storage.conf.
    pub fn conf(&self) -> PathBuf {
        self.folder.path().join("storage.conf")
    }

    /// Content of storage.conf.
    pub fn conf_text(&self) -> String {
        std::fs::read_to_string(self.conf()).unwrap()
    }

    /// The full name of a test image.
    pub fn image(&self, name: &str) -> String {
        format!("{}/dev/{name}", self.registry)
    }

    /// A command in Podman's namespace.
    pub fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "slave", "sh", "-c", ALONE, "sh"]).args(program);
        command.env("CONTAINERS_STORAGE_CONF", self.conf()).stdin(Stdio::null());
        command
    }

    /// A Podman command.
    pub fn podman_command(&self, arguments: &[&str]) -> Command {
        self.command(&[&["podman", "--cgroup-manager", "cgroupfs"], arguments].concat())
    }

    /// Runs Podman, which must succeed.
    pub fn podman(&self, arguments: &[&str]) -> String {
        run(&mut self.podman_command(arguments)).unwrap()
    }

    /// Runs a container without a network; `options` go before the image.
    pub fn container(&self, options: &[&str], image: &str, program: &[&str]) -> String {
        run(&mut self.container_command(&[&["--network", "none"], options].concat(), image, program)).unwrap()
    }

    /// The command that runs a container.
    pub fn container_command(&self, options: &[&str], image: &str, program: &[&str]) -> Command {
        let limits = ["--cgroups=disabled", "--ulimit", "nproc=1000:1000", "--ulimit", "nofile=1000:1000"];
        let first = ["run", "--rm", "--pull", "never", "--entrypoint", ""];
        self.podman_command(&[&first, &limits[..], options, &[image], program].concat())
    }

    /// Adds an image to Podman's additional image store.
    pub fn add(&self, image: &str) -> Result<()> {
        self.tarpon.run("podman", &["add", "--quiet", "--tls-verify=false", image]).map(drop)
    }

    /// Pulls an image.
    pub fn pull(&self, image: &str) -> Result<()> {
        run(&mut self.podman_command(&["pull", "--quiet", "--tls-verify=false", image])).map(drop)
    }

    /// Whether Podman is configured with a store of layers and keeps its layers. Prints a note if not.
    pub fn has_lazy_layers(&self) -> bool {
        let has = self.conf_text().contains("additionallayerstores");
        if !has {
            println!("skipped: this Podman loses the layers of additional layer stores");
        }
        has
    }

    /// Whether all layers in Podman's own store link to the store of layers.
    pub fn all_layers_are_lazy(&self) -> bool {
        let overlay = self.folder.path().join("root/overlay");
        let is_lazy = |layer: &Value| overlay.join(layer["id"].as_str().unwrap()).join("diff").is_symlink();
        self.own_layers().iter().all(is_lazy)
    }

    /// Podman's images.
    pub fn images(&self) -> Vec<Value> {
        let listed: Value = serde_json::from_str(&self.podman(&["images", "--format", "json"])).unwrap();
        listed.as_array().unwrap().clone()
    }

    /// Layers in Podman's own store.
    pub fn own_layers(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("root/overlay-layers/layers.json"));
        let layers: Value = serde_json::from_str(&text.unwrap_or_else(|_| "[]".to_owned())).unwrap();
        layers.as_array().unwrap().clone()
    }

    /// The overlay of the layer `top` of a driver's folder and the layers below it.
    pub fn stack(&self, overlay: &Path, top: &str) -> Dump {
        let read = |name: &str| std::fs::read_to_string(overlay.join(top).join(name)).unwrap_or_default();
        let links = [format!("l/{}", read("link")), read("lower")].join(":");
        let links = links.trim_end_matches(':').split(':');
        let lower: Vec<_> = links.map(|link| overlay.join(link).display().to_string()).collect();
        if let [only] = &lower[..] {
            // A single layer is no overlay.
            return dump(Path::new(only)).unwrap();
        }
        let target = self.folder.path().join("stack");
        std::fs::create_dir_all(&target).unwrap();
        let options = std::ffi::CString::new(format!("lowerdir={}", lower.join(":"))).unwrap();
        rustix::mount::mount("overlay", &target, "overlay", MountFlags::RDONLY, options.as_c_str()).unwrap();
        let seen = dump(&target);
        rustix::mount::unmount(&target, UnmountFlags::empty()).unwrap();
        seen.unwrap()
    }

    /// Whether anything is mounted on this folder of the store.
    pub fn is_mounted(&self, name: &str) -> bool {
        let place = self.tarpon.store().join(name).canonicalize().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(&format!(" {} ", place.display()))
    }

    /// Sends the server a signal.
    pub fn signal_server(&self, signal: Signal) {
        kill_process(self.server(), signal).unwrap();
    }

    /// The process that serves the store.
    pub fn server(&self) -> Pid {
        let pid = self.tarpon.status().unwrap()[0]["server"].as_i64().expect("a server");
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    /// Kills the server and its holder, so that nothing takes their place.
    pub fn kill_server_with_holder(&self) {
        processes::kill_with_holder(&self.tarpon.store(), self.server());
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.podman_command(&["rm", "--all", "--force", "-t", "0"]).output();
        let _ = self.tarpon.output("podman", &["rm", "--all", "--force"]);
        let _ = self.tarpon.output("podman", &["layers", "stop", "--force"]);
        for name in ["podman", "podman-layers"] {
            let _ = rustix::mount::unmount(self.tarpon.store().join(name), UnmountFlags::DETACH);
        }
        let _ = rustix::mount::unmount(self.folder.path().join("root/overlay"), UnmountFlags::DETACH);
    }
}

/// Waits for a condition. Panics if it takes too long.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
