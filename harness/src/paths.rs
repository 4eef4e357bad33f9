//! Folders of this repository.

use std::env;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    // Set while cargo runs this program: several checkouts may share a target folder and thus one program.
    let package = env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&package).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// The target folder, where cargo builds and the tasks leave their files.
pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The folder for all files of the benchmarks.
pub fn benchmarks() -> PathBuf {
    target().join("bench")
}

/// The folder where images are built; `$TARPON_IMAGES` moves it to another disk.
pub fn images() -> PathBuf {
    env::var_os("TARPON_IMAGES").map_or_else(|| target().join("images"), PathBuf::from)
}
