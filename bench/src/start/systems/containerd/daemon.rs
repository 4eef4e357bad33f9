//! A containerd with folders of its own.

use std::cell::RefCell;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use tarpon_harness::process;

use super::super::system::{CONTAINER, store};
use crate::machine::{quietly, remove};
use crate::service::{Service, unmount_below};

/// Programs that it needs, including the container runtime.
pub(super) const PROGRAMS: [&str; 5] = ["containerd", "ctr", "containerd-shim-runc-v2", "runc", "curl"];

/// The namespace of the kubelet's images, which the CRI image service uses.
pub(super) const NAMESPACE: &str = "k8s.io";

pub(super) struct Daemon {
    programs: Vec<PathBuf>,
    /// Images and snapshots.
    pub(super) store: PathBuf,
    /// State of running containers, and sockets, whose paths must be short.
    pub(super) run: PathBuf,
    running: RefCell<Option<Service>>,
}

/// The path of an installed program.
pub(super) fn found(program: &str) -> Result<PathBuf> {
    process::find(program).with_context(|| format!("{program} is not installed"))
}

impl Daemon {
    pub(super) fn new(name: &str) -> Result<Self> {
        let programs = PROGRAMS.into_iter().map(found).collect::<Result<_>>()?;
        Ok(Self {
            programs,
            store: store(name),
            run: Path::new("/run/tarpon-bench").join(name),
            running: RefCell::default(),
        })
    }

    pub(super) fn programs(&self) -> Vec<&Path> {
        self.programs.iter().map(PathBuf::as_path).collect()
    }

    /// Containerd's socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.run.join("containerd.sock")
    }

    /// The socket of a snapshotter in a separate process.
    pub(super) fn snapshotter_socket(&self) -> PathBuf {
        self.run.join("snapshotter.sock")
    }

    pub(super) fn make_folders(&self) -> Result<()> {
        fs::create_dir_all(&self.run).with_context(|| format!("cannot make {}", self.run.display()))?;
        fs::create_dir_all(&self.store).with_context(|| format!("cannot make {}", self.store.display()))
    }

    /// Starts containerd, with a snapshotter for images from `registry`.
    pub(super) fn start(&self, snapshotter: &str, registry: &str) -> Result<()> {
        self.make_folders()?;
        let hosts = self.store.join("hosts").join(registry);
        fs::create_dir_all(&hosts)?;
        let plain = format!("[host.\"http://{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
        fs::write(hosts.join("hosts.toml"), plain)?;
        let config = self.store.join("config.toml");
        fs::write(&config, self.config(snapshotter))?;
        let mut command = Command::new(&self.programs[0]);
        command.arg("--config").arg(config);
        let service = Service::start(command, &self.store.join("log"), || answers(&self.socket()))?;
        *self.running.borrow_mut() = Some(service);
        Ok(())
    }

    /// A configuration for containerd 1.6 and 1.7; later versions accept it too.
    fn config(&self, snapshotter: &str) -> String {
        let (store, run) = (self.store.display(), self.run.display());
        let proxy = match snapshotter {
            OWN => String::new(),
            other => format!(
                "[proxy_plugins.{other}]\ntype = \"snapshot\"\naddress = \"{}\"\n",
                self.snapshotter_socket().display()
            ),
        };
        format!(
            r#"version = 2
root = "{store}/root"
state = "{run}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.opt"]
[grpc]
address = "{socket}"
{proxy}
[plugins."io.containerd.grpc.v1.cri"]
disable_apparmor = true
disable_cgroup = true
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{store}/cni"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{store}/hosts"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
disable_snapshot_annotations = false
"#,
            socket = self.socket().display(),
        )
    }

    /// A command of `ctr`.
    pub(super) fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.programs[1]);
        command.arg("--address").arg(self.socket()).args(["--namespace", NAMESPACE]).args(arguments);
        command
    }

    /// Pulls an image and runs `script` in it.
    pub(super) fn pull_and_run(&self, snapshotter: &str, image: &str, script: &str) -> Result<Command> {
        let request = self.run.join("request");
        fs::write(&request, pull_request(image)).context("cannot write the request to pull")?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{PULL} && {RUN}")]);
        command.env("CTR", &self.programs[1]).env("SOCKET", self.socket()).env("NAMESPACE", NAMESPACE);
        command.env("CURL", &self.programs[4]).env("REQUEST", request).env("ANSWER", self.run.join("answer"));
        command.env("RUNC_ROOT", self.run.join("runc")).env("SNAPSHOTTER", snapshotter);
        command.env("IMAGE", image).env("SCRIPT", script).env("CONTAINER", CONTAINER);
        Ok(command)
    }

    /// Whether the container's root file system is mounted there.
    pub(super) fn is_root(&self, mountpoint: &Path) -> bool {
        let tasks = self.run.join("state/io.containerd.runtime.v2.task");
        mountpoint == tasks.join(NAMESPACE).join(CONTAINER).join("rootfs")
    }

    /// Ends the container and containerd.
    pub(super) fn end(&self) -> Result<()> {
        if let Some(running) = self.running.borrow_mut().take() {
            quietly(self.ctr(&["tasks", "rm", "--force", CONTAINER]));
            quietly(self.ctr(&["containers", "rm", CONTAINER]));
            running.end()?;
        }
        Ok(())
    }

    /// Removes everything. No process of it may run.
    pub(super) fn wipe(&self) -> Result<()> {
        unmount_below(&self.run);
        unmount_below(&self.store);
        remove(&self.run)?;
        remove(&self.store)
    }
}

