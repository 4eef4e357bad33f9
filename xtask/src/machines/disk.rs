//! The disk of a machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::process;

use super::suites::{KERNEL, PACKAGES, Suite};
use crate::{debian, vm};

/// Several times what the packages and the stores take; the file is sparse.
const BYTES: u64 = 6 << 30;
/// Is to be changed when [`configure`] changes.
const VERSION: &str = "2";

/// The disk after the installation, which is not written to, and what qemu boots.
#[derive(Debug)]
pub(super) struct Disk {
    raw: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
}

impl Disk {
    /// The disk in this folder, which is made if it is missing.
    pub(super) fn get(suite: &Suite, folder: &Path) -> Result<Self> {
        let disk =
            Self { raw: folder.join("root.raw"), kernel: folder.join("vmlinuz"), initramfs: folder.join("initrd") };
        let version = folder.join("version");
        let wanted = format!("{VERSION} {} {:?}", packages(suite), suite.kernel_from);
        if !fs::read_to_string(&version).is_ok_and(|found| found == wanted) {
            let _absent = fs::remove_file(&version);
            disk.make(suite, folder)?;
            fs::write(version, wanted)?;
        }
        Ok(disk)
    }

    fn make(&self, suite: &Suite, folder: &Path) -> Result<()> {
        let root = folder.join("root");
        let _other = fs::remove_dir_all(&root);
        debian::root(&root, suite.suite, &packages(suite))?;
        if let Some(from) = suite.kernel_from {
            debian::add(&root, from, KERNEL)?;
        }
        configure(&root)?;
        for (prefix, to) in [("vmlinuz-", &self.kernel), ("initrd.img-", &self.initramfs)] {
            let files = fs::read_dir(root.join("boot"))?.flatten().map(|entry| entry.path());
            let named =
                |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
            let from =
                files.filter(named).max().with_context(|| format!("no {prefix} in the root of {}", suite.name))?;
            fs::copy(from, to)?;
        }
        vm::make_disk(&root, &self.raw, BYTES)?;
        fs::remove_dir_all(&root)?;
        Ok(())
    }

    /// A layer over the disk, for one run.
    pub(super) fn overlay(&self, folder: &Path) -> Result<PathBuf> {
        let overlay = folder.join("run.qcow2");
        let mut image = Command::new("qemu-img");
        image.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).args([&self.raw, &overlay]);
        process::check_logged(&mut image, &folder.join("disk.log"))?;
        Ok(overlay)
    }
}

/// What debootstrap installs.
fn packages(suite: &Suite) -> String {
    let kernel = suite.kernel_from.is_none().then_some(KERNEL);
    [PACKAGES].into_iter().chain(kernel).chain(suite.more.iter().copied()).collect::<Vec<_>>().join(",")
}

/// Prepares the root for `sentences.sh`, which mounts the disk of tools.
fn configure(root: &Path) -> Result<()> {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        made.with_context(|| format!("cannot write {}", path.display()))
    };
    write("etc/fstab", "/dev/vda / ext4 defaults 0 1\n/dev/vdb /tools ext4 ro 0 2\n")?;
    fs::create_dir_all(root.join("tools"))?;
    write("etc/hostname", "machine\n")?;
    write("etc/hosts", "127.0.0.1 localhost machine\n")?;
    write("etc/systemd/network/net.network", "[Match]\nName=en* eth*\n[Network]\nDHCP=ipv4\n")?;
    write("etc/systemd/system/sentences.service", SERVICE)?;
    for unit in ["sentences.service", "systemd-networkd.service"] {
        let mut enable = Command::new("systemctl");
        process::check(enable.arg(format!("--root={}", root.display())).args(["--quiet", "enable", unit]))?;
    }
    let mut user = Command::new("chroot");
    process::check(user.arg(root).args(["useradd", "--create-home", "--shell", "/bin/bash", "someone"]))
}

const SERVICE: &str = "[Unit]
After=multi-user.target systemd-networkd.service
Wants=systemd-networkd.service
RequiresMountsFor=/tools
[Service]
Type=simple
ExecStart=/bin/bash /tools/sentences.sh
StandardOutput=journal+console
TimeoutStopSec=20
[Install]
WantedBy=multi-user.target
";
