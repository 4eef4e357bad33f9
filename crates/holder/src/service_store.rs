//! [`ServiceStore`]: the descriptor store of the service manager, which outlives all processes of the service.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::link::HeldDescriptor;
use crate::socket;

/// Variable with the address of the manager (`sd_notify(3)`).
const MANAGER: &str = "NOTIFY_SOCKET";
/// Prefix of the names of stored descriptors, which distinguishes them from sockets of units.
const PREFIX: &str = "held.";
/// Time for one sync. Signs of life to the holder wait meanwhile, and it waits 15 seconds for one.
const SYNC_LIMIT: Duration = Duration::from_secs(1);

/// The descriptor store of systemd (`FDSTORE=1`, `FileDescriptorStoreMax=`). It is a second place for what the holder has: `systemctl kill`
/// kills the holder together with the server. systemd starts the service again with the stored descriptors. When the service has failed or
/// is stopped, it closes them, so readers wait no longer than it tries to start the service.
#[derive(Debug)]
pub struct ServiceStore {
    manager: OwnedFd,
    /// What the manager passed to this process.
    passed: Vec<HeldDescriptor>,
    /// The names of that, also of what was taken.
    names: Vec<String>,
    /// Names for which the manager does not have what this process has.
    changed: BTreeSet<String>,
    /// Whether the manager took the last message.
    is_reachable: bool,
}

impl ServiceStore {
    /// The store of the manager that started this process. `None` if there is none. `passed`: descriptors that it passed, by name. Those of
    /// other origin are dropped.
    pub fn open(passed: Vec<(String, OwnedFd)>) -> Option<Self> {
        let address = std::env::var_os(MANAGER).filter(|address| !address.is_empty())?;
        let manager = connect(&address)
            .inspect_err(|error| tracing::warn!(%error, "the descriptor store of the service manager is not used"))
            .ok()?;
        Some(Self::new(manager, passed))
    }

    pub(crate) fn new(manager: OwnedFd, passed: Vec<(String, OwnedFd)>) -> Self {
        let passed = passed.into_iter().filter_map(|(name, descriptor)| {
            let name = name.strip_prefix(PREFIX)?.to_owned();
            Some(HeldDescriptor { name, descriptor })
        });
        let passed: Vec<_> = passed.collect();
        let names = passed.iter().map(|held| held.name.clone()).collect();
        Self { manager, passed, names, changed: BTreeSet::new(), is_reachable: true }
    }

    /// Removes from the store what it passed to this process, also what was taken: this process does not serve it, and readers of a
    /// connection without a server wait.
    pub fn forget_passed(&mut self) {
        self.forget_passed_within(SYNC_LIMIT);
    }

    /// As [`ServiceStore::forget_passed`], within this limit.
    pub(crate) fn forget_passed_within(&mut self, limit: Duration) {
        self.disown_passed();
        self.sync_until(&BTreeMap::new(), Instant::now() + limit);
    }

    /// Drops what the store passed, which the next [`ServiceStore::sync`] replaces by what this process has.
    pub(crate) fn disown_passed(&mut self) {
        self.passed.clear();
        self.changed.extend(std::mem::take(&mut self.names));
    }

    /// What the store has of an earlier process. It keeps it.
    pub(crate) fn take_passed(&mut self) -> Vec<HeldDescriptor> {
        std::mem::take(&mut self.passed)
    }

    /// The descriptor of this name is another one since the last [`ServiceStore::sync`], or is no longer kept.
    pub(crate) fn change(&mut self, name: &str) {
        self.changed.insert(name.to_owned());
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.changed.is_empty()
    }

    /// Lets the store have what is kept, within a second. What it does not take is left for the next call.
    pub(crate) fn sync(&mut self, kept: &BTreeMap<String, OwnedFd>) {
        // A manager that does not answer is not waited for again and again.
        let limit = if self.is_reachable { SYNC_LIMIT } else { Duration::ZERO };
        self.sync_until(kept, Instant::now() + limit);
    }

    fn sync_until(&mut self, kept: &BTreeMap<String, OwnedFd>, until: Instant) {
        // From the last name on: records of open files (`opens.*`) and states (`state.*`) before the connections (`fuse.*`) that need them.
        while let Some(name) = self.changed.last() {
            if let Err(error) = self.replace(name, kept.get(name), until) {
                if std::mem::take(&mut self.is_reachable) {
                    tracing::warn!(%error, "the service manager does not take messages: until it does, a kill of all processes of the unit ends its mounts");
                }
                return;
            }
            self.changed.pop_last();
        }
        if !std::mem::replace(&mut self.is_reachable, true) {
            tracing::info!("the service manager takes messages again");
        }
    }

