//! The first file system of the virtual machine: busybox, tarpon with its libraries, modules and the scripts.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tarpon_harness::process;

use super::kernel::Kernel;

const INIT: &str = include_str!("init.sh");
const GUEST: &str = include_str!("guest.sh");

/// For busybox's init.
const INITTAB: &str = "::once:/guest.sh\n";

/// Builds the archive at `archive`, in the folder next to it.
pub(super) fn build(archive: &Path, tarpon: &Path, kernel: &Kernel) -> Result<()> {
    let root = archive.with_extension("root");
    let _absent = fs::remove_dir_all(&root);
    let install = |from: &Path, to: &str| copy(from, &root.join(to));
    install(&process::find("busybox").context("busybox is not installed")?, "bin/busybox")?;
    install(tarpon, "bin/tarpon")?;
    // Symbols of the lines take most of the program, and the machine keeps the archive in its memory.
    process::check(Command::new("strip").arg(root.join("bin/tarpon")))?;
    for library in libraries(tarpon)? {
        install(&library, &library.to_string_lossy()[1..])?;
    }
    let mut order = String::new();
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        install(module, &format!("modules/{name}"))?;
        order.push_str(&name);
        order.push('\n');
    }
    write(&root.join("modules/order"), &order)?;
    write(&root.join("init"), INIT)?;
    write(&root.join("guest.sh"), GUEST)?;
    write(&root.join("etc/inittab"), INITTAB)?;
    write(&root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
    pack(&root, archive)?;
    fs::remove_dir_all(&root)?;
    Ok(())
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

fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().unwrap_or(to);
    let copied = fs::create_dir_all(parent).and_then(|()| fs::copy(from, to));
    copied.map(drop).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Writes a file that may be executed.
fn write(path: &Path, text: &str) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, text))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn pack(root: &Path, archive: &Path) -> Result<()> {
    let out = File::create(archive).with_context(|| format!("cannot write {}", archive.display()))?;
    let mut cpio = Command::new("sh");
    cpio.args(["-c", "find . | cpio --quiet -o -H newc -R 0:0"]).current_dir(root).stdin(Stdio::null()).stdout(out);
    process::check(&mut cpio)
}
