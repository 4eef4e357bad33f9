//! What surrounds a confined process: folders, and a parent that listens.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// The user without rights that root becomes.
pub(crate) const NOBODY: u32 = 65534;

/// The folders of a test, as the confined process sees them.
#[derive(Clone)]
pub(crate) struct Folders {
    folder: PathBuf,
}

impl Folders {
    pub(crate) fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// The process may write here.
    pub(crate) fn write(&self) -> PathBuf {
        self.folder.join("write")
    }

    /// The process may read here.
    pub(crate) fn read(&self) -> PathBuf {
        self.folder.join("read")
    }

    /// The process has no business here.
    pub(crate) fn outside(&self) -> PathBuf {
        self.folder.join("outside")
    }

    /// The path of a socket on which the parent listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// The name of an abstract socket on which the parent listens.
    pub(crate) fn abstract_socket(&self) -> SocketAddr {
        SocketAddr::from_abstract_name(self.folder.as_os_str().as_encoded_bytes()).unwrap()
    }
}

/// The folders, and the sockets of the parent.
pub(crate) struct World {
    pub(crate) folders: Folders,
    pub(crate) tcp: TcpListener,
    _folder: tempfile::TempDir,
    _sockets: [UnixListener; 2],
}

impl World {
    /// Every user may read and write everywhere: what is refused, the sandbox refuses.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders::at(folder.path());
        for path in [folders.write(), folders.read(), folders.outside()] {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "content").unwrap();
            open_to_all(&path.join("file"), 0o666);
            open_to_all(&path, 0o777);
        }
        open_to_all(folder.path(), 0o777);
        let path = UnixListener::bind(folders.socket()).unwrap();
        open_to_all(&folders.socket(), 0o777);
        let name = UnixListener::bind_addr(&folders.abstract_socket()).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { folders, tcp, _folder: folder, _sockets: [path, name] }
    }

    pub(crate) fn port(&self) -> u16 {
        self.tcp.local_addr().unwrap().port()
    }
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
