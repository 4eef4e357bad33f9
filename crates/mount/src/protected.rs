//! [`Protected`]: directories that must not be mounted on, because the host or the server would stop working.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use crate::place::{self, Identity};

/// Directories of the host that all programs need. They are compared by identity, so another path to one does not bypass
/// the check.
const HOST: [&str; 12] =
    ["/", "/proc", "/sys", "/dev", "/run", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot"];

/// Those of them that belong to the kernel: nothing is mounted inside of them either.
const KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Paths that must stay reachable unchanged, besides the host's own directories.
#[derive(Debug, Clone, Default)]
pub struct Protected {
    /// Directories and sockets: nothing is mounted on them or on their ancestors.
    pub reachable: Vec<PathBuf>,
    /// Directories: nothing is mounted in them either.
    pub closed: Vec<PathBuf>,
}

impl Protected {
    /// Checks whether the directory at this path may be mounted on, or be the upper directory of a mount.
    ///
    /// # Errors
    /// A short reason why not.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        let directory = place::open_directory(path).map_err(|error| explained(&error))?;
        self.check_open(directory.as_fd(), path)
    }

    pub(crate) fn check_open(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<(), String> {
        let lineage = place::lineage(directory, path).map_err(|error| error.to_string())?;
        let Some(it) = lineage.first() else { return Ok(()) };
        let is = |path: &Path, identity: &Identity| Identity::of_path(path).is_ok_and(|found| found == *identity);
        if let Some(host) = HOST.iter().find(|host| is(Path::new(host), it)) {
            return Err(format!("{host} is the host's own, which needs it as it is"));
        }
        let closed = KERNEL.iter().map(Path::new).chain(self.closed.iter().map(PathBuf::as_path));
        if let Some(closed) = closed.into_iter().find(|closed| lineage.iter().any(|above| is(closed, above))) {
            return Err(format!("it is in {}, which must stay as it is", closed.display()));
        }
        match self.reachable.iter().find(|path| lineage_of(path).is_ok_and(|lineage| lineage.contains(it))) {
            Some(path) => Err(format!("it contains {}, which tarpon needs", path.display())),
            None => Ok(()),
        }
    }
}

/// Lineage of a directory, or of the directory of a file; of the nearest existing ancestor if the path does not exist.
fn lineage_of(path: &Path) -> io::Result<Vec<Identity>> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for above in path.ancestors() {
        let found = above.canonicalize().and_then(|above| {
            let directory = place::open_directory(&above)?;
            place::lineage(directory.as_fd(), &above)
        });
        match found {
            Ok(lineage) => return Ok(lineage),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Explains why a directory cannot be opened.
pub(crate) fn explained(error: &io::Error) -> String {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::LOOP) => {
            "a symbolic link is on the way: name the directory that it leads to".to_owned()
        }
        Some(rustix::io::Errno::NOTDIR) => "not a directory".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(protected: &Protected, path: impl AsRef<Path>) -> bool {
        protected.check(path.as_ref()).is_err()
    }

    #[test]
    fn directories_that_the_host_needs_are_refused_and_those_below_most_of_them_are_not() {
        let none = Protected::default();
        for path in ["/", "/proc", "/sys", "/dev", "/run", "/etc", "/usr", "/proc/self", "/sys/kernel", "/proc/../proc"]
        {
            assert!(refused(&none, path), "{path}");
        }
        let folder = tempfile::tempdir().unwrap();
        none.check(&folder.path().canonicalize().unwrap()).unwrap();
        let below_run = tempfile::tempdir_in("/run").or_else(|_| tempfile::tempdir()).unwrap();
        none.check(&below_run.path().canonicalize().unwrap()).unwrap();
    }

    #[test]
    fn what_contains_a_store_or_a_socket_is_refused_and_so_is_what_is_in_a_closed_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().canonicalize().unwrap().join(name);
        for name in ["a/store/run/mounts", "a/store/objects/ab", "a/store/containers/box/rootfs", "b/sockets", "c"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        let _socket = std::os::unix::net::UnixListener::bind(path("b/sockets/api")).unwrap();
        let protected = Protected {
            reachable: vec![path("a/store/run/mounts"), path("b/sockets/api"), path("not/there")],
            closed: vec![path("a/store/objects")],
        };
        for name in ["", "a", "a/store", "a/store/run", "a/store/run/mounts", "a/store/objects", "a/store/objects/ab"] {
            assert!(refused(&protected, path(name)), "{name}");
        }
        assert!(refused(&protected, path("b")) && refused(&protected, path("b/sockets")));
        for name in ["a/store/containers/box/rootfs", "c"] {
            protected.check(&path(name)).unwrap();
        }
    }
}
