//! The overlays of a mount.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::MountAttrFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::kernel::{Context, StepError, io_step};
use crate::spec::TreeFile;
use crate::table;
use crate::upper::Upper;

/// Attributes of mounts that are visible to the overlay above them only.
pub(crate) const INNER: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_RDONLY.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOSUID);

/// Settings that all overlays of a host share.
#[derive(Clone, Copy)]
pub(crate) struct Manner<'a> {
    /// The source shown in the table of mounts.
    pub(crate) source: &'a OsStr,
    pub(crate) reach: Reach,
    pub(crate) data: DataLayers,
}

/// The layers of an image, uppermost first: roots of mounts, or any open directory.
pub(crate) struct ImageLayers<'a> {
    pub(crate) tree: BorrowedFd<'a>,
    pub(crate) objects: BorrowedFd<'a>,
    pub(crate) lazy: BorrowedFd<'a>,
}

/// Mounts the image: metadata from `tree`, content from the first data layer that has it.
///
/// With an upper, changes of mode and owner are stored there without the data (metacopy), except in a user namespace.
pub(crate) fn image(
    layers: &ImageLayers<'_>,
    upper: Option<&Upper>,
    maker: Manner<'_>,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, StepError> {
    let Manner { source, reach, data } = maker;
    let context = Context::open("overlay")?;
    context.text("source", source)?;
    if is_initial_user_namespace() {
        context.text("metacopy", "on")?.text("redirect_dir", "on")?;
    } else {
        context.flag("userxattr")?;
    }
    add_layers(&context, reach, data, layers.tree, &[layers.objects, layers.lazy])?;
    finish(&context, upper, reach, attributes)
}

/// Mounts an ordinary overlay: `upper` over any one read-only directory.
pub(crate) fn writable(
    lower: BorrowedFd<'_>,
    upper: &Upper,
    maker: Manner<'_>,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, StepError> {
    let Manner { source, reach, data } = maker;
    let context = Context::open("overlay")?;
    context.text("source", source)?.text("metacopy", "off")?;
    if is_initial_user_namespace() {
        // A moved directory is copied, even where the kernel would store a redirect by default: the upper is self-contained.
        context.text("redirect_dir", "off")?;
    } else {
        // No redirects here either: users cannot set them.
        context.flag("userxattr")?;
    }
    add_layers(&context, reach, data, lower, &[])?;
    finish(&context, Some(upper), reach, attributes)
}

fn finish(
    context: &Context,
    upper: Option<&Upper>,
    reach: Reach,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, StepError> {
    match upper {
        None => {
            context.flag("ro")?;
            context.mount(attributes | MountAttrFlags::MOUNT_ATTR_RDONLY)
        }
        Some(upper) => {
            let [directory, work] = upper.open_directories();
            match reach {
                // The checked directory, regardless of what its path leads to by now.
                Reach::Detached => context.file("upperdir", directory)?.file("workdir", work)?,
                Reach::ByPath => context.text("upperdir", upper.directory())?.text("workdir", upper.work())?,
            };
            if upper.is_volatile() {
                // The upper is not read after a crash: skip the syncs.
                context.flag("volatile")?;
            }
            context.mount(attributes)
        }
    }
}

/// Sets the layers: `lower`, and below it those with data.
fn add_layers(
    context: &Context,
    reach: Reach,
    data: DataLayers,
    lower: BorrowedFd<'_>,
    below: &[BorrowedFd<'_>],
) -> Result<(), StepError> {
    match reach {
        Reach::Detached => {
            context.file("lowerdir+", lower)?;
            let key = if data == DataLayers::Only { "datadir+" } else { "lowerdir+" };
            below.iter().try_for_each(|layer| context.file(key, *layer).map(drop))
        }
        Reach::ByPath => {
            let layers = std::iter::once(&lower).chain(below);
            // The kernel limits an option to 255 bytes, which paths in a store may exceed.
            let paths = layers.map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd())).collect::<Vec<_>>();
            let separator = if data == DataLayers::Only { "::" } else { ":" };
            context.text("lowerdir", paths.join(separator)).map(drop)
        }
    }
}

/// Whether this is the initial user namespace. In any other, overlayfs may not use `trusted.*` attributes.
pub(crate) fn is_initial_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Why this kernel mounts no overlay for this process, if it is too old to do so in a user namespace.
pub(crate) fn refusal() -> Option<&'static str> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let is_old = kernel_version(&release) < (5, 11);
    (is_old && !is_initial_user_namespace()).then_some("without root a writable mount needs Linux 5.11 or newer")
}

/// Whether this process sees overlayfs' own attributes `trusted.overlay.*` on files under mounts of root. For a process
/// that does not, the kernel does not even list them.
pub fn sees_trusted() -> bool {
    let has_it = |sets: CapabilitySets| sets.effective.contains(CapabilitySet::SYS_ADMIN);
    is_initial_user_namespace() && rustix::thread::capabilities(None).is_ok_and(has_it)
}

/// How an overlay refers to its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// By open descriptors of detached mounts.
    Detached,
    /// By paths, of mounts that are attached at short-lived private directories: for kernels whose overlayfs accepts no
    /// detached mounts.
    ByPath,
}

