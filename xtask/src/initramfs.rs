//! The first file system of a virtual machine: a folder that is packed as an archive.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use tarpon_harness::process;

use crate::kernel::Kernel;

/// An archive that is not written yet.
#[derive(Debug)]
pub(crate) struct Initramfs {
    archive: PathBuf,
    root: PathBuf,
}

impl Initramfs {
    /// One with busybox and the kernel's modules; `modules/order` lists these in the order in which they are loaded.
    pub(crate) fn new(archive: &Path, kernel: &Kernel) -> Result<Self> {
        let made = Self { archive: archive.to_owned(), root: archive.with_extension("root") };
        let _absent = fs::remove_dir_all(&made.root);
        made.copy(&process::find("busybox").context("busybox is not installed")?, "bin/busybox")?;
        let mut order = String::new();
        for module in &kernel.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            made.copy(module, &format!("modules/{name}"))?;
            order.push_str(&name);
            order.push('\n');
        }
        made.write("modules/order", &order)?;
        Ok(made)
    }

    /// The path of a file before it is packed.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Copies a file of the host.
    pub(crate) fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.path(to);
        let parent = to.parent().unwrap_or(&to);
        let copied = fs::create_dir_all(parent).and_then(|()| fs::copy(from, &to));
        copied.map(drop).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
    }

    /// Writes a file that may be executed.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&path);
        let written = fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the archive and removes the folder.
    pub(crate) fn pack(self) -> Result<()> {
        let out = File::create(&self.archive).with_context(|| format!("cannot write {}", self.archive.display()))?;
        let mut cpio = Command::new("sh");
        cpio.args(["-c", "find . | cpio --quiet -o -H newc -R 0:0"]);
        cpio.current_dir(&self.root).stdin(Stdio::null()).stdout(out);
        process::check(&mut cpio)?;
        fs::remove_dir_all(&self.root)?;
        Ok(())
    }
}
