//! Capabilities of this machine and user, determined by trying: for `tarpon doctor`.
//!
//! Mounting does not use this. It tries the wanted mode and falls back, which is cheaper and never out of date.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fuser::InitFlags;
use futures::future::BoxFuture;
use tarpon_fs::{Errno, ImageFs, Objects, Reads};
use tarpon_oci::Digest;
use tokio::runtime::Handle;

use crate::adapter::{Adapter, OpenPolicy, Opens};
use crate::connection::Connection;
use crate::device;
use crate::erofs::{self, Backing};
use crate::fusermount;
use crate::holder::{ConnectionHolder, NoHolder};
use crate::overlay::{self, DataLayers, ImageLayers, Manner, Reach, Reachable};
use crate::spec::TreeFile;
use crate::table::SOURCE;

/// What mounting may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// A recent kernel.
    Kernel,
    /// The user root of the machine.
    Root,
    /// `/dev/fuse`.
    FuseDevice,
    /// EROFS mounts.
    Erofs,
    /// Overlayfs mounts without data in the uppermost layer.
    Overlayfs,
    /// Reads of local files without the server in mode `fuse`.
    Passthrough,
    /// Requests that survive the server.
    Resend,
    /// The program `fusermount3`.
    Fusermount,
    /// User namespaces of ordinary users.
    UserNamespaces,
}

impl Feature {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Root => "root",
            Self::FuseDevice => "/dev/fuse",
            Self::Erofs => "EROFS",
            Self::Overlayfs => "overlayfs",
            Self::Passthrough => "FUSE passthrough",
            Self::Resend => "FUSE resend",
            Self::Fusermount => "fusermount3",
            Self::UserNamespaces => "user namespaces",
        }
    }

    fn needed_for(self) -> &'static str {
        match self {
            Self::Kernel => "mode native needs 5.15",
            Self::Root | Self::Erofs | Self::Overlayfs => "mode native",
            Self::FuseDevice => "both modes",
            Self::Passthrough => "speed of large files in mode fuse",
            Self::Resend => "no errors when the server dies",
            Self::Fusermount => "mounting without root",
            Self::UserNamespaces => "writable mounts without root",
        }
    }
}

/// A feature as it was found on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// What was tried.
    pub feature: Feature,
    /// What it is needed for.
    pub needed_for: &'static str,
    /// The finding, or in one line why it is missing and what to do.
    pub found: Result<String, String>,
    /// What is better with a newer kernel.
    pub better: Option<&'static str>,
}

impl Capability {
    fn new(feature: Feature, found: Result<String, String>) -> Self {
        Self { feature, needed_for: feature.needed_for(), found, better: None }
    }

    /// A feature with two forms, of which a newer kernel has the better one.
    fn graded(feature: Feature, found: Result<(String, Option<&'static str>), String>) -> Self {
        let better = found.as_ref().ok().and_then(|(_, better)| *better);
        Self { better, ..Self::new(feature, found.map(|(found, _)| found)) }
    }
}

/// Tries everything; takes some milliseconds. `scratch` is a directory on the disk of the store.
pub fn probe(scratch: &Path, runtime: Handle) -> Vec<Capability> {
    let offered = offered(runtime);
    vec![
        Capability::new(Feature::Kernel, kernel()),
        Capability::new(Feature::Root, root()),
        Capability::new(Feature::FuseDevice, fuse_device()),
        Capability::graded(Feature::Erofs, erofs(scratch)),
        Capability::graded(Feature::Overlayfs, overlayfs(scratch)),
        Capability::new(Feature::Passthrough, offers(&offered, InitFlags::FUSE_PASSTHROUGH, "6.9")),
        Capability::new(Feature::Resend, resend(&offered)),
        Capability::new(Feature::Fusermount, fusermount()),
        Capability::graded(Feature::UserNamespaces, user_namespaces()),
    ]
}

/// The first version of Linux whose EROFS has chunked files.
const CHUNKED_SINCE: (u32, u32) = (5, 15);

fn kernel() -> Result<String, String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if overlay::kernel_version(&release) >= CHUNKED_SINCE {
        Ok(release)
    } else {
        Err(format!("{release}: mode native needs files without data in EROFS, which Linux 5.15 and newer have"))
    }
}

fn root() -> Result<String, String> {
    if rustix::process::geteuid().is_root() { Ok("yes".to_owned()) } else { Err("not root".to_owned()) }
}

fn fuse_device() -> Result<String, String> {
    device::open().map(|_| "can be opened".to_owned()).map_err(|error| error.to_string())
}

fn tree(scratch: &Path) -> Result<(Reachable, Backing), String> {
    let image = tiny_image(scratch).map_err(|error| format!("no image to try it with: {error}"))?;
    let image = DataLayers::of_this_kernel().tree(&image, scratch).map_err(|error| error.to_string())?;
    let (mount, backing) = erofs::mount(&image, Backing::first()).map_err(|error| error.to_string())?;
    let tree = Reachable::new(mount, Reach::of_this_kernel(), scratch).map_err(|error| error.to_string())?;
    Ok((tree, backing))
}

