//! The mounts of a container: the defaults, the image's volumes and the user's.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Mount, MountBuilder, get_default_mounts};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::volume::destination;
use super::{ContainerOptions, Tmpfs, Volume, init};
use crate::network::Network;

/// Directories that stay writable in a container with a read-only root, as with Podman.
const SCRATCH: [&str; 3] = ["/tmp", "/run", "/var/tmp"];

/// Shared memory, and the option of its file system for the size.
const SHM: &str = "/dev/shm";
const SIZE: &str = "size=";

/// Mount points of the kernel's file systems, where a runtime hides some paths.
const KERNEL: [&str; 2] = ["/proc", SYS];
const SYS: &str = "/sys";

/// The group that owns terminals, in every distribution.
const TTY: u64 = 5;

/// Permissions of a volume whose path does not exist in the image.
const VOLUME_MODE: u32 = 0o755;

/// Leaves the group of terminals out of the options of `/dev/pts`: the kernel knows no group by this ID in the namespace.
fn without_tty(mount: &mut Mount) {
    let group = format!("gid={TTY}");
    let options = mount.options().iter().flatten().filter(|option| **option != group).cloned().collect();
    mount.set_options(Some(options));
}

/// Whether an ID exists in a namespace with this map, by the lines of `/proc/self/gid_map`: the first ID, that outside, the count.
fn has_id(map: &str, id: u64) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (first, count) = (numbers.next(), numbers.nth(1));
        first.zip(count).is_some_and(|(first, count)| (first..first.saturating_add(count)).contains(&id))
    })
}

/// The `/sys` of the host: root of a user namespace may mount one only for a network of its own.
fn host_sysfs() -> Result<Mount, String> {
    bind(Path::new(SYS), Path::new(SYS), &["ro", "nosuid", "nodev", "noexec"].map(str::to_owned))
}

/// The kernel's file systems of every container, with the options of Podman: no programs, devices or privileges come from there.
fn default_mounts() -> Vec<Mount> {
    let mut mounts = get_default_mounts();
    for mount in &mut mounts {
        let more: &[&str] = match mount.destination().to_str() {
            Some("/proc") => &["nosuid", "nodev", "noexec"],
            Some("/dev") => &["noexec"],
            _ => continue,
        };
        let options = mount.options().iter().flatten().map(String::as_str).chain(more.iter().copied());
        mount.set_options(Some(options.map(str::to_owned).collect()));
    }
    mounts
}

/// The mount of the init in the container.
///
/// # Errors
/// One line: the description is invalid.
fn init_mount(program: &Path) -> Result<Mount, String> {
    bind(program, Path::new(init::INSIDE), &["ro", "nosuid", "nodev"].map(str::to_owned))
}

/// All mounts of a container, parents first. `own`: mounts in addition to the defaults; those of the user take precedence.
///
/// # Errors
/// One line: two mounts have the same destination, or a source does not exist.
pub(super) fn all(options: &ContainerOptions, own: Vec<Mount>) -> Result<Vec<Mount>, String> {
    let mut mounts = default_mounts();
    if tarpon_store::in_user_namespace() {
        if options.network == Network::Host {
            put(&mut mounts, host_sysfs()?);
        }
        if !std::fs::read_to_string("/proc/self/gid_map").is_ok_and(|map| has_id(&map, TTY)) {
            mounts.iter_mut().for_each(without_tty);
        }
    }
    if let Some(size) = options.shm_size {
        mounts.iter_mut().filter(|mount| mount.destination() == Path::new(SHM)).for_each(|shm| resize(shm, size));
    }
    let scratch = SCRATCH.into_iter().filter(|_| options.read_only);
    for mount in scratch.map(|path| tmpfs(path.into(), &[])).collect::<Result<Vec<_>, _>>()?.into_iter().chain(own) {
        put(&mut mounts, mount);
    }
    if options.init {
        put(&mut mounts, init_mount(&init::find()?)?);
    }
    let mut asked = asked(options)?;
    for (at, (place, mount)) in asked.iter_mut().enumerate() {
        let is_first = places(options).take(at).all(|earlier| earlier != *place);
        if !is_first {
            return Err(format!("two mounts at {}", place.display()));
        }
        mount.take().into_iter().for_each(|mount| put(&mut mounts, mount));
    }
    mounts.sort_by_key(|mount| mount.destination().components().count());
    Ok(mounts)
}

fn resize(mount: &mut Mount, bytes: u64) {
    let options = mount.options().iter().flatten().filter(|option| !option.starts_with(SIZE)).cloned();
    let options = options.chain([format!("{SIZE}{bytes}")]).collect();
    mount.set_options(Some(options));
}

