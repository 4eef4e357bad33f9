//! [`Holding`]: what outlives this server, and what it got from its predecessor.
//!
//! A small process, the *holder* of the store, has duplicates of the descriptors that the server cannot make again: its FUSE
//! connections, and memory files with state that is in no record. It starts a successor when the server dies.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use tarpon_blob::LogLimit;
use tarpon_client::Client;
use tarpon_holder::{HoldOptions, Holder, HolderCommand, ServiceStore};
use tarpon_mount::{ConnectionHolder, Inheritance};
use tarpon_oci::Digest;

use crate::{ErrorKind, Result, ResultExt};

/// Argument of the server's command line that makes the process a holder. Its value is the socket of the holder.
const HOLD: &str = "--hold";
/// Argument for a directory from which the holder removes a dead mount.
const DEAD_MOUNT: &str = "--dead-mount";
/// Name of the holder's socket in the store's `run/`.
const SOCKET: &str = "holder.sock";
/// Prefix of the names of state.
const STATE: &str = "state.";
/// Maximum size of a state. The largest describes a store of layers with tens of thousands of directories.
const STATE_BYTES: u64 = 64 << 20;

/// How long the answer to a mount waits for the holder.
const HELD_LIMIT: Duration = Duration::from_secs(2);

/// How long the connections of a server last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// As long as this process.
    Process,
    /// As long as this process or a successor: the holder of the store has them as well.
    Held,
}

/// What outlives this server.
pub(crate) struct Holding {
    holder: Holder,
    lifetime: Lifetime,
    inherited: Mutex<HashMap<String, OwnedFd>>,
}

impl Holding {
    /// Takes what the holder of the store has, if one runs, else what the service manager has. Call it with the server's lock held.
    pub(crate) fn attach(
        client: &Client,
        lifetime: Lifetime,
        service: Option<ServiceStore>,
    ) -> (Arc<Self>, Inheritance) {
        let command = command(client);
        // A process that cannot start a holder has none.
        let lifetime = if command.program.is_empty() { Lifetime::Process } else { lifetime };
        let attached = match command.program.is_empty() {
            true => Ok((Holder::none(), Vec::new())),
            false => Holder::attach_in_service(command, service),
        };
        let (holder, held) = attached.unwrap_or_else(|error| {
            tracing::warn!(%error, "the holder of the store's connections does not answer: mounts of an earlier server are lost");
            (Holder::none(), Vec::new())
        });
        let mut held: Vec<_> = held.into_iter().map(|held| (held.name, held.descriptor)).collect();
        let inheritance = Inheritance::take(&mut held, &of_connections(&holder));
        let holder = match lifetime {
            Lifetime::Held => holder,
            Lifetime::Process => {
                holder.dismiss();
                Holder::none()
            }
        };
        (Arc::new(Self { holder, lifetime, inherited: Mutex::new(held.into_iter().collect()) }), inheritance)
    }

    /// A server without a holder whose predecessor kept these files.
    #[cfg(test)]
    pub(crate) fn inheriting(files: impl IntoIterator<Item = (&'static str, File)>) -> Self {
        let files = files.into_iter().map(|(name, file)| (format!("{STATE}{name}"), OwnedFd::from(file)));
        Self { holder: Holder::none(), lifetime: Lifetime::Process, inherited: Mutex::new(files.collect()) }
    }

    /// The holder, as mounts see it.
    pub(crate) fn of_connections(&self) -> Arc<dyn ConnectionHolder> {
        of_connections(&self.holder)
    }

    /// Whether the connections outlive this process.
    pub(crate) fn is_held(&self) -> bool {
        self.lifetime == Lifetime::Held
    }

    /// Announces the end of this process to the holder: a successor is running already, the process with this number if it is known.
    /// `false`: the holder does not answer, and the mounts would end with this process.
    pub(crate) fn hand_over(&self, successor: Option<u32>) -> bool {
        self.holder.hand_over(successor)
    }

    /// Whether the holder has everything.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_held() && self.holder.flush()
    }

    /// Keeps bytes for the successor, in place of earlier ones of this name.
    pub(crate) fn keep_state(&self, name: &str, bytes: &[u8]) {
        match memory(bytes) {
            Ok(file) => self.holder.keep(&format!("{STATE}{name}"), file.as_fd()),
            Err(error) => tracing::warn!(%error, name, "a state is not kept for the next server"),
        }
    }

    /// Stops keeping a state.
    pub(crate) fn release_state(&self, name: &str) {
        let name = format!("{STATE}{name}");
        self.holder.release(&name);
        self.inherited.lock().remove(&name);
    }

