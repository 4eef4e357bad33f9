//! Who else uses a mount, as far as the kernel tells: a mount that looks unused may be a layer of a container's root.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::table::{self, TableEntry};

/// The tables of mounts that processes see, each mount namespace once. Those that nobody here may look at are left out.
fn tables() -> impl Iterator<Item = Vec<TableEntry>> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let mut seen = HashSet::new();
    processes.filter_map(move |process| {
        let namespace = std::fs::read_link(process.path().join("ns/mnt")).ok()?;
        seen.insert(namespace)
            .then(|| std::fs::read(process.path().join("mountinfo")).ok())?
            .map(|text| table::parse(&text))
    })
}

/// Of these mount points, those that some overlay has as a layer, or that lie above one of its layers.
pub fn below_overlays(mountpoints: &[PathBuf]) -> HashSet<PathBuf> {
    let mut found = HashSet::new();
    for table in tables() {
        let layers: Vec<PathBuf> = table.iter().flat_map(TableEntry::lower).collect();
        let is_used = |mountpoint: &&PathBuf| layers.iter().any(|layer| is_of(layer, mountpoint));
        found.extend(mountpoints.iter().filter(is_used).cloned());
    }
    found
}

/// Of these mount points, those whose file systems are mounted elsewhere, too, and where: bind mounts, and roots of containers. The kernel
/// does not call a mount busy for them, and their users would lose the server with it. A copy at the same place in another mount
/// namespace does not count: whoever makes a namespace gets one.
pub fn bound_elsewhere(mountpoints: &[PathBuf]) -> io::Result<HashMap<PathBuf, PathBuf>> {
    if mountpoints.is_empty() {
        return Ok(HashMap::new());
    }
    let own = table::mounts()?;
    let places: HashSet<_> = mountpoints.iter().collect();
    let ours: Vec<_> = own.iter().filter(|entry| places.contains(&entry.mountpoint) && entry.is_ours()).collect();
    let mut found = HashMap::new();
    for table in std::iter::once(own.clone()).chain(tables()) {
        for mount in &ours {
            let other = table.iter().find(|entry| is_other_mount_of(entry, mount));
            if let Some(other) = other.filter(|_| !found.contains_key(&mount.mountpoint)) {
                found.insert(mount.mountpoint.clone(), other.mountpoint.clone());
            }
        }
    }
    Ok(found)
}

fn is_other_mount_of(entry: &TableEntry, mount: &TableEntry) -> bool {
    entry.device == mount.device && (&entry.mountpoint, &entry.root) != (&mount.mountpoint, &mount.root)
}

/// Whether a layer, as an overlay was told its path, is in what is mounted there. Whoever has many layers tells relative paths.
fn is_of(layer: &Path, mountpoint: &Path) -> bool {
    match layer.is_absolute() {
        true => layer.starts_with(mountpoint),
        false => !layer.as_os_str().as_bytes().is_empty() && mountpoint.ends_with(layer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_mount_is_another_mount_of_the_same_file_system() {
        let table = table::parse(
            b"47 27 0:40 / /mnt ro - overlay tarpon:/s ro\n48 27 0:40 / /bound ro - overlay tarpon:/s ro\n\
            49 27 0:40 /sub /mnt ro - overlay tarpon:/s ro\n50 27 0:41 / /other ro - overlay tarpon:/s ro\n\
            51 27 0:40 / /mnt ro shared:4 - overlay tarpon:/s ro\n",
        );
        let is_other: Vec<_> = table.iter().map(|entry| is_other_mount_of(entry, &table[0])).collect();
        assert_eq!(is_other, [false, true, true, false, false], "the last one is a copy in another namespace");
    }

    #[test]
    fn layers_of_overlays_are_found_by_absolute_and_by_relative_paths() {
        let of = |options: &str| {
            let line = format!("47 27 0:40 / /merged rw - overlay overlay {options}\n");
            table::parse(line.as_bytes())[0].lower()
        };
        let place = Path::new("/s/snapshots/12/fs");
        for (options, is_used) in [
            ("rw,lowerdir=/a:/s/snapshots/12/fs,upperdir=/u", true),
            ("rw,lowerdir+=/s/snapshots/12/fs/sub,upperdir=/u", true),
            ("rw,lowerdir=14/fs:12/fs,upperdir=/u", true),
            ("rw,lowerdir=/s/snapshots/1/fs,upperdir=/s/snapshots/12/fs", false),
            ("rw,lowerdir=2/fs,upperdir=/u", false),
        ] {
            assert_eq!(of(options).iter().any(|layer| is_of(layer, place)), is_used, "{options}");
        }
    }
}
