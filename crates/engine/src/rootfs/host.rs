//! [`Host`]: the server that mounts and serves a root file system.

use std::path::Path;
use std::sync::{Arc, Weak};

use crate::client::{self, Client, Hold};
use crate::protocol::{MountRequest, MountStatus, Request, Response};
use crate::server::{self, Mounts};
use crate::{Error, ErrorKind, Result};

/// The server that mounts and serves it.
#[derive(Debug, Clone)]
pub(crate) enum Host {
    /// The store's server.
    Server(Client),
    /// This process, as long as its server lives.
    Here(Weak<Mounts>),
}

impl From<Client> for Host {
    fn from(client: Client) -> Self {
        Self::Server(client)
    }
}

impl From<&Arc<Mounts>> for Host {
    fn from(mounts: &Arc<Mounts>) -> Self {
        Self::Here(Arc::downgrade(mounts))
    }
}

impl Host {
    pub(super) fn mount(&self, request: MountRequest) -> Result<MountStatus> {
        match self {
            Self::Server(client) => client.mount(request),
            Self::Here(mounts) => {
                let mounts =
                    mounts.upgrade().ok_or_else(|| Error::new(ErrorKind::Store, "mount", "the server ended"))?;
                match server::carry_out(&mounts, Request::mount(request))? {
                    Response::Mounted(status) => Ok(*status),
                    other => Err(client::unexpected(other)),
                }
            }
        }
    }

    /// Keeps the server running until the returned value is dropped. This process keeps running by itself.
    pub(super) fn hold(&self) -> Result<Option<Hold>> {
        match self {
            Self::Server(client) => client.hold().map(Some),
            Self::Here(_) => Ok(None),
        }
    }

    /// Unmounts it. It may be unmounted already.
    pub(super) fn unmount(&self, path: &Path) -> Result<()> {
        match self {
            Self::Server(client) => client.release(path),
            // A server that has ended has unmounted everything.
            Self::Here(mounts) => match mounts.upgrade() {
                Some(mounts) => client::settled(mounts.unmount(path, false), path),
                None => Ok(()),
            },
        }
    }
}
