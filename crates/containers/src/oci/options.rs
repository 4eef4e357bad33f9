//! Options that override the image config.

use std::net::IpAddr;
use std::str::FromStr;

use crate::network::{Network, Port};

use super::{AppArmor, CapabilityChanges, Limits, Tmpfs, Ulimit, Volume};

/// Options of a container. The default is the image config, on the network of the host, with all system calls.
#[derive(Debug, Clone, Default)]
pub struct ContainerOptions {
    /// Replaces the image's entrypoint, and drops the image's command.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's command.
    pub command: Vec<String>,
    /// `NAME=VALUE`, in addition to or instead of the image's.
    pub env: Vec<String>,
    /// `USER[:GROUP]` instead of the image's.
    pub user: Option<String>,
    /// The working directory, instead of the image's.
    pub directory: Option<String>,
    /// The host name.
    pub hostname: Option<String>,
    /// The network.
    pub network: Network,
    /// The published ports.
    pub ports: Vec<Port>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether its root file system is read-only.
    pub read_only: bool,
    /// Whether setuid programs and file capabilities have no effect.
    pub no_new_privileges: bool,
    /// Whether system calls are filtered, which the runtime must support.
    pub filtered: bool,
    /// Changes to the default capabilities.
    pub capabilities: CapabilityChanges,
    /// Mounted directories and files of the host.
    pub volumes: Vec<Volume>,
    /// File systems in memory.
    pub tmpfs: Vec<Tmpfs>,
    /// Resource limits of the container.
    pub limits: Limits,
    /// Resource limits of each of its processes.
    pub ulimits: Vec<Ulimit>,
    /// Bytes of its shared memory, `/dev/shm`.
    pub shm_size: Option<u64>,
    /// Whether its process runs below an init.
    pub init: bool,
    /// Additional names in `/etc/hosts`.
    pub hosts: Vec<HostEntry>,
    /// The AppArmor profile.
    pub apparmor: AppArmor,
    /// Whether it is intended to run without an SELinux label of its own. Containers never get one. Unless this is set, a host with SELinux
    /// causes a warning.
    pub unlabelled: bool,
}

/// A name in a container's `/etc/hosts`: `NAME:ADDRESS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    name: String,
    address: IpAddr,
}

impl HostEntry {
    /// Its line in the file.
    pub(crate) fn line(&self) -> String {
        format!("{} {}\n", self.address, self.name)
    }
}

impl FromStr for HostEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once([':', '=']).filter(|(name, _)| !name.is_empty());
        let (name, address) = parts.ok_or_else(|| "expected NAME:ADDRESS".to_owned())?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(format!("{name:?} is no name of a host"));
        }
        if address == "host-gateway" {
            return Err(
                "use the name host.containers.internal, or with --network host the address 127.0.0.1".to_owned()
            );
        }
        let plain = address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address);
        let address = plain.parse().map_err(|_| format!("{address:?} is no IP address"))?;
        Ok(Self { name: name.to_owned(), address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_and_an_address() {
        let line = |text: &str| text.parse().map(|entry: HostEntry| entry.line());
        assert_eq!(line("db:10.0.0.7").as_deref(), Ok("10.0.0.7 db\n"));
        assert_eq!(line("db.local=::1").as_deref(), Ok("::1 db.local\n"));
        assert_eq!(line("db:[fe80::1]").as_deref(), Ok("fe80::1 db\n"));
        for (text, why) in [
            ("db", "NAME:ADDRESS"),
            (":1.2.3.4", "NAME:ADDRESS"),
            ("db:web", "no IP address"),
            ("d b:1.2.3.4", "no name of a host"),
            ("a\n6.6.6.6 b:1.2.3.4", "no name of a host"),
            ("host:host-gateway", "127.0.0.1"),
        ] {
            let error = line(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
