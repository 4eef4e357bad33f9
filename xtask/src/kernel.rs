//! The kernel of virtual machines: that of Debian for clouds, downloaded and unpacked, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::{paths, process};

/// The package that depends on the current kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// The modules, each behind those that it needs.
    pub(crate) modules: Vec<PathBuf>,
}

impl Kernel {
    /// The kernel with these modules, of which it may lack the `useful` ones. It is downloaded if it is missing.
    pub(crate) fn get(needed: &[&str], useful: &[&str]) -> Result<Self> {
        let folder = paths::target().join("kernel");
        let unpacked = folder.join("unpacked");
        if find_image(&unpacked).is_none() {
            download(&folder)?;
        }
        let image = find_image(&unpacked).with_context(|| format!("no kernel in {}", unpacked.display()))?;
        let mut all = Vec::new();
        list_modules(&unpacked, &mut all)?;
        let mut modules = Vec::new();
        for name in needed {
            add(&all, name, &mut modules)?;
        }
        for name in useful.iter().filter(|name| find(&all, name).is_some()) {
            add(&all, name, &mut modules)?;
        }
        Ok(Self { image, modules })
    }
}

fn download(folder: &Path) -> Result<()> {
    let packed = folder.join("packed");
    // What an interrupted run left.
    let _absent = fs::remove_dir_all(folder);
    fs::create_dir_all(&packed)?;
    let depends =
        Command::new("apt-cache").args(["depends", META_PACKAGE]).output().context("cannot start apt-cache")?;
    let depends = String::from_utf8_lossy(&depends.stdout).into_owned();
    let package = depends.split_whitespace().find(|word| word.starts_with("linux-image-") && *word != META_PACKAGE);
    let package = package.with_context(|| format!("apt knows no package {META_PACKAGE}: run apt-get update"))?;
    println!("downloading {package}");
    let mut download = Command::new("apt-get");
    process::check_logged(download.args(["download", package]).current_dir(&packed), &folder.join("download.log"))?;
    let archive = fs::read_dir(&packed)?.next().context("apt-get download left no file")??.path();
    let part = folder.join("part");
    process::check_logged(Command::new("dpkg-deb").arg("-x").args([&archive, &part]), &folder.join("unpack.log"))?;
    // Of 100 MiB only these are used; the rename shows that all of them are there.
    fs::rename(&part, folder.join("unpacked"))?;
    fs::remove_dir_all(packed)?;
    Ok(())
}

fn find_image(unpacked: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(unpacked.join("boot")).ok()?;
    files.flatten().map(|file| file.path()).find(|path| name(path).starts_with("vmlinuz-"))
}

fn list_modules(folder: &Path, modules: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list_modules(&entry.path(), modules)?;
        } else if name(&entry.path()).contains(".ko") {
            modules.push(entry.path());
        }
    }
    Ok(())
}

/// Adds a module behind those that it needs.
fn add(all: &[PathBuf], module: &str, modules: &mut Vec<PathBuf>) -> Result<()> {
    let path = find(all, module).with_context(|| format!("the kernel has no module {module}"))?;
    if modules.contains(&path) {
        return Ok(());
    }
    let path = uncompressed(path)?;
    let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for needed in depends(&content) {
        add(all, &needed, modules)?;
    }
    modules.push(path);
    Ok(())
}

fn find(all: &[PathBuf], module: &str) -> Option<PathBuf> {
    // The names of files may have the other dash.
    let is_same = |path: &&PathBuf| name(path).split('.').next().is_some_and(|stem| stem.replace('-', "_") == module);
    all.iter().find(is_same).map(|path| if path.exists() { path.clone() } else { path.with_extension("") })
}

/// Debian compresses modules since version 13.
fn uncompressed(path: PathBuf) -> Result<PathBuf> {
    if path.extension().is_some_and(|extension| extension == "ko") {
        return Ok(path);
    }
    if path.extension().is_none_or(|extension| extension != "xz") {
        bail!("{} is compressed in an unknown way", path.display());
    }
    process::check(Command::new("busybox").arg("unxz").arg(&path))?;
    Ok(path.with_extension(""))
}

/// The names of the modules that a module needs, from the strings of its section `.modinfo`.
fn depends(content: &[u8]) -> Vec<String> {
    let strings = content.split(|&byte| byte == 0);
    let list = strings.filter_map(|string| string.strip_prefix(b"depends=")).next().unwrap_or_default();
    let names = list.split(|&byte| byte == b',').filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_behind_those_that_they_need() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, needs: &str| {
            fs::write(folder.path().join(name), format!("ELF\0license=GPL\0depends={needs}\0name=x\0")).unwrap();
        };
        write("virtio.ko", "");
        write("virtio-ring.ko", "virtio");
        write("virtio_pci.ko", "virtio_ring,virtio");
        write("other.ko", "");
        let (mut all, mut modules) = (Vec::new(), Vec::new());
        list_modules(folder.path(), &mut all).unwrap();
        add(&all, "virtio_pci", &mut modules).unwrap();
        add(&all, "virtio", &mut modules).unwrap();
        let names: Vec<_> = modules.iter().map(|path| name(path)).collect();
        assert_eq!(names, ["virtio.ko", "virtio-ring.ko", "virtio_pci.ko"]);
        assert!(add(&all, "absent", &mut modules).is_err());
    }
}
