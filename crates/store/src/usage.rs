//! Counts the content of the store.

use std::path::Path;

use crate::StoreError;
use crate::budget::on_disk;
use crate::files;
use crate::layout::{COMMITS, CORRUPT};
use crate::settings::Settings;
use crate::store::{Shared, Store};
use crate::walk::fan_out;

/// Prefix of temporary uppers in the server's scratch folder.
const UPPERS: &str = "upper-";

/// Content of the store, in bytes on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of complete objects.
    pub objects: u64,
    /// Their bytes.
    pub object_bytes: u64,
    /// Number of partial objects.
    pub partials: u64,
    /// Their bytes, without the holes, and those of layers whose streaming was interrupted.
    pub partial_bytes: u64,
    /// Number of image records.
    pub images: u64,
    /// Their bytes.
    pub image_bytes: u64,
    /// Bytes of set-aside and corrupt data.
    pub leftover_bytes: u64,
    /// Bytes written to mounts with a temporary upper: on the store's disk, but not evictable.
    pub written_bytes: u64,
    /// Bytes of committed images: user data, not evictable either.
    pub committed_bytes: u64,
    /// Maximum size of the store in bytes.
    pub budget: u64,
    /// Bytes that stay free on the disk.
    pub free_floor: u64,
}

impl Usage {
    /// All bytes that count towards the budget.
    pub fn total(&self) -> u64 {
        self.object_bytes + self.partial_bytes + self.image_bytes + self.leftover_bytes
    }
}

impl Store {
    /// Sets the maximum size of the store for every process that uses it; running ones pick it up at their next check of
    /// the disk. Returns the earlier setting; nothing is written if it is the same.
    pub fn set_budget(&self, bytes: u64) -> Result<Option<u64>, StoreError> {
        let shared = &*self.shared;
        let before = Settings::read(shared.storage(), &shared.layout);
        if before.budget != Some(bytes) {
            let changed = Settings::change(shared.storage(), &shared.layout, |settings| settings.budget = Some(bytes));
            changed.map_err(|error| shared.refuse(error))?;
            shared.budget.refresh();
        }
        Ok(before.budget)
    }

    /// Counts the content. Walks over the whole store.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        let shared = &*self.shared;
        let mut usage = Usage { budget: shared.budget.limit(), free_floor: shared.budget.floor(), ..Usage::default() };
        for part in self.whole().parts()? {
            part.shared.count(&mut usage)?;
        }
        usage.leftover_bytes += shared.tree_size(&shared.layout.name("set-aside"))?;
        usage.committed_bytes = shared.tree_size(&shared.layout.name(COMMITS))?;
        for scratch in [false, true].map(|in_user_namespace| shared.layout.server_of(in_user_namespace).join("mounts"))
        {
            for name in files::list(shared.storage(), &scratch).unwrap_or_default() {
                if name.to_string_lossy().starts_with(UPPERS) {
                    usage.written_bytes += shared.tree_size(&scratch.join(name))?;
                }
            }
        }
        Ok(usage)
    }

    /// Size of the store in bytes, as far as this process knows without counting.
    pub fn estimated_usage(&self) -> u64 {
        self.shared.budget.used()
    }

    /// Counts, and shares the result with the other processes.
    pub(crate) fn recount(&self) -> Result<Usage, StoreError> {
        let usage = self.usage()?;
        self.shared.budget.recount(usage.total());
        Ok(usage)
    }
}

impl Shared {
    /// Adds the content of this part of the store.
    fn count(&self, usage: &mut Usage) -> Result<(), StoreError> {
        for (_, folder) in fan_out() {
            for found in self.examined_in("objects", &folder)? {
                usage.objects += 1;
                usage.object_bytes += on_disk(found.metadata.size);
            }
            for found in self.examined_in("partial", &folder)? {
                usage.partials += 1;
                usage.partial_bytes += found.metadata.allocated;
            }
        }
        usage.partial_bytes += self.layer_parts_size()?;
        let images = self.layout.name("images");
        for name in files::list(self.storage(), &images)? {
            usage.images += 1;
            usage.image_bytes += self.folder_size(&images.join(name))?;
        }
        usage.image_bytes += self.folder_size(&self.layout.name("layers"))?;
        usage.leftover_bytes += self.tree_size(&self.layout.name(CORRUPT))?;
        Ok(())
    }

    /// Bytes of all files below `path`.
    pub(crate) fn tree_size(&self, path: &Path) -> Result<u64, StoreError> {
        let mut sum: u64 = 0;
        let mut pending = vec![path.to_owned()];
        while let Some(path) = pending.pop() {
            match self.storage.metadata(&path) {
                Ok(metadata) if metadata.is_dir => {
                    pending.extend(files::list(self.storage(), &path)?.iter().map(|name| path.join(name)));
                }
                Ok(metadata) => sum = sum.saturating_add(on_disk(metadata.allocated)),
                Err(_) => {}
            }
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use crate::StoreConfig;

    use super::*;

    #[test]
    fn bytes_written_to_mounts_are_counted_separately() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let upper = store.run_folder().join("mounts/upper-x/upper");
        std::fs::create_dir_all(&upper).unwrap();
        std::fs::write(upper.join("file"), vec![1; 10_000]).unwrap();
        std::os::unix::fs::symlink("/", upper.join("link")).unwrap();
        let usage = store.usage().unwrap();
        assert!((10_000..1 << 20).contains(&usage.written_bytes), "{usage:?}");
        assert_eq!(usage.total(), 0);
    }

    fn open(folder: &tempfile::TempDir) -> Store {
        Store::open(folder.path(), StoreConfig::default()).unwrap()
    }

    #[test]
    fn a_new_maximum_size_is_remembered_and_reaches_open_stores() {
        let folder = tempfile::tempdir().unwrap();
        let (one, server) = (open(&folder), open(&folder));
        assert_eq!(one.set_budget(5 << 20).unwrap(), None);
        assert_eq!(one.set_budget(6 << 20).unwrap(), Some(5 << 20));
        assert_eq!(one.usage().unwrap().budget, 6 << 20);
        assert_eq!(open(&folder).usage().unwrap().budget, 6 << 20);
        server.shared.budget.refresh();
        assert_eq!(server.usage().unwrap().budget, 6 << 20);
    }

    #[test]
    fn damaged_settings_count_as_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let default = open(&folder).usage().unwrap().budget;
        std::fs::write(folder.path().join("settings"), "{}").unwrap();
        assert_eq!(open(&folder).usage().unwrap().budget, default);
    }
}