/// The snapshotter that is part of containerd.
pub(super) const OWN: &str = "overlayfs";

/// Pulls like the kubelet. `ctr images pull` passes a snapshotter no image information, so nothing could be lazy.
const PULL: &str = "{ \"$CURL\" -sS --http2-prior-knowledge --unix-socket \"$SOCKET\" -o /dev/null -D \"$ANSWER\" \
    -H 'content-type: application/grpc' -H 'te: trailers' --data-binary \"@$REQUEST\" \
    http://containerd/runtime.v1.ImageService/PullImage && grep -q '^grpc-status: 0' \"$ANSWER\" || \
    { cat \"$ANSWER\" >&2; exit 1; }; }";

/// Runs a container without cgroups: those here differ from what runc expects on a whole machine.
const RUN: &str = "exec \"$CTR\" --address \"$SOCKET\" --namespace \"$NAMESPACE\" run --rm --net-host --runc-root \"$RUNC_ROOT\" \
    --cgroup= --cpu-shares=0 --snapshotter \"$SNAPSHOTTER\" \"$IMAGE\" \"$CONTAINER\" /bin/sh -c \"$SCRIPT\"";

/// Whether a process listens at a socket.
pub(super) fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// `runtime.v1.PullImageRequest` with only the name of the image, as one gRPC message.
fn pull_request(image: &str) -> Vec<u8> {
    let message = first_field(&first_field(image.as_bytes()));
    // A gRPC frame begins with a compression flag and a length.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

/// A protobuf message whose field 1 has these bytes.
fn first_field(bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![0x0a];
    let mut length = bytes.len();
    while length >= 0x80 {
        message.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    message.push(length.to_le_bytes()[0]);
    message.extend_from_slice(bytes);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon() -> Daemon {
        Daemon { programs: Vec::new(), store: "/s".into(), run: "/r".into(), running: RefCell::default() }
    }

    #[test]
    fn a_request_is_a_frame_around_two_messages() {
        assert_eq!(pull_request("r/i:t"), b"\0\0\0\0\x09\x0a\x07\x0a\x05r/i:t");
        assert_eq!(first_field(&[b'x'; 300])[..3], [0x0a, 0xac, 0x02]);
    }

    #[test]
    fn a_snapshotter_of_its_own_is_a_proxy_plugin_and_containerd_s_is_none() {
        assert!(daemon().config("tarpon").contains("[proxy_plugins.tarpon]\ntype = \"snapshot\"\naddress = \"/r/snap"));
        assert!(!daemon().config(OWN).contains("proxy_plugins"));
    }

    #[test]
    fn a_root_file_system_is_distinguished_from_that_of_another_container() {
        let tasks = "/r/state/io.containerd.runtime.v2.task/k8s.io";
        assert!(daemon().is_root(Path::new(&format!("{tasks}/{CONTAINER}/rootfs"))));
        assert!(!daemon().is_root(Path::new(&format!("{tasks}/other/rootfs"))));
    }
}