/// The destinations that the user named, in the order of [`asked`].
fn places(options: &ContainerOptions) -> impl Iterator<Item = &Path> {
    let volumes = options.volumes.iter().map(|volume| &*volume.destination);
    volumes.chain(options.tmpfs.iter().map(|tmpfs| &*tmpfs.destination))
}

/// The user's mounts, by destination. `None`: a volume of the container's own, which is mounted already.
fn asked(options: &ContainerOptions) -> Result<Vec<(&Path, Option<Mount>)>, String> {
    let mut asked = Vec::new();
    for Volume { source, destination, options } in &options.volumes {
        let mount = match source {
            None => None,
            Some(source) => {
                let missing = |error| format!("there is nothing to mount at {}: {error}", source.display());
                std::fs::metadata(source).map_err(missing)?;
                Some(bind(source, destination, options)?)
            }
        };
        asked.push((&**destination, mount));
    }
    for Tmpfs { destination, options } in &options.tmpfs {
        asked.push((destination, Some(tmpfs(destination.clone(), options)?)));
    }
    Ok(asked)
}

/// Adds a mount and replaces one with the same destination.
fn put(mounts: &mut Vec<Mount>, mount: Mount) {
    mounts.retain(|other| other.destination() != mount.destination());
    mounts.push(mount);
}

/// A bind mount of a path of the host.
pub(crate) fn bind(source: &Path, destination: &Path, options: &[String]) -> Result<Mount, String> {
    let usual = ["rbind", "rprivate"].map(str::to_owned);
    let mount = MountBuilder::default().destination(destination).typ("bind").source(source);
    mount.options([&usual[..], options].concat()).build().map_err(|error| error.to_string())
}

/// A tmpfs. The image's content at its destination is copied into it, as with Podman.
fn tmpfs(destination: PathBuf, options: &[String]) -> Result<Mount, String> {
    let usual = ["rprivate", "nosuid", "nodev", "tmpcopyup"].map(str::to_owned);
    let mount = MountBuilder::default().destination(destination).typ("tmpfs").source("tmpfs");
    mount.options([&usual[..], options].concat()).build().map_err(|error| error.to_string())
}

/// Bind mounts of the files of the host's network configuration.
pub(crate) fn host_files() -> Result<Vec<Mount>, String> {
    let files = ["/etc/resolv.conf", "/etc/hosts"].map(PathBuf::from);
    let options = ["ro", "nosuid", "nodev", "noexec"].map(str::to_owned);
    files.into_iter().filter(|file| file.exists()).map(|file| bind(&file, &file, &options)).collect()
}

/// Mounts of the volumes that an image declares, or the user with a destination alone. Each is a directory of the container's own writable
/// layer, mounted on itself. So it has the image's content without a copy, it is writable where the rest is not, and it persists until the
/// container is removed. A declared volume in the place of a default mount is ignored: images for systemd declare `/sys/fs/cgroup`.
///
/// # Errors
/// One line: the image has no directory there and none can be created, or the user names the place of a default mount.
pub(crate) fn image_volumes(
    root: &Path,
    declared: &[String],
    options: &ContainerOptions,
) -> Result<Vec<Mount>, String> {
    let is_asked = |place: &Path| places(options).any(|asked| asked == place);
    let mut wanted: Vec<PathBuf> = Vec::new();
    for text in declared {
        let place = destination(text).map_err(|error| format!("the image declares a volume: {error}"))?;
        if is_taken(&place) {
            tracing::warn!("the image's volume {} is left out: every container has something there", place.display());
        } else if !is_asked(&place) {
            wanted.push(place);
        }
    }
    for place in options.volumes.iter().filter(|volume| volume.source.is_none()).map(|volume| &volume.destination) {
        if is_taken(place) {
            return Err(format!("no volume can be at {}: every container has something there", place.display()));
        }
        wanted.push(place.clone());
    }
    wanted.iter().map(|place| bind(&directory_in(root, place)?, place, &[])).collect()
}

/// Whether a volume there would replace a default mount, or reveal hidden paths of the kernel.
fn is_taken(place: &Path) -> bool {
    let usual = get_default_mounts();
    KERNEL.iter().any(|kernel| place.starts_with(kernel)) || usual.iter().any(|mount| mount.destination() == place)
}