impl Reach {
    /// What this kernel supports. Since 6.15, a detached mount can be cloned.
    pub(crate) fn of_this_kernel() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        if kernel_version(&release) >= (6, 15) { Self::Detached } else { Self::ByPath }
    }
}

/// Environment variable: `ordinary` avoids data-only layers also where the kernel has them, to measure or to try it.
const VARIABLE: &str = "TARPON_OVERLAY";

/// What the directories with data are to overlayfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataLayers {
    /// Data-only layers, which show no names: Linux 6.5 and newer.
    Only,
    /// Ordinary layers, whose names the tree hides ([`tarpon_tree::erofs::for_ordinary_layers`]): Linux 5.15 and newer.
    Ordinary,
}

impl DataLayers {
    /// What this kernel supports.
    pub(crate) fn of_this_kernel() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let is_forced = std::env::var_os(VARIABLE).is_some_and(|value| value == "ordinary");
        if kernel_version(&release) < DATA_ONLY_SINCE || is_forced { Self::Ordinary } else { Self::Only }
    }

    /// The tree as these layers need it; a rewritten one is a file without a name in `scratch`.
    pub(crate) fn tree(self, tree: &TreeFile, scratch: &Path) -> Result<Arc<File>, StepError> {
        if self == Self::Only {
            return Ok(tree.file.clone());
        }
        let doing = "rewrite the tree for ordinary layers";
        let rewritten = tarpon_tree::erofs::for_ordinary_layers(&tree.bytes).map_err(io::Error::other);
        let write = |bytes: Vec<u8>| -> io::Result<File> {
            let mut file = tempfile::tempfile_in(scratch)?;
            file.write_all(&bytes)?;
            Ok(file)
        };
        rewritten.and_then(write).map(Arc::new).map_err(|error| io_step(doing, &error))
    }
}

/// The first version of Linux with data-only layers.
const DATA_ONLY_SINCE: (u32, u32) = (6, 5);
/// The first version with data-only layers in user namespaces.
const DATA_ONLY_FOR_USERS_SINCE: (u32, u32) = (6, 16);

/// Whether overlayfs of this kernel has data-only layers in user namespaces.
pub(crate) fn has_data_layers_for_users() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    kernel_version(&release) >= DATA_ONLY_FOR_USERS_SINCE
}

/// Why there can be no overlay with `data` layers in this user namespace, if that is so.
pub(crate) fn missing_here(data: DataLayers) -> Option<&'static str> {
    let is_supported = data == DataLayers::Only && has_data_layers_for_users();
    (!is_initial_user_namespace() && !is_supported)
        .then_some("in a user namespace it needs Linux 6.16, whose overlayfs has data-only layers there")
}

/// Major and minor number of a release like `6.18.44-generic`.
pub(crate) fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A mount that can be a layer of overlays: detached, or at a private path during the life of this value.
pub(crate) struct Reachable {
    mount: OwnedFd,
    path: Option<PathBuf>,
}

impl Reachable {
    /// Makes `mount` reachable; a private path is created in `scratch`.
    pub(crate) fn new(mount: OwnedFd, reach: Reach, scratch: &Path) -> Result<Self, StepError> {
        match reach {
            Reach::Detached => Ok(Self { mount, path: None }),
            Reach::ByPath => {
                let path = tempfile::Builder::new()
                    .prefix(PRIVATE)
                    .tempdir_in(scratch)
                    .map_err(|error| io_step(&format!("make a directory in {}", scratch.display()), &error))?
                    .keep();
                let directory = crate::place::open_directory(&path)
                    .map_err(|error| io_step(&format!("open {}", path.display()), &error))?;
                crate::kernel::attach(mount.as_fd(), directory.as_fd(), &path)?;
                Ok(Self { mount, path: Some(path) })
            }
        }
    }

    /// Drops the kernel's unused cached names of it. For a read-only file system.
    pub(crate) fn forget_unused(&self) -> Result<(), StepError> {
        crate::kernel::forget_unused(self.mount.as_fd(), Path::new(""), true)
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }
}

impl Drop for Reachable {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            remove_private(path, table::mount_id(self.mount.as_fd()).ok());
        }
    }
}

/// Prefix of private mount points.
const PRIVATE: &str = "layer-";

/// Removes the mount with this id at a private path.
fn remove_private(path: &Path, id: Option<u64>) {
    let is_it = |open: BorrowedFd<'_>| id.is_some() && table::mount_id(open).ok() == id;
    if let Err(error) = crate::mountpoint::remove_lazily(path, is_it) {
        tracing::warn!(%error, "a private mount stays behind");
    }
    let _busy = std::fs::remove_dir(path);
}

/// Removes the private mounts that a killed process left in `scratch`.
pub(crate) fn sweep(scratch: &Path) {
    for mount in table::mounts().unwrap_or_default() {
        let is_private = mount.mountpoint.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PRIVATE));
        if is_private && mount.mountpoint.parent() == Some(scratch) {
            remove_private(&mount.mountpoint, Some(mount.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_compare_as_numbers() {
        assert_eq!(kernel_version("6.18.44-fc-v509"), (6, 18));
        assert!(kernel_version("6.9.0") < kernel_version("6.12.0-rc1"));
        assert_eq!(kernel_version("odd"), (0, 0));
    }
}
