//! Builds the program of a release.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::process;

use super::common::{Folders, PROFILE, TOOLCHAIN, with_toolchain};
use super::target::Target;
use super::tools::Tools;

/// Builds with the versions of Cargo.lock, a C compiler and a linker of one version each, and without the names of this
/// machine's folders. The list of all crates is in the program, for `cargo audit bin`.
pub(super) fn program(folders: &Folders, target: Target, tools: &Tools) -> Result<PathBuf> {
    let mut rust = vec!["-Clinker=rust-lld".to_owned(), "-Clink-self-contained=yes".to_owned()];
    // A static program relocates itself; the compact format is a megabyte smaller, and musl reads it since 1.2.4.
    rust.push("-Clink-arg=--pack-dyn-relocs=relr".to_owned());
    // zig writes debug information, with the name of the folder, and checks for undefined behaviour, by default.
    let mut c = vec!["-g0".to_owned(), "-fno-sanitize=undefined".to_owned()];
    for (folder, to) in [(&folders.root, "/tarpon"), (&folders.target, "/target"), (&folders.home, "/cargo")] {
        let folder = text(folder)?;
        rust.push(format!("--remap-path-prefix={folder}={to}"));
        c.push(format!("-ffile-prefix-map={folder}={to}"));
    }
    let variable = target.triple().replace('-', "_");
    let mut build = tools.cargo(folders)?;
    build.args(["auditable", "build", "--locked", "--package", "tarpon", "--profile", PROFILE]);
    build.args(["--target", target.triple(), "--target-dir"]).arg(&folders.target);
    build.current_dir(&folders.root).env("RUSTFLAGS", rust.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    build.env(format!("CC_{variable}"), tools.c_compiler(target)?).env(format!("CFLAGS_{variable}"), c.join(" "));
    build.env(format!("AR_{variable}"), tools.archiver()?);
    build.env("ZIG_GLOBAL_CACHE_DIR", tools.zig_cache()).env("ZIG_LOCAL_CACHE_DIR", tools.zig_cache());
    process::check(&mut build)?;
    Ok(folders.results(target).join("tarpon"))
}

/// Installs the standard library of the targets, if rustup is here, and checks the version of the compiler.
pub(super) fn install_compiler(targets: &[Target]) -> Result<()> {
    if process::find("rustup").is_some() {
        let triples = targets.iter().map(|target| target.triple());
        process::output(Command::new("rustup").args(["target", "add", "--toolchain", TOOLCHAIN]).args(triples))
            .with_context(|| format!("cannot install the targets: rustup toolchain install {TOOLCHAIN}"))?;
    }
    let version = process::output(with_toolchain("rustc").arg("--version"))?;
    if version.split(' ').nth(1) != Some(TOOLCHAIN) {
        bail!("a release is built with Rust {TOOLCHAIN}, and this is {version}: rustup toolchain install {TOOLCHAIN}");
    }
    Ok(())
}

/// Cargo's home.
pub(super) fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    home.context("neither CARGO_HOME nor HOME is set: set one")
}

/// A path as part of a list of flags, which are separated by blanks.
fn text(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains(char::is_whitespace));
    Ok(text.with_context(|| format!("{} has a blank: build in another folder", path.display()))?.to_owned())
}
