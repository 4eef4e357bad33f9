//! What all steps of a release use.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use tarpon_harness::process;

use super::target::Target;

/// The version of all packages.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Who answers for the packages.
pub(super) const MAINTAINER: &str = "tarpon maintainers <tarpon-fs@users.noreply.github.com>";

/// The compiler of a release: another one gives other bytes.
pub(super) const TOOLCHAIN: &str = "1.95.0";

/// The profile in `Cargo.toml`, and the name of its folder.
pub(super) const PROFILE: &str = "dist";

/// Where a release is built. None of these folders shows in its files.
pub(super) struct Folders {
    /// The checkout.
    pub(super) root: PathBuf,
    /// The target folder of cargo, apart from that of ordinary builds, which have other flags.
    pub(super) target: PathBuf,
    /// Cargo's home, with the sources of the crates.
    pub(super) home: PathBuf,
    /// The time of the commit, which all files get.
    pub(super) seconds: u64,
}

impl Folders {
    /// The folder of a target's results.
    pub(super) fn results(&self, target: Target) -> PathBuf {
        self.target.join(target.triple()).join(PROFILE)
    }
}

/// Rustup takes the toolchain from this variable; without rustup it has no effect.
pub(super) fn with_toolchain(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("RUSTUP_TOOLCHAIN", TOOLCHAIN);
    command
}

/// What git prints in a checkout.
pub(super) fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    process::output(Command::new("git").args(arguments).current_dir(root))
}
