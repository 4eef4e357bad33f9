//! One server per store, and for an ordinary user a second one in a user namespace.

use std::fs;
use std::io;
use std::path::Path;

use crate::StoreError;
use crate::disk::Disk;
use crate::file_lock::FileLock;
use crate::files::{self, io_error};
use crate::layout::SERVER_LOCK;
use crate::locks;
use crate::process::ProcessId;
use crate::sealed;
use crate::storage::Storage as _;
use crate::store::Store;

/// The right to be the server of a store, for the life of this value. When the process dies, for whatever reason, the
/// kernel releases it.
#[derive(Debug)]
pub struct ServerLock {
    _file: FileLock,
}

/// Why this process cannot be the server.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process is the server.
    #[error("a server runs on this store already{}", pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Held {
        /// The id of that process, if it recorded one.
        pid: Option<u32>,
    },
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Name of the record of a holder's process, beside its socket.
const HOLDER: &str = "holder.process";

/// Records that this process is the holder with this socket, in the folder of a store's server.
pub fn record_holder(socket: &Path) -> io::Result<()> {
    let me = sealed::seal(&ProcessId::current(&Disk.boot_id()?))?;
    // Without a sync, which delays the holder: a torn record is that of no process.
    fs::write(socket.with_file_name(HOLDER), me)
}

impl Store {
    /// Makes this process the server of the store; the error names the current server.
    pub fn server_lock(&self) -> Result<ServerLock, LockError> {
        let storage = self.shared.storage();
        let path = self.server_folder().join(SERVER_LOCK);
        let Some(file) = locks::try_lock(storage, &path)? else {
            let pid = self.server().map(|process| process.pid);
            return Err(LockError::Held { pid });
        };
        let me = ProcessId::current(self.shared.durability.boot());
        let text = sealed::seal(&me).map_err(|error| io_error("writing", &path)(error.into()))?;
        let write = storage.set_len(&file, 0).and_then(|()| files::write_all_at(storage, &file, &text, 0));
        // Informational only: a full disk must not keep the server from starting.
        if let Err(error) = write {
            tracing::debug!(%error, "the server's process number cannot be noted");
        }
        Ok(ServerLock { _file: file })
    }

    /// The process that serves this store in this user namespace, if any.
    pub fn server(&self) -> Option<ProcessId> {
        self.server_of(self.shared.layout.in_user_namespace())
    }

    /// The process that serves this store in a user namespace, if any.
    pub fn server_in_user_namespace(&self) -> Option<ProcessId> {
        self.server_of(true)
    }

    /// The process that holds the connections of the server in a user namespace, if any. It outlives that server.
    pub fn holder_in_user_namespace(&self) -> Option<ProcessId> {
        self.process_at(&self.shared.layout.server_of(true).join(HOLDER))
    }

    fn server_of(&self, in_user_namespace: bool) -> Option<ProcessId> {
        self.process_at(&self.shared.layout.server_of(in_user_namespace).join(SERVER_LOCK))
    }

    fn process_at(&self, path: &Path) -> Option<ProcessId> {
        let text = files::read(self.shared.storage(), path, 4096).ok()??;
        let process: ProcessId = sealed::unseal(&text).ok()?;
        process.is_alive(self.shared.durability.boot()).then_some(process)
    }
}
