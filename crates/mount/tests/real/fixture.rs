//! [`MountFixture`]: a store folder, a host and small test images.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tarpon_mount::{
    ConnectionHolder, Host, Inheritance, Mode, ModeChoice, MountError, MountSpec, Mounted, TreeFile, Writable,
};
use tarpon_testkit::entries::{Made, layer};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::objects::Memory;

pub(crate) const MODES: [Mode; 2] = [Mode::Native, Mode::Fuse];

/// A holder that keeps the connections of a server that does not die.
struct Keeping;

impl ConnectionHolder for Keeping {
    fn keeps(&self) -> bool {
        true
    }

    fn keep(&self, _: &str, _: BorrowedFd<'_>) {}

    fn release(&self, _: &str) {}
}

/// Everything that a mount needs. Mounts end when they are dropped, before the folder is removed.
pub(crate) struct MountFixture {
    pub(crate) host: Host,
    pub(crate) objects: Arc<Memory>,
    pub(crate) runtime: Runtime,
    folder: TempDir,
}

impl MountFixture {
    /// `None`, with a line that explains why, where real mounts are not possible.
    pub(crate) fn new() -> Option<Self> {
        Self::new_in(tempfile::tempdir().unwrap())
    }

    /// As [`new`](Self::new), in this folder.
    pub(crate) fn new_in(folder: TempDir) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
            println!("skipped: mounting needs root and /dev/fuse");
            return None;
        }
        Some(Self::in_folder(folder))
    }

    /// For a user that owns `folder`.
    pub(crate) fn in_folder(folder: TempDir) -> Self {
        for name in ["objects", "run", "mnt"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let objects = Arc::new(Memory::new(folder.path().join("objects")));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let host = Host::new(objects.clone(), runtime.handle().clone(), folder.path().join("run")).expect("a host");
        Self { host, objects, runtime, folder }
    }

    /// A second host on the same folder, like that of another process.
    pub(crate) fn second_host(&self) -> Host {
        Host::new(self.objects.clone(), self.runtime.handle().clone(), self.path("run")).expect("a host")
    }

    /// A host whose connections a holder keeps.
    pub(crate) fn held_host(&self) -> Host {
        let (objects, runtime) = (self.objects.clone(), self.runtime.handle().clone());
        Host::with_holder(objects, runtime, self.path("run"), Arc::new(Keeping), Inheritance::default())
            .expect("a host")
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path in the mount.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path("mnt").join(name)
    }

    /// Spec of a read-only mount of this image.
    pub(crate) fn spec(&self, mode: Mode, image: impl IntoIterator<Item = Made>) -> MountSpec {
        let layers = [layer(image)];
        MountSpec {
            tree: self.tree(tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap())),
            objects: self.path("objects"),
            mountpoint: self.path("mnt"),
            mode: ModeChoice::Only(mode),
            writable: Writable::No,
            suid: false,
            dev: false,
            read_ahead: true,
            watch: None,
        }
    }

    /// A tree file with these bytes.
    pub(crate) fn tree(&self, bytes: Vec<u8>) -> TreeFile {
        let mut file = tempfile::tempfile_in(self.folder.path()).unwrap();
        file.write_all(&bytes).unwrap();
        TreeFile { file: Arc::new(file), bytes: bytes.into() }
    }

    /// Mounts an image read-only.
    pub(crate) fn mount(&self, mode: Mode, image: impl IntoIterator<Item = Made>) -> Mounted {
        self.mount_spec(&self.spec(mode, image)).unwrap()
    }

    pub(crate) fn mount_spec(&self, spec: &MountSpec) -> Result<Mounted, MountError> {
        self.host.mount(spec)
    }
}

/// The system's error number of a failed call.
pub(crate) fn errno<T>(result: std::io::Result<T>) -> rustix::io::Errno {
    match result {
        Ok(_) => panic!("the call went through"),
        Err(error) => rustix::io::Errno::from_io_error(&error).expect("an error of the system"),
    }
}
