//! The expected tree of a mount: the tree that other tools unpack, and the accepted differences from it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::Result;

use crate::dump::{Difference, Dump, Seen, compare, dump};
use crate::real::{self, Oracle};

/// The expected tree of a mount, and its origin.
pub struct Expected {
    /// The tool that unpacked it.
    pub oracle: Oracle,
    /// The unpacked tree.
    pub tree: Dump,
    /// When the oracle unpacked, in seconds since 1970.
    unpacked: i64,
}

impl Expected {
    /// Unpacks an image with other tools.
    pub fn of(registry: &str, image: &str) -> Result<Self> {
        let unpacked = i64::try_from(UNIX_EPOCH.elapsed()?.as_secs())?;
        let (oracle, tree) = real::unpacked(registry, image)?;
        Ok(Self { oracle, tree, unpacked })
    }

    /// The unaccepted differences of a mounted tree. `format`: of the image's layers.
    pub fn differences(&self, format: &str, actual: &Dump) -> Vec<Difference> {
        let mut wrong = compare(&self.tree, actual);
        wrong.retain(|found| accepted(format, self, actual, found).is_none());
        wrong
    }

    /// Panics unless the tree at `root`, of an image in `format`, equals this one. `what` names it.
    pub fn assert_at(&self, root: &Path, format: &str, what: &str) {
        let wrong = self.differences(format, &dump(root).expect("a tree that can be read"));
        let shown: Vec<String> = wrong.iter().take(20).map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{what}: {} differences:\n{}", wrong.len(), shown.join("\n"));
    }

    /// Panics unless a stack of layers, seen through overlayfs, equals this one. `is_merged`: the topmost layer shows all of them, so
    /// links are counted over all layers.
    pub fn assert_stack(&self, seen: &Dump, format: &str, is_merged: bool, what: &str) {
        let mut wrong = self.differences(format, seen);
        // Overlayfs shows the link count of the file's layer, which may include a name that a layer above removed.
        wrong.retain(|found| is_merged || found.field != "nlink");
        let shown: Vec<String> = wrong.iter().take(20).map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{what}: {} differences:\n{}", wrong.len(), shown.join("\n"));
    }
}

/// Why a difference is accepted. `None`: it is not.
fn accepted(format: &str, expected: &Expected, actual: &Dump, found: &Difference) -> Option<&'static str> {
    let (was, is) = (expected.tree.get(&found.path)?, actual.get(&found.path)?);
    match (found.field, expected.oracle) {
        // The mount counts existing names; other tools count names that a later layer removed.
        ("nlink", _) if is.nlink == names_of(actual, is) => Some("names that were whited out do not count"),
        // eStargz's TOC holds whole seconds (RFC 3339 without a fraction).
        ("mtime", _) if format == "estargz" && was.mtime.1 != 0 && is.mtime.0 == was.mtime.0 => Some("whole seconds"),
        ("mtime", Oracle::Umoci) if was.mtime == (0, 0) && is.mtime.0 < 0 => Some("umoci: no times before 1970"),
        ("xattrs", Oracle::Umoci) if without_empty(&is.xattrs) == was.xattrs => Some("umoci: no empty attributes"),
        // A directory that no layer lists, or in which a later layer changed an entry.
        ("mtime", Oracle::Podman) if was.kind == 'd' && was.mtime.0 >= expected.unpacked => {
            Some("Podman: the time of unpacking")
        }
        ("mode", Oracle::Podman) if found.path.is_empty() => Some("Podman: 0555 for a root that no layer lists"),
        _ => None,
    }
}

/// Number of names of this inode in the tree.
fn names_of(tree: &Dump, seen: &Seen) -> u64 {
    match seen.group.is_empty() {
        true => 1,
        false => tree.values().filter(|other| other.group == seen.group).count() as u64,
    }
}

fn without_empty(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    xattrs.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.clone(), value.clone())).collect()
}