/// The path on the host of a directory in an image, created if missing. Symbolic links cannot lead outside of the image.
fn directory_in(root: &Path, place: &Path) -> Result<PathBuf, String> {
    let failed = |error: Errno| format!("make a directory for the volume {}: {error}", place.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).map_err(failed)?;
    let open = |path: &Path| -> rustix::io::Result<OwnedFd> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
    };
    let mut upwards: Vec<&Path> = place.ancestors().collect();
    upwards.reverse();
    let mut directory = open(Path::new("/")).map_err(failed)?;
    for path in upwards.into_iter().skip(1) {
        directory = match open(path) {
            Err(Errno::NOENT) => {
                let name = path.file_name().unwrap_or(OsStr::new(""));
                rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(VOLUME_MODE)).map_err(failed)?;
                open(path).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
    }
    std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(options: &ContainerOptions, own: Vec<Mount>) -> Result<Vec<(String, String)>, String> {
        let text = |mount: Mount| {
            let source = mount.source().as_ref().map(|source| source.display().to_string());
            (mount.destination().display().to_string(), source.unwrap_or_default())
        };
        Ok(all(options, own)?.into_iter().map(text).collect())
    }

    fn volumes(texts: &[&str]) -> ContainerOptions {
        let volumes = texts.iter().map(|text| text.parse().unwrap()).collect();
        ContainerOptions { volumes, ..ContainerOptions::default() }
    }

    #[test]
    fn a_map_has_the_ids_of_its_lines() {
        let map = "         0       4711          1\n         1     300000      65536\n";
        assert!([0, 1, 5, 65_536].into_iter().all(|id| has_id(map, id)));
        assert!(!has_id(map, 65_537) && !has_id("0 4711 1\n", 5) && !has_id("", 0) && !has_id("x", 0));
    }

    #[test]
    fn shared_memory_has_the_requested_size() {
        let shm = |shm_size| {
            let options = ContainerOptions { shm_size, ..ContainerOptions::default() };
            let mounts = all(&options, Vec::new()).unwrap();
            let shm = mounts.iter().find(|mount| mount.destination() == Path::new(SHM)).unwrap();
            shm.options().iter().flatten().filter(|option| option.starts_with(SIZE)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(shm(None), ["size=65536k"]);
        assert_eq!(shm(Some(1 << 30)), ["size=1073741824"]);
    }

    #[test]
    fn what_the_user_mounts_goes_before_what_is_there_anyway() {
        let host = tempfile::tempdir().unwrap();
        let host = host.path().to_str().unwrap();
        let own = vec![bind(Path::new("/own"), Path::new("/etc/hosts"), &[]).unwrap()];
        let options = volumes(&[&format!("{host}:/etc/hosts"), &format!("{host}:/dev/shm")]);
        let mounts = mounted(&options, own).unwrap();
        for place in ["/etc/hosts", "/dev/shm"] {
            let there: Vec<_> = mounts.iter().filter(|(destination, _)| destination == place).collect();
            assert_eq!(there, [&(place.to_owned(), host.to_owned())]);
        }
        let depths: Vec<usize> = mounts.iter().map(|(path, _)| path.matches('/').count()).collect();
        assert!(depths.is_sorted(), "what others lie in comes first: {mounts:?}");
    }

    #[test]
    fn two_mounts_at_one_place_and_sources_that_are_not_there_are_errors() {
        let mut options = volumes(&["/usr:/a"]);
        options.tmpfs = vec!["/a".parse().unwrap()];
        assert!(mounted(&options, vec![]).unwrap_err().contains("two mounts at /a"));
        let error = mounted(&volumes(&["/nonexistent/x:/a"]), vec![]).unwrap_err();
        assert!(error.contains("nothing to mount at /nonexistent/x"), "{error}");
    }

    #[test]
    fn a_volume_of_the_image_is_its_own_directory_wherever_links_lead() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("var/data")).unwrap();
        std::os::unix::fs::symlink("/var", root.join("link")).unwrap();
        std::os::unix::fs::symlink("../../../../etc", root.join("out")).unwrap();
        let declared = ["/link/data", "/new/one", "/out/x", "/taken"].map(str::to_owned);
        std::fs::create_dir(root.join("etc")).unwrap();
        let options = volumes(&["/usr:/taken", "/mine"]);
        let found = image_volumes(&root, &declared, &options).unwrap();
        let sources: Vec<_> = found.iter().map(|mount| mount.source().clone().unwrap()).collect();
        let expected = ["var/data", "new/one", "etc/x", "mine"].map(|path| root.join(path));
        assert_eq!(sources, expected);
        assert!(expected.iter().all(|path| path.is_dir()));
        assert!(image_volumes(&root, &["../x".to_owned()], &options).is_err());
    }

    #[test]
    fn no_volume_takes_the_place_of_what_every_container_has() {
        let root = tempfile::tempdir().unwrap();
        let declared =
            ["/proc", "/proc/sys", "/sys/fs/cgroup", "/sys/x", "/dev", "/dev/shm", "/data"].map(str::to_owned);
        let found = image_volumes(root.path(), &declared, &ContainerOptions::default()).unwrap();
        let places: Vec<_> = found.iter().map(|mount| mount.destination().as_path()).collect();
        assert_eq!(places, [Path::new("/data")]);
        let error = image_volumes(root.path(), &[], &volumes(&["/proc/sys"])).unwrap_err();
        assert!(error.contains("no volume can be at /proc/sys"), "{error}");
    }
}
