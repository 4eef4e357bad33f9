//! [`Leases`]: the subnet of the bridge, and the containers that have an address in it.
//!
//! The bridge is one of the machine, so the leases are not part of a store. They are in memory, as interfaces and rules of the firewall
//! are: after a reboot there are neither.

use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarpon_store::{FileLock, flock, private};

use super::publish::Port;
use super::subnet::Subnet;

/// Where they are.
const FOLDER: &str = "/run/tarpon-network";

/// How long to wait for another process that connects a container.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Longest file that is read: 253 containers with 256 ports each take a tenth of it.
const FILE_BYTES: u64 = 64 << 20;

/// A container with an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    /// Its ID, which is unique among all stores.
    pub(super) id: String,
    /// Its name, which others may have, too.
    pub(super) name: String,
    /// Its directory. A lease ends with it.
    pub(super) folder: PathBuf,
    /// The name of its network namespace.
    pub(super) namespace: PathBuf,
    /// Its address.
    pub(super) address: Ipv4Addr,
    /// Its published ports.
    pub(super) ports: Vec<Port>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    subnet: Subnet,
    leases: Vec<Lease>,
}

/// The leases, while no other process changes them.
pub(super) struct Leases {
    file: PathBuf,
    _lock: FileLock,
    content: Option<Content>,
}

impl Leases {
    /// Those of this machine.
    pub(super) fn of_this_machine() -> io::Result<Self> {
        Self::within(Path::new(FOLDER))
    }

    fn within(folder: &Path) -> io::Result<Self> {
        match private::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock = flock::hold(&folder.join("lock"), TIMEOUT)?;
        let file = folder.join("leases.json");
        let mut text = Vec::new();
        let content = match std::fs::File::open(&file).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut text)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.and_then(|_| Ok(serde_json::from_slice(&text)?))?),
        };
        Ok(Self { file, _lock: lock, content })
    }

    /// The subnet, if a container has an address in it.
    pub(super) fn subnet(&self) -> Option<Subnet> {
        self.content.as_ref().map(|content| content.subnet)
    }

    /// The lease of the container with this ID.
    pub(super) fn of(&self, id: &str) -> Option<&Lease> {
        self.all().iter().find(|lease| lease.id == id)
    }

    pub(super) fn all(&self) -> &[Lease] {
        self.content.as_ref().map_or(&[], |content| &content.leases)
    }

    /// An address of this subnet that no container has; `None` if there is none.
    pub(super) fn free(&self, subnet: Subnet) -> Option<Ipv4Addr> {
        subnet.addresses().find(|address| self.all().iter().all(|lease| lease.address != *address))
    }

    /// Adds a lease.
    pub(super) fn add(&mut self, subnet: Subnet, lease: Lease) -> io::Result<()> {
        self.content.get_or_insert(Content { subnet, leases: Vec::new() }).leases.push(lease);
        self.write()
    }

    /// Removes the lease of the container with this ID. The next container after the last one may have another subnet.
    pub(super) fn remove(&mut self, id: &str) -> io::Result<()> {
        if let Some(content) = &mut self.content {
            content.leases.retain(|lease| lease.id != id);
        }
        self.content.take_if(|content| content.leases.is_empty());
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        match &self.content {
            Some(content) => private::write(&self.file, &serde_json::to_vec(content)?),
            None => match std::fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: &str, address: Ipv4Addr) -> Lease {
        let place = PathBuf::from("/nonexistent");
        Lease { id: id.into(), name: "web".into(), folder: place.clone(), namespace: place, address, ports: vec![] }
    }

    #[test]
    fn an_address_belongs_to_one_container_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Leases::within(&folder.path().join("run")).unwrap();
        let subnet = Subnet::free("").unwrap();
        let first = open().free(subnet).unwrap();
        open().add(subnet, lease("a", first)).unwrap();
        let second = open().free(subnet).unwrap();
        assert_ne!(first, second);
        open().add(subnet, lease("b", second)).unwrap();
        assert_eq!(open().subnet(), Some(subnet));
        assert_eq!(open().all().len(), 2);
        open().remove("a").unwrap();
        assert_eq!(open().free(subnet), Some(first));
        assert_eq!(open().of("b"), Some(&lease("b", second)));
        open().remove("b").unwrap();
        assert_eq!(open().subnet(), None);
        assert!(!folder.path().join("run/leases.json").exists());
    }

    #[test]
    fn a_subnet_has_room_for_253_containers() {
        let folder = tempfile::tempdir().unwrap();
        let mut leases = Leases::within(folder.path()).unwrap();
        let subnet = Subnet::free("").unwrap();
        let mut count = 0;
        while let Some(address) = leases.free(subnet) {
            count += 1;
            leases.content.get_or_insert(Content { subnet, leases: vec![] }).leases.push(lease("x", address));
        }
        assert_eq!(count, 253);
    }
}
