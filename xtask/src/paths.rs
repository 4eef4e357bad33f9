//! Where things are in this repository.

use std::env;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Where cargo builds, and where the tasks leave their files.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Where images are built; `$TARPON_IMAGES` moves it to another disk.
pub(crate) fn images() -> PathBuf {
    env::var_os("TARPON_IMAGES").map_or_else(|| target().join("images"), PathBuf::from)
}