    /// Removes all descriptors of this name, and stores a duplicate of the one that is kept.
    fn replace(&self, name: &str, kept: Option<&OwnedFd>, until: Instant) -> io::Result<()> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{name}"), None, until)?;
        kept.map_or(Ok(()), |kept| self.send(&format!("FDSTORE=1\nFDNAME={PREFIX}{name}"), Some(kept.as_fd()), until))
    }

    fn send(&self, text: &str, descriptor: Option<BorrowedFd<'_>>, until: Instant) -> io::Result<()> {
        send_within(self.manager.as_fd(), text, descriptor, until)
    }
}

fn connect(address: &OsStr) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    match address.as_bytes().strip_prefix(b"@") {
        Some(name) => rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?,
        None => {
            let path = OsString::from(address);
            socket::with_address(Path::new(&path), |address| Ok(rustix::net::connect(&socket, address)?))?;
        }
    }
    Ok(socket)
}

fn send_within(
    socket: BorrowedFd<'_>,
    text: &str,
    descriptor: Option<BorrowedFd<'_>>,
    until: Instant,
) -> io::Result<()> {
    loop {
        match socket::send_packet(socket, text.as_bytes(), descriptor) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) if socket::wait(socket, PollFlags::OUT, until) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn receive(manager: &OwnedFd) -> String {
        let mut text = [0; 512];
        let (length, _) = rustix::net::recv(manager, &mut text, rustix::net::RecvFlags::DONTWAIT).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    fn kept(names: &[&str], descriptor: &OwnedFd) -> BTreeMap<String, OwnedFd> {
        names.iter().map(|name| ((*name).to_owned(), descriptor.try_clone().unwrap())).collect()
    }

    #[test]
    fn descriptors_are_stored_and_removed_under_names_of_their_own() {
        let (manager, ours) = manager();
        let mut store = ServiceStore::new(ours, Vec::new());
        store.change("fuse.41.0");
        store.sync(&kept(&["fuse.41.0", "fuse.42.0"], &manager));
        store.change("fuse.41.0");
        store.sync(&BTreeMap::new());
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.fuse.41.0", "it may have several of one name");
        assert_eq!(receive(&manager), "FDSTORE=1\nFDNAME=held.fuse.41.0");
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.fuse.41.0");
        assert!(store.is_synced());
    }

    #[test]
    fn what_a_connection_needs_is_stored_before_it() {
        let (manager, ours) = manager();
        let mut store = ServiceStore::new(ours, Vec::new());
        let names = ["fuse.41.0", "opens.41", "state.counters"];
        names.iter().for_each(|name| store.change(name));
        store.sync(&kept(&names, &manager));
        for name in names.iter().rev() {
            assert_eq!(receive(&manager), format!("FDSTOREREMOVE=1\nFDNAME=held.{name}"));
            assert_eq!(receive(&manager), format!("FDSTORE=1\nFDNAME=held.{name}"));
        }
    }

    #[test]
    fn what_was_passed_is_taken_or_removed_and_sockets_of_units_are_neither() {
        let (manager, ours) = manager();
        let passed = || ["tarpon.socket", "held.a", "held.b"].map(|name| (name.to_owned(), ours.try_clone().unwrap()));
        let mut store = ServiceStore::new(ours.try_clone().unwrap(), passed().into());
        store.forget_passed();
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.b");
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.a");
        let mut store = ServiceStore::new(ours.try_clone().unwrap(), passed().into());
        let names: Vec<_> = store.take_passed().into_iter().map(|held| held.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(store.is_synced(), "the manager has them already");
    }

    #[test]
    fn what_a_full_socket_did_not_take_is_sent_later() {
        let (manager, ours) = manager();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        while rustix::net::send(&ours, b"STATUS=busy", rustix::net::SendFlags::DONTWAIT).is_ok() {}
        let mut store = ServiceStore::new(ours, Vec::new());
        store.change("a");
        let kept = kept(&["a"], &manager);
        store.sync_until(&kept, Instant::now());
        assert!(!store.is_synced());
        let mut text = [0; 512];
        while rustix::net::recv(&manager, &mut text, rustix::net::RecvFlags::DONTWAIT).is_ok() {}
        store.sync(&kept);
        assert!(store.is_synced());
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.a");
        assert_eq!(receive(&manager), "FDSTORE=1\nFDNAME=held.a");
    }
}
