//! User settings of this store, which apply to every process that uses it.

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::files::{self, io_error, read_record};
use crate::layout::{Layout, SETTINGS};
use crate::sealed;
use crate::storage::Storage;

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
        Self::try_read(storage, layout).unwrap_or_default()
    }

    /// As [`Settings::read`]. An error if it is not known whether the file has settings.
    pub(crate) fn try_read(storage: &dyn Storage, layout: &Layout) -> Result<Self, StoreError> {
        let text = read_record(storage, &layout.name(SETTINGS))?;
        Ok(text.and_then(|text| sealed::unseal(&text).ok()).unwrap_or_default())
    }

    /// Applies a change to the settings; all others stay unchanged.
    pub(crate) fn change(
        storage: &dyn Storage,
        layout: &Layout,
        change: impl FnOnce(&mut Self),
    ) -> Result<(), StoreError> {
        let before = Self::read(storage, layout);
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        let text = sealed::seal(&after).map_err(|error| io_error("writing", &layout.name(SETTINGS))(error.into()))?;
        files::replace(storage, layout.root(), SETTINGS, &text)
    }
}
