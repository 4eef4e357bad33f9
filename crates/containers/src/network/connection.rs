//! [`Connection`]: the network of a container in its record, and the steps that make and remove it.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tarpon_store::Store;

use super::bridge::{self, Bridged};
use super::files::{FORWARDED, has_resolver, host_address, hosts, resolvers};
use super::kind::Network;
use super::namespace::Namespace;
use super::pasta;
use super::publish::Port;
use super::sockets;
use super::subnet::Subnet;
use crate::{Error, ErrorKind, Result, ResultExt};

/// The folder of network namespaces of root, of Podman and of `ip netns`.
const OF_ROOT: &str = "/run/netns";

/// The resolvers of the host if `/etc/resolv.conf` names only a local one of systemd.
const OF_SYSTEMD: &str = "/run/systemd/resolve/resolv.conf";

/// The network of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Which one.
    pub network: Network,
    /// The published ports.
    pub ports: Vec<Port>,
    /// The address of the container, if it is connected.
    pub address: Option<Ipv4Addr>,
    /// The name of its network namespace.
    pub namespace: PathBuf,
}

/// A container that was connected.
pub(crate) struct Connected {
    pub(crate) connection: Connection,
    /// Content of `/etc/hosts`.
    pub(crate) hosts: String,
    /// Content of `/etc/resolv.conf`.
    pub(crate) resolvers: String,
    /// Reserves the published ports, as long as the container runs.
    pub(crate) reserved: Vec<OwnedFd>,
}

/// The folder for network namespaces of this user.
fn namespace_folder(store: &Store) -> PathBuf {
    if !store.in_user_namespace() {
        return OF_ROOT.into();
    }
    // The user's own folder is where the AppArmor profile of pasta lets it look.
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    own.unwrap_or_else(|| store.run_folder()).join("netns")
}

impl Connection {
    /// The network that the container with this ID will have; `None` if it needs none of its own. The caller has checked that this host can
    /// connect it ([`Network::check`]).
    pub(crate) fn plan(network: Network, ports: &[Port], id: &str, store: &Store) -> Option<Self> {
        let namespace = || namespace_folder(store).join(format!("tarpon-{id}"));
        network.is_connected().then(|| Self { network, ports: ports.to_vec(), address: None, namespace: namespace() })
    }

    /// Makes the network. What it makes before an error is removed by [`Connection::remove`]. `folder`: the directory of the container;
    /// `names`: its names.
    pub(crate) fn make(&self, id: &str, folder: &Path, names: &[&str]) -> Result<Connected> {
        let mut connection = self.clone();
        let mut reserved = sockets::reserve(&mut connection.ports)?;
        let namespace = Namespace::at(&self.namespace);
        namespace.make().context(ErrorKind::Other, "make a network namespace")?;
        let resolv = resolver_file();
        let name = names.first().copied().unwrap_or_default();
        let (address, host, forwarded) = match self.network {
            Network::Bridge => {
                if !has_resolver(&resolv) {
                    tracing::warn!(
                        "the container has no resolver: that of this host listens on its loopback interface only"
                    );
                }
                let Bridged { address, gateway } =
                    bridge::connect(id, name, folder, namespace.path(), &connection.ports)?;
                (address, Some(IpAddr::from(gateway)), None)
            }
            _ => {
                // pasta listens on the ports itself.
                reserved.clear();
                let no_subnet = || Error::new(ErrorKind::Other, "choose an address", "this host uses 10.89.0.0/16");
                let subnet = Subnet::free("").ok_or_else(no_subnet)?;
                let forwards_names = !has_resolver(&resolv);
                pasta::start(&namespace, subnet, &connection.ports, forwards_names)?;
                let address = subnet.addresses().next().unwrap_or(subnet.gateway());
                (address, host_address(), forwards_names.then_some(FORWARDED))
            }
        };
        connection.address = Some(address);
        let of_host = read("/etc/hosts");
        let (hosts, resolvers) = (hosts(&of_host, address, names, host), resolvers(&resolv, forwarded));
        Ok(Connected { connection, hosts, resolvers, reserved })
    }

    /// Removes the network of the container with this ID, whatever of it exists.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        const STEP: &str = "remove the container's network";
        if self.network == Network::Bridge {
            bridge::disconnect(id)?;
        }
        let namespace = Namespace::at(&self.namespace);
        namespace.remove().context(ErrorKind::Other, STEP)?;
        if self.network == Network::Pasta {
            pasta::stop(&namespace);
        }
        Ok(())
    }

    /// Removes networks of containers that are gone.
    pub(crate) fn recover(store: &Store) -> Result<()> {
        if store.in_user_namespace() || !rustix::process::geteuid().is_root() { Ok(()) } else { bridge::recover() }
    }
}

/// The host's resolvers. If there is only a local one of systemd, those that it asks.
fn resolver_file() -> String {
    let text = read("/etc/resolv.conf");
    if has_resolver(&text) {
        return text;
    }
    let asked = read(OF_SYSTEMD);
    if has_resolver(&asked) { asked } else { text }
}

/// The content of a file of the host; empty if it does not exist.
fn read(path: &str) -> String {
    use std::io::Read;
    /// Both files have a few lines.
    const FILE_BYTES: u64 = 1 << 20;
    let mut text = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _partly = file.take(FILE_BYTES).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}
