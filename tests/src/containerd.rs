//! A containerd for one test, with tarpon as its snapshotter, in a mount namespace of their own.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use crate::real::{self, run};
use crate::tarpon::{Tarpon, binary};

/// How long a process may take to answer or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a pull may take: the whole image, on a busy machine.
const PULLING: Duration = Duration::from_secs(300);

/// Sets up a namespace with the cgroups that crun needs, which lasts until standard input ends.
const HOLD: &str = "umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup; echo ready; exec cat";

/// For containerd 1.x.
const CONFIG_1: &str = r#"
[plugins."io.containerd.grpc.v1.cri"]
  disable_apparmor = true
  disable_cgroup = true
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "HERE/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "tarpon"
    disable_snapshot_annotations = false
"#;

/// For containerd 2.x.
const CONFIG_2: &str = r#"
  [proxy_plugins.tarpon.exports]
    root = "ROOT"
    enable_remote_snapshot_annotations = "true"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_port = "0"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    conf_dir = "HERE/cni"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "tarpon"
[plugins."io.containerd.transfer.v1.local"]
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "PLATFORM"
    snapshotter = "tarpon"
    differ = "walking"
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "PLATFORM"
    snapshotter = "overlayfs"
    differ = "walking"
"#;

/// Containerd, tarpon's snapshotter, and the store behind it. Dropping it ends all of them.
pub struct Containerd {
    /// The snapshotter's store.
    pub tarpon: Tarpon,
    /// Has a short name: paths of sockets are limited to 108 bytes.
    folder: TempDir,
    holder: Child,
    snapshotter: Option<Child>,
    containerd: Option<Child>,
}

/// `runtime.v1.PullImageRequest`, with the fields that are used here.
#[derive(Clone, PartialEq, Message)]
struct PullImage {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    auth: Option<AuthConfig>,
}

/// `runtime.v1.AuthConfig`.
#[derive(Clone, PartialEq, Message)]
struct AuthConfig {
    #[prost(string, tag = "1")]
    username: String,
    #[prost(string, tag = "2")]
    password: String,
}

/// `runtime.v1.ImageSpec`.
#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

/// `runtime.v1.PullImageResponse`, also used for the empty `runtime.v1.RemoveImageResponse`.
#[derive(Clone, PartialEq, Message)]
struct Pulled {
    #[prost(string, tag = "1")]
    image: String,
}

impl Containerd {
    /// Why tests with the real images cannot run on this machine; `None` if they can.
    pub fn missing() -> Option<String> {
        real::missing().or_else(Self::missing_programs)
    }

    /// Why tests with images of their own cannot run on this machine; `None` if they can.
    pub fn missing_programs() -> Option<String> {
        let lacking = || {
            (!real::have(&["containerd", "ctr", "runc", "nsenter", "unshare"]))
                .then(|| "no containerd or runc".to_owned())
        };
        real::missing_for_mounts().or_else(lacking)
    }

    /// Starts all processes; `options` are the snapshotter's, where `HERE` is the folder of the sockets.
    pub fn start(options: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tc-").tempdir_in("/tmp")?;
        let mut holder = Command::new("unshare")
            .args(["-m", "sh", "-c", HOLD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start unshare")?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().context("no output")?).read_line(&mut line)?;
        let tarpon = Tarpon::new()?;
        let mut all = Self { tarpon, folder, holder, snapshotter: None, containerd: None };
        std::fs::write(all.path("config.toml"), all.config(major()?))?;
        all.start_snapshotter(options)?;
        all.start_containerd()?;
        Ok(all)
    }

    /// The configuration that `docs/containerd.md` shows for this version, with additions for a containerd of its own.
    fn config(&self, major: u32) -> String {
        let own = r#"
version = VERSION
root = "HERE/root"
state = "HERE/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.opt"]
[grpc]
  address = "HERE/c.sock"
[proxy_plugins.tarpon]
  type = "snapshot"
  address = "HERE/s.sock"
"#;
        let (version, rest) = if major < 2 { ("2", CONFIG_1) } else { ("3", CONFIG_2) };
        let platform = tarpon_oci::Platform::host().to_string();
        let config = [own, rest].concat().replace("VERSION", version).replace("PLATFORM", &platform);
        config
            .replace("ROOT", &self.tarpon.store().join("snapshotter").display().to_string())
            .replace("HERE", &self.folder.path().display().to_string())
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command that runs in the namespace.
    pub fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).args(program).stdin(Stdio::null());
        command.env("TARPON_STORE", self.tarpon.store());
        command
    }

