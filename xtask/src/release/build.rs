//! Builds the program of a release.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::{paths, process};

/// The compiler of a release: another one gives other bytes.
const TOOLCHAIN: &str = "1.95.0";

/// Builds with the versions of Cargo.lock, and without the names of this machine's folders.
pub(super) fn program(root: &Path) -> Result<PathBuf> {
    check_compiler()?;
    // Apart from the ordinary builds, which have other flags and would be built again after it.
    let target = paths::target().join("release-build");
    let (sources, home) = (text(root)?, cargo_home()?);
    let rust = format!("--remap-path-prefix={sources}=/tarpon --remap-path-prefix={home}=/cargo");
    let c = format!("-ffile-prefix-map={home}=/cargo -ffile-prefix-map={}=/target", text(&target)?);
    let mut build = with_toolchain("cargo");
    build.args(["build", "--release", "--locked", "--package", "tarpon", "--target-dir"]).arg(&target);
    build.current_dir(root).env("RUSTFLAGS", rust).env("CFLAGS", c).env_remove("CARGO_ENCODED_RUSTFLAGS");
    process::check(&mut build)?;
    Ok(target.join("release/tarpon"))
}

/// The target that the compiler builds for: x86_64-unknown-linux-gnu for example.
pub(super) fn host() -> Result<String> {
    let text = process::output(with_toolchain("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

fn check_compiler() -> Result<()> {
    let version = process::output(with_toolchain("rustc").arg("--version"))?;
    if version.split(' ').nth(1) != Some(TOOLCHAIN) {
        bail!("a release is built with Rust {TOOLCHAIN}, and this is {version}: rustup toolchain install {TOOLCHAIN}");
    }
    Ok(())
}

/// Rustup takes the toolchain from this variable; without rustup it has no effect.
fn with_toolchain(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("RUSTUP_TOOLCHAIN", TOOLCHAIN);
    command
}

fn cargo_home() -> Result<String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    text(&home.context("neither CARGO_HOME nor HOME is set: set one")?)
}

/// A path as part of a list of flags, which are separated by blanks.
fn text(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains(char::is_whitespace));
    Ok(text.with_context(|| format!("{} has a blank: build in another folder", path.display()))?.to_owned())
}
