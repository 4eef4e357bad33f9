//! [`Socket`]: a listening socket, passed by systemd or created here.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::net::{AddressFamily, sockopt};
use tarpon_holder::ServiceStore;

use super::passed::{NAMES, Passed};
use crate::{Error, ErrorKind, Result};

/// Owner only: every client that can connect has all rights of this user.
const MODE: u32 = 0o600;
/// Mode of a directory created for the socket. Others may list it, as with `/run`; the socket itself is closed to them.
const FOLDER_MODE: u32 = 0o755;

/// The first descriptor that is passed (`sd_listen_fds(3)`).
const FIRST_DESCRIPTOR: i32 = 3;
/// Name of a socket that was created here, and not by systemd.
const OURS: &str = "tarpon-created";

/// A listening socket. One created here is removed on drop.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    /// Other descriptors that systemd passed, by name.
    others: Vec<(String, OwnedFd)>,
    /// The path where it was created, and the inode of the file.
    made: Option<(PathBuf, u64)>,
}

impl Socket {
    /// The socket passed by systemd or by [`Socket::pass`], else a new one at `path`. Call it before there are other threads: it removes
    /// systemd's variables from the environment.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Other, format!("listen at {}", path.display()), error)
                .hint("if that is a daemon of another store, name another place: --listen unix:///PATH")
        };
        let Passed(mut passed) = Passed::take().map_err(failed)?;
        let at = passed.iter().position(|(_, descriptor)| is_listening(descriptor));
        let mut socket = match at.map(|at| passed.remove(at)) {
            Some((name, descriptor)) => {
                if sockopt::socket_domain(&descriptor).map_err(|errno| failed(errno.into()))? != AddressFamily::UNIX {
                    return Err(failed(io::Error::other("systemd passed a socket that is not a Unix socket")));
                }
                let made = path.metadata().ok().filter(|_| name == OURS).map(|file| (path.to_owned(), file.ino()));
                Self { listener: descriptor.into(), others: Vec::new(), made }
            }
            None => Self::make(path).map_err(failed)?,
        };
        socket.others = passed;
        Ok(socket)
    }

    /// The descriptor store of systemd, with what it passed to this process. `None`: this process is not a service.
    pub fn take_store(&mut self) -> Option<ServiceStore> {
        ServiceStore::open(std::mem::take(&mut self.others))
    }

    /// Passes the socket to a program that is executed in this process, as systemd would (`sd_listen_fds(3)`). Clients that connect
    /// meanwhile wait for the new program.
    pub fn pass(&self, command: &mut Command) -> io::Result<()> {
        let parent_fd = self.listener.try_clone()?.into();
        command
            .fd_mappings(vec![FdMapping { parent_fd, child_fd: FIRST_DESCRIPTOR }])
            .map_err(io::Error::other)?
            .env("LISTEN_FDS", "1")
            .env("LISTEN_PID", std::process::id().to_string())
            .env(NAMES, if self.made.is_some() { OURS } else { "" });
        Ok(())
    }

    /// Creates a socket. It appears under its name with its final permissions, and replaces a socket without a listener.
    ///
    /// # Errors
    /// Among others: a process listens there, or the file there is not a socket.
    pub fn make(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        }
        check_free(path)?;
        let new = path.with_extension(format!("{}", std::process::id()));
        let listener = UnixListener::bind(&new)?;
        let placed = std::fs::set_permissions(&new, std::fs::Permissions::from_mode(MODE))
            .and_then(|()| std::fs::rename(&new, path))
            .and_then(|()| path.metadata());
        match placed {
            Ok(file) => Ok(Self { listener, others: Vec::new(), made: Some((path.to_owned(), file.ino())) }),
            Err(error) => {
                let _never_placed = std::fs::remove_file(&new);
                Err(error)
            }
        }
    }

    /// The path for messages.
    pub fn place(&self) -> String {
        self.path().map_or_else(|| "the socket that was handed over".to_owned(), |path| path.display().to_string())
    }

    /// The path, if it has one.
    pub fn path(&self) -> Option<PathBuf> {
        let made = self.made.as_ref().map(|(path, _)| path.clone());
        made.or_else(|| self.listener.local_addr().ok()?.as_pathname().map(Path::to_owned))
    }

    /// The socket as an asynchronous listener. Must be called in a runtime.
    pub fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some((path, inode)) = &self.made
            && path.metadata().is_ok_and(|file| file.ino() == *inode)
        {
            let _gone_already = std::fs::remove_file(path);
        }
    }
}

fn is_listening(descriptor: &OwnedFd) -> bool {
    sockopt::socket_acceptconn(descriptor).unwrap_or(false)
}

/// Checks that `path` is free or a socket without a listener.
fn check_free(path: &Path) -> io::Result<()> {
    let other = |cause: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, cause));
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => other("there is something else, which is no socket"),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error),
            Ok(_) => other("another process listens there"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_for_its_owner_and_goes_when_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/api.sock");
        let socket = Socket::make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, FOLDER_MODE);
        assert_eq!(socket.place(), path.display().to_string());
        let names = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
        assert_eq!(names(path.parent().unwrap()), 1);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert_eq!(names(path.parent().unwrap()), 0);
    }

    #[test]
    fn what_a_dead_daemon_left_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let dead = UnixListener::bind(&path).unwrap();
        // Shut down before it is closed: another test may fork right now and inherit it.
        rustix::net::shutdown(&dead, rustix::net::Shutdown::Both).unwrap();
        drop(dead);
        let socket = Socket::make(&path).unwrap();
        let error = Socket::make(&path).unwrap_err();
        assert_eq!(error.to_string(), "another process listens there");
        drop(socket);
        std::fs::write(&path, "mine").unwrap();
        assert!(Socket::make(&path).unwrap_err().to_string().contains("no socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn one_that_another_daemon_has_taken_over_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let first = Socket::make(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = Socket::make(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }
}
