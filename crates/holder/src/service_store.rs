//! [`ServiceStore`]: the descriptor store of the service manager, which outlives all processes of the service.

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
/// Time for one message. Signs of life to the holder wait meanwhile, and it waits 15 seconds for one.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// The descriptor store of systemd (`FDSTORE=1`, `FileDescriptorStoreMax=`). It is a second place for what the holder has: `systemctl kill`
/// kills the holder together with the server. systemd starts the service again with the stored descriptors. When the service has failed or
/// is stopped, it closes them, so readers wait no longer than it tries to start the service.
#[derive(Debug)]
pub struct ServiceStore {
    /// `None` after a message that was not taken.
    manager: Option<OwnedFd>,
    /// What the manager passed to this process.
    passed: Vec<HeldDescriptor>,
    /// The names of that, also of what was taken.
    names: Vec<String>,
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
        Self { manager: Some(manager), passed, names }
    }

    /// Removes from the store what it passed to this process, also what was taken: this process does not serve it, and readers of a
    /// connection without a server wait.
    pub fn forget_passed(&mut self) {
        self.passed.clear();
        for name in std::mem::take(&mut self.names) {
            self.release(&name);
        }
    }

    /// What the store has of an earlier process. It keeps it.
    pub(crate) fn take_passed(&mut self) -> Vec<HeldDescriptor> {
        std::mem::take(&mut self.passed)
    }

    /// Stores a duplicate of the descriptor.
    pub(crate) fn keep(&mut self, name: &str, descriptor: BorrowedFd<'_>) {
        self.send(&format!("FDSTORE=1\nFDNAME={PREFIX}{name}"), Some(descriptor));
    }

    /// Removes all descriptors of this name.
    pub(crate) fn release(&mut self, name: &str) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={PREFIX}{name}"), None);
    }

    fn send(&mut self, text: &str, descriptor: Option<BorrowedFd<'_>>) {
        let Some(manager) = &self.manager else { return };
        if let Err(error) = send_within(manager.as_fd(), text, descriptor, Instant::now() + SEND_LIMIT) {
            tracing::warn!(%error, "the service manager does not take messages: its descriptor store is no longer used");
            self.manager = None;
        }
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

    #[test]
    fn descriptors_are_stored_and_removed_under_names_of_their_own() {
        let (manager, ours) = manager();
        let mut store = ServiceStore::new(ours, Vec::new());
        store.keep("fuse.41.0", manager.as_fd());
        store.release("fuse.41.0");
        assert_eq!(receive(&manager), "FDSTORE=1\nFDNAME=held.fuse.41.0");
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.fuse.41.0");
    }

    #[test]
    fn what_was_passed_is_taken_or_removed_and_sockets_of_units_are_neither() {
        let (manager, ours) = manager();
        let passed = || ["tarpon.socket", "held.a", "held.b"].map(|name| (name.to_owned(), ours.try_clone().unwrap()));
        let mut store = ServiceStore::new(ours.try_clone().unwrap(), passed().into());
        store.forget_passed();
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.a");
        assert_eq!(receive(&manager), "FDSTOREREMOVE=1\nFDNAME=held.b");
        let mut store = ServiceStore::new(ours.try_clone().unwrap(), passed().into());
        let names: Vec<_> = store.take_passed().into_iter().map(|held| held.name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_manager_that_is_gone_is_not_asked_again() {
        let (manager, ours) = manager();
        let mut store = ServiceStore::new(ours.try_clone().unwrap(), Vec::new());
        drop(manager);
        store.keep("fuse.41.0", ours.as_fd());
        assert!(store.manager.is_none());
    }
}