fn erofs(scratch: &Path) -> Result<(String, Option<&'static str>), String> {
    let (_, backing) = tree(scratch)?;
    Ok(match backing {
        Backing::File => ("mounted from files".to_owned(), None),
        Backing::LoopDevice => (
            "mounted from loop devices".to_owned(),
            Some("Linux 6.12 and newer mount the image's metadata from its file, without a loop device"),
        ),
    })
}

fn overlayfs(scratch: &Path) -> Result<(String, Option<&'static str>), String> {
    let (tree, _) = tree(scratch).map_err(|error| format!("not tried without EROFS ({error})"))?;
    let directory = || -> std::io::Result<_> {
        let directory = tempfile::tempdir_in(scratch)?;
        Ok((crate::place::open_directory(directory.path())?, directory))
    };
    let both = directory().and_then(|objects| Ok((objects, directory()?)));
    let ((objects, _kept), (lazy, _too)) = both.map_err(|error| error.to_string())?;
    let data = DataLayers::of_this_kernel();
    let manner = Manner { source: SOURCE.as_ref(), reach: Reach::of_this_kernel(), data };
    let layers = ImageLayers { tree: tree.root(), objects: objects.as_fd(), lazy: lazy.as_fd() };
    overlay::image(&layers, None, manner, overlay::INNER).map_err(|error| error.to_string())?;
    Ok(match data {
        DataLayers::Only => ("with data-only layers".to_owned(), None),
        DataLayers::Ordinary => (
            "with ordinary layers".to_owned(),
            Some("Linux 6.5 and newer look up a file's data when it is opened, not with its name"),
        ),
    })
}

/// The features that the kernel offers when a connection starts.
fn offered(runtime: Handle) -> Result<InitFlags, String> {
    let files = ImageFs::new(tiny_tree().map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    let reads = Reads::new(Arc::new(Nothing));
    let adapter = Adapter::new(Arc::new(files), reads, runtime, OpenPolicy::PassThrough(Opens::default()));
    let (holder, offered): (Arc<dyn ConnectionHolder>, _) = (Arc::new(NoHolder), adapter.offered());
    let _mount =
        Connection::open(adapter, SOURCE.as_ref(), overlay::INNER, &holder).map_err(|error| error.to_string())?;
    Ok(InitFlags::from_bits_retain(offered.load(Ordering::Relaxed)))
}

/// Whether the kernel offers a feature, which it does from `since` on.
fn offers(offered: &Result<InitFlags, String>, feature: InitFlags, since: &str) -> Result<String, String> {
    match offered {
        Ok(offered) if offered.contains(feature) => Ok("offered by the kernel".to_owned()),
        Ok(_) => Err(format!("this kernel does not offer it ({since} and newer do)")),
        Err(error) => Err(error.clone()),
    }
}

/// Whether the kernel repeats what a dead server has read and not answered.
fn resend(offered: &Result<InitFlags, String>) -> Result<String, String> {
    offers(offered, InitFlags::FUSE_HAS_RESEND, "6.9").map_err(|why| match offered {
        Ok(_) => format!(
            "{why}: what the server is working on when it dies may fail with ECONNABORTED, later requests do not"
        ),
        Err(_) => why,
    })
}

/// An empty set of objects.
struct Nothing;

impl Objects for Nothing {
    fn size(&self, _: &Digest) -> Option<u64> {
        None
    }

    fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
        Err(Errno::Io)
    }

    fn read(&self, _: Digest, _: u64, _: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
        Box::pin(std::future::ready(Err(Errno::Io)))
    }

    fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
        None
    }
}

fn fusermount() -> Result<String, String> {
    if fusermount::is_installed() {
        Ok("installed".to_owned())
    } else {
        Err("not installed: it is in the package fuse3 of most distributions".to_owned())
    }
}

fn user_namespaces() -> Result<(String, Option<&'static str>), String> {
    let setting = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let switches = [
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ];
    match switches.into_iter().find(|(path, off)| setting(path).as_deref() == Some(off)) {
        Some((path, off)) => Err(format!("switched off: {path} is {off}")),
        None if overlay::has_data_layers_for_users() => Ok(("allowed, with mode native".to_owned(), None)),
        None => {
            let better = "Linux 6.16 and newer read local files in user namespaces without the server (mode native)";
            Ok(("allowed, with mode fuse".to_owned(), Some(better).filter(|_| root().is_err())))
        }
    }
}

/// An image that contains only the root directory.
fn tiny_image(scratch: &Path) -> std::io::Result<TreeFile> {
    let bytes = tiny_tree()?;
    let mut file = tempfile::tempfile_in(scratch)?;
    file.write_all(&bytes)?;
    Ok(TreeFile { file: Arc::new(file), bytes: bytes.into() })
}

fn tiny_tree() -> std::io::Result<Vec<u8>> {
    tarpon_tree::merge(&[]).map(|tree| tarpon_tree::erofs::write(&tree)).map_err(std::io::Error::other)
}
