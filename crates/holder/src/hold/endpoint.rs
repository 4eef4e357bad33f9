//! [`Endpoint`]: the socket where successors connect.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::socket;

/// Connections that wait: a successor, and servers that clients start at the same time.
const BACKLOG: i32 = 16;

/// A listening socket. It has a temporary name until it is published.
pub(super) struct Endpoint {
    listener: OwnedFd,
    path: PathBuf,
    /// The name before it is published.
    temporary: Option<PathBuf>,
    /// Device and inode of the socket.
    identity: (u64, u64),
}

/// Who has the path of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This endpoint.
    This,
    /// That of another holder, which replaces this one.
    Other,
    /// There is no such file.
    Missing,
}

impl Endpoint {
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let listener = socket::new()?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
        name.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(name);
        match rustix::fs::unlink(&temporary) {
            Err(error) if error != Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        socket::with_address(&temporary, |address| Ok(rustix::net::bind(&listener, address)?))?;
        let mut endpoint = Self { listener, path: path.to_owned(), temporary: None, identity: (0, 0) };
        endpoint.identity = identity(&temporary)?;
        // Before it listens: until then a connection is refused.
        let mode = rustix::fs::chmodat(CWD, &temporary, Mode::RUSR | Mode::WUSR, AtFlags::empty());
        endpoint.temporary = Some(temporary);
        mode?;
        rustix::net::listen(&endpoint.listener, BACKLOG)?;
        Ok(endpoint)
    }

    /// Takes the place of the socket of an earlier holder.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            rustix::fs::rename(temporary, &self.path)?;
            self.temporary = None;
        }
        Ok(())
    }

    pub(super) fn is_published(&self) -> bool {
        self.temporary.is_none()
    }

    pub(super) fn owner(&self) -> Owner {
        match identity(&self.path) {
            Ok(identity) if identity == self.identity => Owner::This,
            Ok(_) => Owner::Other,
            Err(_) => Owner::Missing,
        }
    }

    /// The next connection that waits.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC).ok()
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let path = match &self.temporary {
            Some(temporary) => temporary,
            None if self.owner() == Owner::This => &self.path,
            None => return,
        };
        let _is_gone = rustix::fs::unlink(path);
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = rustix::fs::lstat(path)?;
    Ok((found.st_dev, found.st_ino))
}