    /// As [`Holding::keep_state`], for a file that changes afterwards.
    pub(crate) fn keep_file(&self, name: &str, file: &File) {
        self.holder.keep(&format!("{STATE}{name}"), file.as_fd());
    }

    /// The file of this name that the predecessor kept, once. It stays kept for the successor.
    pub(crate) fn take_file(&self, name: &str) -> Option<File> {
        self.inherited.lock().remove(&format!("{STATE}{name}")).map(File::from)
    }

    /// Waits, within a limit, until the holder has everything from before this call.
    pub(crate) fn flush(&self) -> bool {
        self.holder.flush()
    }

    /// Waits until the holder has what a new mount needs, which takes milliseconds even if it has to be started: from then on the mount
    /// outlives this server. A holder that cannot be started does not keep the mount from being used.
    pub(crate) fn wait_until_held(&self) {
        static NOT_HELD: LogLimit = LogLimit::new();
        if !self.holder.flush_within(HELD_LIMIT)
            && let Some(left_out) = NOT_HELD.admit()
        {
            tracing::warn!("the holder does not answer yet: a mount may end with this server{left_out}");
        }
    }

    /// The state of this name that the predecessor kept.
    pub(crate) fn inherited_state(&self, name: &str) -> Option<Vec<u8>> {
        let inherited = self.inherited.lock();
        let file = inherited.get(&format!("{STATE}{name}"))?;
        read(file).inspect_err(|error| tracing::warn!(%error, name, "a state of the earlier server is lost")).ok()
    }

    /// This server answers requests now. Returns when the holder knows, which takes a millisecond.
    pub(crate) fn serving(&self) {
        self.holder.serving();
        if !self.holder.flush() {
            tracing::warn!("the holder does not answer: the mounts may end with this server");
        }
    }

    /// Ends the holder: nothing of this server is to outlive it.
    pub(crate) fn dismiss(&self) {
        self.holder.dismiss();
    }
}

fn of_connections(holder: &Holder) -> Arc<dyn ConnectionHolder> {
    Arc::new(HolderProcess(holder.clone()))
}

/// The holder process, as mounts see it.
struct HolderProcess(Holder);

impl ConnectionHolder for HolderProcess {
    fn keeps(&self) -> bool {
        self.0.keeps()
    }

    fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) {
        self.0.keep(name, descriptor);
    }

    fn release(&self, name: &str) {
        self.0.release(name);
    }
}

/// The state that holds the credentials of a mount: they are in no record.
pub(crate) fn credentials_of(mountpoint: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    format!("credentials.{}", Digest::of(mountpoint.as_os_str().as_bytes()).hex())
}

/// The main function of a holder. Its standard input is the socket of the server that starts it. `successor`: the command line that starts
/// a server; `dead_mounts`: directories from which a dead mount is removed when no successor serves.
pub fn hold(socket: PathBuf, successor: Vec<OsString>, dead_mounts: Vec<PathBuf>) -> Result<()> {
    let step = "hold the connections of the store's server";
    let control = tarpon_holder::control().context(ErrorKind::Other, step)?;
    // Without it a command that needs the namespace of a server that has just died makes another one.
    if let Err(error) = tarpon_store::record_holder(&socket) {
        tracing::debug!(%error, "the holder's process number cannot be noted");
    }
    let options = HoldOptions { socket, successor, dead_mounts };
    tarpon_holder::hold(control, options).context(ErrorKind::Other, step)
}

fn command(client: &Client) -> HolderCommand {
    let (store, mut program) = (client.store(), client.server_command().to_vec());
    let socket = store.server_folder().join(SOCKET);
    if !program.is_empty() {
        program.extend([HOLD.into(), socket.clone().into()]);
        // Podman fails as a whole if one of its stores is a dead mount.
        for folder in [store.podman_folder(), store.podman_layers_folder()] {
            program.extend([DEAD_MOUNT.into(), folder.into()]);
        }
    }
    HolderCommand { program, socket }
}

fn memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("tarpon-state", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

fn read(descriptor: &OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(descriptor.try_clone()?);
    if file.metadata()?.len() > STATE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // Its position is at the end, where the predecessor has written.
    let mut reader = Positioned { file, offset: 0 }.take(STATE_BYTES);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a file from its start, whatever its position is.
struct Positioned {
    file: File,
    offset: u64,
}

impl Read for Positioned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let file = memory(b"state").unwrap();
        let descriptor: OwnedFd = file.into();
        assert_eq!(read(&descriptor).unwrap(), b"state");
        assert_eq!(read(&descriptor).unwrap(), b"state", "again");
    }

    #[test]
    fn credentials_of_two_mounts_have_two_names() {
        assert_ne!(credentials_of(Path::new("/a")), credentials_of(Path::new("/b")));
    }
}