    /// Runs tarpon on the snapshotter's store.
    pub fn tarpon(&self, arguments: &[&str]) -> Result<String> {
        let program = binary();
        run(self.command(&[program.to_str().context("an odd path")?]).args(arguments))
    }

    /// `ctr`, in the namespace of containerd that Kubernetes uses.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.path("c.sock").display().to_string();
        run(self.command(&["ctr", "-a", &socket, "-n", "k8s.io"]).args(arguments))
    }

    /// Runs a container to its end; returns its output.
    pub fn run(&self, snapshotter: &str, image: &str, name: &str, program: &[&str]) -> Result<String> {
        run(&mut self.container(snapshotter, &[], image, name, program))
    }

    /// Runs a script of a shell in a container and returns its output, which is written to a file of the host: `ctr` lost the end of long
    /// outputs on a busy machine.
    ///
    /// # Errors
    /// The script fails.
    pub fn run_script(&self, snapshotter: &str, image: &str, name: &str, script: &str) -> Result<String> {
        let shared = tempfile::tempdir_in(self.folder.path())?;
        let mount = format!("type=bind,src={},dst=/output,options=rbind:rw", shared.path().display());
        let script = format!("{{ {script}; }} > /output/text");
        run(&mut self.container(snapshotter, &["--mount", &mount], image, name, &["sh", "-c", &script]))?;
        std::fs::read_to_string(shared.path().join("text")).context("the script wrote nothing")
    }

    /// The command that runs a container.
    pub fn container(&self, snapshotter: &str, options: &[&str], image: &str, name: &str, program: &[&str]) -> Command {
        let at = |name: &str| self.path(name).display().to_string();
        // The default root shares identifiers with all containerds of the machine. The cgroups here differ from those runc expects.
        let own = ["--runc-root", &at("runc"), "--cgroup=", "--cpu-shares=0", "--snapshotter", snapshotter];
        let mut command = self.command(&["ctr", "-a", &at("c.sock"), "-n", "k8s.io", "run", "--rm"]);
        command.args(own).args(options).args([image, name]).args(program);
        command
    }

    /// Starts the snapshotter.
    pub fn start_snapshotter(&mut self, options: &[&str]) -> Result<()> {
        let (address, log) = (
            self.path("s.sock"),
            std::fs::File::options().create(true).append(true).open(self.path("snapshotter.log"))?,
        );
        let program = binary();
        let mut command = self.command(&[program.to_str().context("an odd path")?, "snapshotter", "--address"]);
        let options = options.iter().map(|option| option.replace("HERE", &self.folder.path().display().to_string()));
        self.snapshotter = Some(command.arg(&address).args(options).stdout(log.try_clone()?).stderr(log).spawn()?);
        self.wait_for(&address)?;
        // After a failed call containerd waits before it reconnects.
        let began = Instant::now();
        while self.containerd.is_some() && self.ctr(&["snapshots", "--snapshotter", "tarpon", "ls"]).is_err() {
            if began.elapsed() > PATIENCE {
                bail!("containerd does not come back:\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Ends the snapshotter: with SIGKILL if `kill` is set.
    pub fn stop_snapshotter(&mut self, kill: bool) -> Result<()> {
        self.snapshotter.take().map_or(Ok(()), |child| end(child, if kill { Signal::KILL } else { Signal::TERM }))
    }

    /// Stops containerd.
    pub fn stop_containerd(&mut self) -> Result<()> {
        self.containerd.take().map_or(Ok(()), |child| end(child, Signal::TERM))
    }

    /// Starts containerd, and waits until it serves the kubelet.
    pub fn start_containerd(&mut self) -> Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(self.path("containerd.log"))?;
        let config = self.path("config.toml").display().to_string();
        let mut command = self.command(&["containerd", "--config", &config]);
        self.containerd = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        self.wait_for(&self.path("c.sock"))?;
        // Its CRI plugin starts after the socket answers. Removing a missing image does nothing.
        let began = Instant::now();
        while let Err(error) = self.remove("127.0.0.1/none:none") {
            if began.elapsed() > PATIENCE {
                return Err(error.context("containerd does not serve the kubelet"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn wait_for(&self, socket: &Path) -> Result<()> {
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if began.elapsed() > PATIENCE {
                bail!("nobody answers at {}:\n{}", socket.display(), self.logs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The logs of both.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for name in ["snapshotter.log", "containerd.log"] {
            let read = std::fs::File::open(self.path(name)).and_then(|mut log| log.read_to_string(&mut all));
            all.push_str(if read.is_err() { "no log\n" } else { "" });
        }
        all
    }

    /// Pulls an image as the kubelet does.
    pub fn pull(&self, image: &str) -> Result<()> {
        self.image_service("c.sock", "PullImage", image, None)
    }

    /// Pulls an image through the snapshotter, as the kubelet does with `imageServiceEndpoint`, and with a user and a password.
    pub fn pull_with(&self, image: &str, auth: Option<(&str, &str)>) -> Result<()> {
        self.image_service("s.sock", "PullImage", image, auth)
    }

    /// Removes an image as the kubelet does.
    pub fn remove(&self, image: &str) -> Result<()> {
        self.image_service("c.sock", "RemoveImage", image, None)
    }

    fn image_service(&self, socket: &str, method: &str, image: &str, auth: Option<(&str, &str)>) -> Result<()> {
        let auth = auth.map(|(user, password)| AuthConfig { username: user.to_owned(), password: password.to_owned() });
        let request = PullImage { image: Some(ImageSpec { image: image.to_owned() }), auth };
        let address = format!("unix:{}", self.path(socket).display());
        let path = format!("/runtime.v1.ImageService/{method}").parse()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let channel = Endpoint::from_shared(address)?.timeout(PULLING).connect().await?;
            let mut client = Grpc::new(channel);
            client.ready().await?;
            let codec: ProstCodec<PullImage, Pulled> = ProstCodec::default();
            let answer = client.unary(tonic::Request::new(request), path, codec).await;
            answer.map(drop).with_context(|| format!("{method} {image}:\n{}", self.logs()))
        })
    }

    /// Creates a snapshot on the topmost layers of the only image, as for a container. Returns the directory in which they are mounted.
    pub fn mounted_layers(&self, key: &str, top: &str) -> Result<PathBuf> {
        let snapshots = |arguments: &[&str]| self.ctr(&[&["snapshots", "--snapshotter", "tarpon"], arguments].concat());
        snapshots(&["prepare", key, top])?;
        let mount = snapshots(&["mounts", "/mnt", key])?;
        let lower = mount.split(',').find_map(|option| option.trim().strip_prefix("lowerdir="));
        // `ctr` ends the options with the mount point.
        let lower = lower.and_then(|lower| lower.split_whitespace().next());
        lower.map(PathBuf::from).with_context(|| format!("no lower directory: {mount}"))
    }

    /// The mounts in the namespace, one per line.
    pub fn mounts(&self) -> Result<String> {
        Ok(std::fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id()))?)
    }
}

fn end(mut child: Child, signal: Signal) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    kill_process(pid, signal)?;
    let began = Instant::now();
    while child.try_wait()?.is_none() {
        if began.elapsed() > PATIENCE {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for child in [self.containerd.take(), self.snapshotter.take()].into_iter().flatten() {
            let _ = end(child, Signal::TERM);
        }
        let status = self.tarpon(&["status", "--json"]).unwrap_or_default();
        let mounts: Vec<serde_json::Value> = serde_json::from_str(&status).unwrap_or_default();
        for mount in mounts.iter().filter_map(|mount| mount["mountpoint"].as_str()) {
            let _ = self.tarpon(&["umount", mount]);
        }
        let servers: HashSet<u64> = mounts.iter().filter_map(|mount| mount["server"].as_u64()).collect();
        let began = Instant::now();
        // A server writes to the store when it ends, and the store is deleted here.
        while servers.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        // The end of its last process removes the namespace and all mounts in it.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// The major version of the installed containerd.
pub fn major() -> Result<u32> {
    let text = run(Command::new("containerd").arg("--version"))?;
    // `containerd github.com/containerd/containerd/v2 v2.4.2 COMMIT`, with or without the letter.
    let version = text.split_whitespace().nth(2).map(|version| version.trim_start_matches('v'));
    let major = version.and_then(|version| version.split('.').next()?.parse().ok());
    major.with_context(|| format!("no version of containerd: {text:?}"))
}
