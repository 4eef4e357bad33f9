//! A folder of GlusterFS: one brick, and a mount on each host.
//!
//! Both programs get their graphs from files, as glusterd would give them to them for a volume of one brick, so that nothing of this
//! machine's own GlusterFS is touched.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::bridge::Machine;

use crate::machine::made;
use crate::service::{Service, has_mounts_below, unmount_below};

/// The first port that glusterd gives to bricks.
const PORT: u16 = 49152;

/// The layers of a brick and of a mount, from the disk to the user: name, kind, options.
type Graph = Vec<(&'static str, &'static str, String)>;

/// The server of the folder.
pub(super) struct Brick {
    address: SocketAddr,
    _server: Service,
}

impl Brick {
    /// Serves an empty folder on a machine. Everything it keeps is in `folder`.
    pub(super) fn start(machine: &Machine, folder: &Path) -> Result<Self> {
        let address = SocketAddr::from((machine.address(), PORT));
        let graph = written(&made(folder)?.join("brick.vol"), &server(address, &made(&folder.join("brick"))?))?;
        let command = program("glusterfsd", &graph, folder);
        let is_up = || TcpStream::connect(address).is_ok();
        let server = machine.namespace.run(|| Service::start(command, &folder.join("output"), is_up))??;
        Ok(Self { address, _server: server })
    }

    /// Mounts it on another machine; everything of the mount is in `folder`.
    pub(super) fn mount(&self, machine: &Machine, folder: &Path) -> Result<GlusterMount> {
        let root = made(&folder.join("tier"))?;
        let graph = written(&folder.join("mount.vol"), &client(self.address))?;
        let mut command = program("glusterfs", &graph, folder);
        command.arg(&root);
        let is_up = || has_mounts_below(&root) && fs::read_dir(&root).is_ok();
        let client = machine.namespace.run(|| Service::start(command, &folder.join("output"), is_up))??;
        Ok(GlusterMount { root, _client: client })
    }
}

/// A mount on one machine. Dropping it unmounts it.
pub(super) struct GlusterMount {
    root: PathBuf,
    _client: Service,
}

impl GlusterMount {
    pub(super) fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for GlusterMount {
    fn drop(&mut self) {
        unmount_below(&self.root);
    }
}

/// One of the programs, in the foreground.
fn program(name: &str, graph: &Path, folder: &Path) -> Command {
    let mut command = Command::new(name);
    command.arg("--no-daemon").arg("--volfile").arg(graph);
    command.arg("--log-file").arg(folder.join("log")).arg("--pid-file").arg(folder.join("pid"));
    command
}

fn server(address: SocketAddr, brick: &Path) -> Graph {
    let (host, port) = (address.ip(), address.port());
    let listen = format!("transport.socket.bind-address {host}\n  option transport.socket.listen-port {port}");
    vec![
        ("files", "storage/posix", format!("option directory {}", brick.display())),
        ("locks", "features/locks", String::new()),
        ("tier", "performance/io-threads", String::new()),
        (
            "server",
            "protocol/server",
            format!("option transport-type tcp\n  option {listen}\n  option auth.addr.tier.allow *"),
        ),
    ]
}

fn client(address: SocketAddr) -> Graph {
    let (host, port) = (address.ip(), address.port());
    let remote = format!("option remote-host {host}\n  option remote-port {port}\n  option remote-subvolume tier");
    vec![
        ("remote", "protocol/client", format!("option transport-type tcp\n  {remote}")),
        ("write-behind", "performance/write-behind", String::new()),
        ("open-behind", "performance/open-behind", String::new()),
        ("quick-read", "performance/quick-read", String::new()),
        ("attributes", "performance/md-cache", String::new()),
    ]
}

/// Writes a graph in GlusterFS's format: each layer names the one below it.
fn written(file: &Path, graph: &Graph) -> Result<PathBuf> {
    let mut text = String::new();
    let mut below = None;
    for (name, kind, options) in graph {
        text.push_str(&format!("volume {name}\n  type {kind}\n"));
        text.extend((!options.is_empty()).then(|| format!("  {options}\n")));
        text.extend(below.map(|below| format!("  subvolumes {below}\n")));
        text.push_str("end-volume\n");
        below = Some(name);
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_of_a_graph_is_on_the_one_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let address = "10.231.0.150:49152".parse().unwrap();
        let text = |graph| fs::read_to_string(written(&folder.path().join("graph"), &graph).unwrap()).unwrap();
        let mount = text(client(address));
        assert!(
            mount.contains("volume write-behind\n  type performance/write-behind\n  subvolumes remote\nend-volume\n")
        );
        assert!(mount.contains("  option remote-host 10.231.0.150\n  option remote-port 49152\n"), "{mount}");
        let brick = text(server(address, Path::new("/srv/brick")));
        assert!(brick.starts_with("volume files\n  type storage/posix\n  option directory /srv/brick\nend-volume\n"));
        // A client asks for the layer below the server by its name.
        assert!(brick.contains("  option auth.addr.tier.allow *\n  subvolumes tier\n"), "{brick}");
    }
}
