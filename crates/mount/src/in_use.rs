//! Other users of a mount, as far as the kernel shows them: a mount that looks unused may be a layer of a container's root.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::table::{self, TableEntry};

/// The mount tables visible to processes, each mount namespace once. Namespaces that this process may not read are left out.
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

/// Returns those mount points that are a layer of some overlay, or lie above one of its layers.
pub fn below_overlays(mountpoints: &[PathBuf]) -> HashSet<PathBuf> {
    let mut found = HashSet::new();
    for table in tables() {
        let layers: Vec<PathBuf> = table.iter().flat_map(TableEntry::lower).collect();
        let is_used = |mountpoint: &&PathBuf| layers.iter().any(|layer| is_of(layer, mountpoint));
        found.extend(mountpoints.iter().filter(is_used).cloned());
    }
    found
}

/// Returns those mount points whose file systems are also mounted elsewhere, and where: bind mounts and roots of
/// containers. The kernel does not call a mount busy because of them, and their users would lose the server with it.
pub fn bound_elsewhere(mountpoints: &[PathBuf]) -> io::Result<HashMap<PathBuf, PathBuf>> {
    if mountpoints.is_empty() {
        return Ok(HashMap::new());
    }
    let all: Vec<_> = std::iter::once(table::mounts()?).chain(tables()).collect();
    Ok(bound_in(&all, mountpoints))
}

/// As [`bound_elsewhere`], from the tables of all namespaces, the own one first.
fn bound_in(tables: &[Vec<TableEntry>], mountpoints: &[PathBuf]) -> HashMap<PathBuf, PathBuf> {
    let own = tables.first().map(Vec::as_slice).unwrap_or_default();
    let places: HashSet<_> = mountpoints.iter().collect();
    let mut found = HashMap::new();
    for mount in own.iter().filter(|entry| places.contains(&entry.mountpoint) && entry.is_ours()) {
        let reach = Reach::of(mount, own, tables);
        let mut others = tables.iter().flat_map(|table| {
            let is_bound = |entry: &&TableEntry| is_other_mount_of(entry, mount) && !reach.has(entry, table);
            table.iter().filter(is_bound)
        });
        if let Some(other) = others.next() {
            found.insert(mount.mountpoint.clone(), other.mountpoint.clone());
        }
    }
    found
}

/// Whether `entry` is another mount of the same file system. A copy at the same place in another namespace does not
/// count: each new namespace starts with one.
fn is_other_mount_of(entry: &TableEntry, mount: &TableEntry) -> bool {
    entry.device == mount.device && (&entry.mountpoint, &entry.root) != (&mount.mountpoint, &mount.root)
}

/// What the kernel unmounts along with a mount: its copies wherever the parent mount propagates to. A container that sees
/// the host's mounts has such copies.
struct Reach {
    /// Where the mount is attached, in the file system of the parent mount.
    place: Option<((u32, u32), PathBuf)>,
    /// Peer groups of the parent mount, and those that receive from them.
    groups: HashSet<u64>,
}

impl Reach {
    fn of(mount: &TableEntry, own: &[TableEntry], tables: &[Vec<TableEntry>]) -> Self {
        let below = attached(mount, own);
        let mut groups: HashSet<_> = below.iter().filter_map(|(parent, _)| parent.shared).collect();
        loop {
            let receives = |entry: &&TableEntry| entry.master.is_some_and(|master| groups.contains(&master));
            let more: Vec<_> = tables.iter().flatten().filter(receives).filter_map(|entry| entry.shared).collect();
            let before = groups.len();
            groups.extend(more);
            if groups.len() == before {
                break;
            }
        }
        Self { place: below.map(|(parent, place)| (parent.device, place)), groups }
    }

    fn has(&self, entry: &TableEntry, table: &[TableEntry]) -> bool {
        let Some((parent, place)) = attached(entry, table) else { return false };
        let is_reached = |group: Option<u64>| group.is_some_and(|group| self.groups.contains(&group));
        let is_there = self.place.as_ref().is_some_and(|there| *there == (parent.device, place));
        is_there && (is_reached(parent.shared) || is_reached(parent.master))
    }
}

/// The parent of this mount, and the position in the parent's file system. `None` if it is not visible from here.
fn attached<'t>(entry: &TableEntry, table: &'t [TableEntry]) -> Option<(&'t TableEntry, PathBuf)> {
    let parent = table.iter().find(|other| other.id == entry.parent && other.id != entry.id)?;
    let below = entry.mountpoint.strip_prefix(&parent.mountpoint).ok()?;
    Some((parent, parent.root.join(below)))
}

/// Whether a layer, by the path given to the overlay, is in the mount at `mountpoint`. Overlays with many layers use
/// relative paths.
fn is_of(layer: &Path, mountpoint: &Path) -> bool {
    match layer.is_absolute() {
        true => layer.starts_with(mountpoint),
        false => !layer.as_os_str().as_bytes().is_empty() && mountpoint.ends_with(layer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "1 0 8:1 / / rw shared:1 - ext4 disk rw\n47 1 0:40 / /mnt ro shared:5 - overlay tarpon:/s ro\n";

    fn bound(own: &str, others: &[&str]) -> Option<PathBuf> {
        let tables: Vec<_> = std::iter::once(&own).chain(others).map(|text| table::parse(text.as_bytes())).collect();
        bound_in(&tables, &["/mnt".into()]).remove(Path::new("/mnt"))
    }

    #[test]
    fn a_bind_mount_is_another_mount_of_the_same_file_system() {
        for (line, at) in [
            ("48 1 0:40 / /bound ro - overlay tarpon:/s ro\n", Some("/bound")),
            ("48 1 0:40 /sub /bound ro - overlay tarpon:/s ro\n", Some("/bound")),
            ("48 1 0:41 / /bound ro - overlay tarpon:/s ro\n", None),
        ] {
            assert_eq!(bound(&format!("{HOST}{line}"), &[]).as_deref(), at.map(Path::new), "{line}");
            assert_eq!(bound(HOST, &[line]).as_deref(), at.map(Path::new), "in another namespace: {line}");
        }
    }

    #[test]
    fn the_root_of_a_container_is_a_use() {
        assert_eq!(bound(HOST, &["90 80 0:40 / / ro - overlay tarpon:/s ro\n"]).as_deref(), Some(Path::new("/")));
    }

    #[test]
    fn mounts_inside_the_mount_are_no_use_of_it() {
        // A new namespace; a container that sees the host's mounts; a namespace within that.
        let copy = "91 90 8:1 / / rw - ext4 disk rw\n92 91 0:40 / /mnt ro - overlay tarpon:/s ro\n";
        let slave = "91 90 8:1 / /host rw shared:7 master:1 - ext4 disk rw\n92 91 0:40 / /host/mnt ro master:5 - overlay tarpon:/s ro\n";
        let below = "93 90 8:1 / /two rw master:7 - ext4 disk rw\n94 93 0:40 / /two/mnt ro - overlay tarpon:/s ro\n";
        assert_eq!(bound(HOST, &[copy, slave, below]), None);
        // A namespace that received them once and receives no changes; and another place in one that does.
        let private = slave.replace(" shared:7 master:1", "");
        assert_eq!(bound(HOST, &[&private]).as_deref(), Some(Path::new("/host/mnt")));
        assert_eq!(bound(HOST, &[below]).as_deref(), Some(Path::new("/two/mnt")), "nobody passes it on");
        let elsewhere = slave.replace("/host/mnt", "/host/other");
        assert_eq!(bound(HOST, &[&elsewhere]).as_deref(), Some(Path::new("/host/other")));
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
