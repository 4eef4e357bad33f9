//! Detects which limits the cgroups of this host support.

use std::path::Path;

use rustix::fs::Access;

/// The mount point of cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Superblock number of cgroup v2.
const CGROUP2: i64 = 0x6367_7270;

/// The cgroups of a host.
pub(super) struct Cgroups<'a> {
    folder: &'a Path,
}

impl Cgroups<'static> {
    pub(super) fn of_this_host() -> Self {
        Self { folder: Path::new(CGROUPS) }
    }
}

impl<'a> Cgroups<'a> {
    #[cfg(test)]
    pub(super) fn at(folder: &'a Path) -> Self {
        Self { folder }
    }

    /// Whether the controller exists, in the unified hierarchy of cgroup v2 or in one of its own.
    pub(super) fn has_controller(&self, name: &str) -> bool {
        match self.read("cgroup.controllers") {
            Some(controllers) => has_word(&controllers, name),
            None => self.folder.join(name).is_dir(),
        }
    }

    /// Whether a runtime can set a limit of this controller here. Inside another container, cgroups are often visible but read-only, or the
    /// controller cannot be delegated.
    pub(super) fn can_limit(&self, name: &str) -> bool {
        let Some(controllers) = self.read("cgroup.controllers") else { return can_write(&self.folder.join(name)) };
        // Only the root cgroup of the host may have both processes and enabled controllers, and only the root has no `cgroup.events`.
        let is_root = !self.folder.join("cgroup.events").exists();
        let hands_on = || has_word(&self.read("cgroup.subtree_control").unwrap_or_default(), name);
        has_word(&controllers, name) && can_write(self.folder) && (is_root || hands_on())
    }

    fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(file)).ok()
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_ascii_whitespace().any(|one| one == word)
}

/// Whether the folder is writable. On a read-only file system it is not, even for root.
fn can_write(folder: &Path) -> bool {
    folder.is_dir() && rustix::fs::access(folder, Access::WRITE_OK).is_ok()
}

pub(super) fn has_cgroup2() -> bool {
    rustix::fs::statfs(CGROUPS).is_ok_and(|fs| fs.f_type == CGROUP2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, file: &str, text: &str) {
        std::fs::write(folder.join(file), text).unwrap();
    }

    #[test]
    fn a_controller_of_its_own_can_limit_where_it_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pids")).unwrap();
        let cgroups = Cgroups::at(folder.path());
        assert!(cgroups.has_controller("pids") && cgroups.can_limit("pids"));
        assert!(!cgroups.has_controller("memory") && !cgroups.can_limit("memory"));
    }

    #[test]
    fn a_controller_that_a_container_is_shown_and_cannot_hand_on_limits_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::at(folder.path());
        write(folder.path(), "cgroup.controllers", "cpu memory pids\n");
        assert!(cgroups.can_limit("pids"), "the root of the host");
        write(folder.path(), "cgroup.events", "populated 1\n");
        write(folder.path(), "cgroup.subtree_control", "cpu\n");
        assert!(cgroups.has_controller("pids") && !cgroups.can_limit("pids"));
        write(folder.path(), "cgroup.subtree_control", "cpu pids\n");
        assert!(cgroups.can_limit("pids") && !cgroups.can_limit("io"));
    }
}
