//! Why a store could not be opened.

use std::path::PathBuf;

use crate::StoreError;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The folder holds other files: making it a store would mix them with ours.
    #[error("{} is no tarpon store and is not empty (it holds {found:?})", folder.display())]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// One name that is not the store's.
        found: String,
    },
    /// Another version of tarpon serves mounts from the folder now.
    #[error("{} is a store of another version ({version:?}), and a server of that version runs on it", folder.display())]
    OtherVersionInUse {
        /// The folder.
        folder: PathBuf,
        /// Content of its version file.
        version: String,
    },
}
