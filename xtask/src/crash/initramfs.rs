//! The first file system of the virtual machine: busybox, tarpon with its libraries, modules and the scripts.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::process;

use crate::initramfs::Initramfs;
use crate::kernel::Kernel;

const INIT: &str = include_str!("init.sh");
const GUEST: &str = include_str!("guest.sh");

/// For busybox's init.
const INITTAB: &str = "::once:/guest.sh\n";

/// Builds the archive at `archive`, in the folder next to it.
pub(super) fn build(archive: &Path, tarpon: &Path, kernel: &Kernel) -> Result<()> {
    let initramfs = Initramfs::new(archive, kernel)?;
    initramfs.copy(tarpon, "bin/tarpon")?;
    // Symbols of the lines take most of the program, and the machine keeps the archive in its memory.
    process::check(Command::new("strip").arg(initramfs.path("bin/tarpon")))?;
    for library in libraries(tarpon)? {
        initramfs.copy(&library, &library.to_string_lossy()[1..])?;
    }
    initramfs.write("init", INIT)?;
    initramfs.write("guest.sh", GUEST)?;
    initramfs.write("etc/inittab", INITTAB)?;
    initramfs.write("etc/passwd", "root:x:0:0:root:/:/bin/sh\n")?;
    initramfs.pack()
}

/// The shared libraries of a program, and its loader, as `ldd` prints them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.contains("not found") {
        bail!("{} lacks a library:\n{output}", program.display());
    }
    Ok(output.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}
