//! The program under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{paths, process};

/// The named program, else a new release build.
pub fn named_or_built(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(named) => fs::canonicalize(named).with_context(|| format!("cannot find {}", named.display())),
        None => {
            let mut build = Command::new("cargo");
            build.args(["build", "--release", "--locked", "--package", "tarpon"]).current_dir(paths::root());
            process::check(&mut build)?;
            Ok(paths::target().join("release/tarpon"))
        }
    }
}

/// A copy of this program at `to` without what debuggers need, for guests that get copies of it.
pub fn stripped(named: Option<&Path>, to: &Path) -> Result<PathBuf> {
    process::check(Command::new("strip").arg("-o").arg(to).arg(named_or_built(named)?))?;
    Ok(to.to_owned())
}
