//! User settings of this store, which apply to every process that uses it.

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::files::{self, io_error};
use crate::layout::{Layout, read_record};
use crate::sealed;
use crate::storage::Storage;
use crate::store::Store;

/// Name of the file.
pub(crate) const FILE: &str = "settings";

/// The file `settings`. A missing field has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// Maximum size of the store in bytes.
    pub(crate) budget: Option<u64>,
    /// The user decided that all images share their common content.
    pub(crate) shared: bool,
}

impl Settings {
    /// Reads the settings. A damaged or missing file means defaults.
    pub(crate) fn read(storage: &dyn Storage, layout: &Layout) -> Self {
        let text = read_record(storage, &layout.name(FILE)).ok().flatten();
        text.and_then(|text| sealed::unseal(&text).ok()).unwrap_or_default()
    }
}

impl Store {
    /// Sets the maximum size of the store for every process that uses it; running ones pick it up at their next check of
    /// the disk. Returns the earlier setting; nothing is written if it is the same.
    pub fn settle_budget(&self, bytes: u64) -> Result<Option<u64>, StoreError> {
        let storage = self.shared.storage();
        let before = Settings::read(storage, &self.shared.layout);
        if before.budget != Some(bytes) {
            self.change_settings(|settings| settings.budget = Some(bytes))?;
            self.shared.budget.refresh();
        }
        Ok(before.budget)
    }

    /// Applies a change to the settings; all others stay unchanged.
    pub(crate) fn change_settings(&self, change: impl FnOnce(&mut Settings)) -> Result<(), StoreError> {
        let (storage, path) = (self.shared.storage(), self.shared.layout.name(FILE));
        let before = Settings::read(storage, &self.shared.layout);
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        let text = sealed::seal(&after).map_err(|error| io_error("writing", &path)(error.into()))?;
        files::replace(storage, self.shared.layout.root(), FILE, &text).map_err(|error| self.shared.refuse(error))
    }
}

#[cfg(test)]
mod tests {
    use crate::StoreConfig;

    use super::*;

    fn open(folder: &tempfile::TempDir) -> Store {
        Store::open(folder.path(), StoreConfig::default()).unwrap()
    }

    #[test]
    fn the_size_is_remembered_and_heard_of_by_those_who_use_the_store_already() {
        let folder = tempfile::tempdir().unwrap();
        let (one, server) = (open(&folder), open(&folder));
        assert_eq!(one.settle_budget(5 << 20).unwrap(), None);
        assert_eq!(one.settle_budget(6 << 20).unwrap(), Some(5 << 20));
        assert_eq!(one.usage().unwrap().budget, 6 << 20);
        assert_eq!(open(&folder).usage().unwrap().budget, 6 << 20);
        server.shared.budget.refresh();
        assert_eq!(server.usage().unwrap().budget, 6 << 20);
    }

    #[test]
    fn damaged_settings_settle_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let default = open(&folder).usage().unwrap().budget;
        std::fs::write(folder.path().join(FILE), "{}").unwrap();
        assert_eq!(open(&folder).usage().unwrap().budget, default);
    }
}
