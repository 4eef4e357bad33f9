//! [`Manager`]: a service manager as a daemon sees it: notifications, and a store of descriptors (`sd_notify(3)`, `FDSTORE=1`).

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first descriptor that a service gets.
const FIRST_DESCRIPTOR: i32 = 3;

/// Starts one daemon after the other, and stores what they send.
pub struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    stored: Vec<(String, OwnedFd)>,
}

impl Manager {
    /// A manager that listens at this path, in place of an earlier one.
    pub fn new(path: &Path) -> Self {
        let _absent = std::fs::remove_file(path);
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, path: path.to_owned(), stored: Vec::new() }
    }

    /// Passes a descriptor to all daemons, as the socket of a unit.
    pub fn pass(&mut self, name: &str, descriptor: OwnedFd) {
        self.stored.insert(0, (name.to_owned(), descriptor));
    }

    /// Starts a daemon with the stored descriptors, and waits until it reports that it is ready.
    pub fn start(&mut self, command: &mut Command) -> Child {
        let names = self.stored.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(":");
        let descriptors = self.stored.iter().zip(FIRST_DESCRIPTOR..);
        let mapped = descriptors.map(|((_, descriptor), child_fd)| {
            let parent_fd = descriptor.try_clone().unwrap();
            FdMapping { parent_fd, child_fd }
        });
        // The process is known only after the fork.
        let mut shell = Command::new("sh");
        shell.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            shell.env(name, value);
        }
        if !names.is_empty() {
            shell.env("LISTEN_FDS", self.stored.len().to_string()).env("LISTEN_FDNAMES", names);
            shell.fd_mappings(mapped.collect()).unwrap();
        }
        let child = shell.env("NOTIFY_SOCKET", &self.path).env("RUST_LOG", "off").spawn().unwrap();
        while self.receive() != "READY=1" {}
        child
    }

    /// Handles messages until this number of descriptors is stored under names that contain `part`.
    pub fn wait_for(&mut self, part: &str, count: usize) {
        while self.stored.iter().filter(|(name, _)| name.contains(part)).count() != count {
            self.receive();
        }
    }

    /// Handles one message, and returns it.
    pub fn receive(&mut self) -> String {
        let mut text = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [IoSliceMut::new(&mut text)];
        let received = rustix::net::recvmsg(&self.socket, &mut buffer, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let length = received.expect("a message of the daemon").bytes;
        let mut descriptors = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        let name = text.split_once("FDNAME=").map_or_else(String::new, |(_, name)| name.to_owned());
        if text.starts_with("FDSTORE=1\n") {
            self.stored.push((name, descriptors.next().expect("a descriptor")));
        } else if text.starts_with("FDSTOREREMOVE=1\n") {
            self.stored.retain(|(stored, _)| *stored != name);
        }
        text
    }
}
