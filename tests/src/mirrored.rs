//! Hosts that mount an image of a registry through its mirror.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tarpon_oci::Digest;
use tempfile::TempDir;

use crate::real;
use crate::tarpon::{Tarpon, binary};

/// The repository of the image.
pub const IMAGE: &str = "dev/debian-base";

/// Files of a folder that are compared.
const FILES: usize = 40;

/// Checks that this many hosts cost the registry at most a tenth more than one. `egress` starts hosts at the same time, and returns what the
/// registry sent.
pub fn assert_hosts_cost_what_one_costs(hosts: usize, egress: impl Fn(usize, &Mount, &str) -> u64) {
    let registry = real::registry().unwrap();
    let plain = MirroredHost::new(&registry, &registry);
    let expected = plain.mount_plain(&registry);
    let one = egress(1, &expected, &registry);
    let all = egress(hosts, &expected, &registry);
    println!("the registry sent {one} bytes for one host and {all} for {hosts}");
    // Tags and manifests are not cached.
    assert!(all * 10 <= one * 11, "{all} bytes for {hosts} hosts, {one} for one");
}

/// A host with a store and a configuration of registries of its own.
pub struct MirroredHost {
    /// Its store.
    pub tarpon: Tarpon,
    conf: PathBuf,
}

/// An image that is mounted for as long as this exists.
pub struct Mount {
    root: TempDir,
    store: PathBuf,
}

impl MirroredHost {
    /// A host for which `images.example` is at `location` and has a mirror, and `base` is short for the image there.
    pub fn new(location: &str, mirror: &str) -> Self {
        let tarpon = Tarpon::new().unwrap();
        let conf = tarpon.store().with_file_name("registries.conf");
        let text = format!(
            "[[registry]]\nprefix='images.example'\nlocation='{location}'\ninsecure=true\n\
             [[registry.mirror]]\nlocation='{mirror}'\ninsecure=true\n\
             [aliases]\n'base'='images.example/{IMAGE}'\n"
        );
        fs::write(&conf, text).unwrap();
        Self { tarpon, conf }
    }

    /// The same without a mirror, and with this text as a file of endpoints.
    pub fn with_endpoints(location: &str, text: &str) -> Self {
        let tarpon = Tarpon::new().unwrap();
        let conf = tarpon.store().with_file_name("registries.conf");
        let alias = format!("[aliases]\n'base'='images.example/{IMAGE}'\n");
        fs::write(
            &conf,
            format!("[[registry]]\nprefix='images.example'\nlocation='{location}'\ninsecure=true\n{alias}"),
        )
        .unwrap();
        let host = Self { tarpon, conf };
        fs::create_dir(host.endpoints()).unwrap();
        fs::write(host.endpoints().join("cache.toml"), text).unwrap();
        host
    }

    /// The folder of the files of endpoints, which need not exist.
    fn endpoints(&self) -> PathBuf {
        self.conf.with_file_name("endpoints.d")
    }

    /// A command of the host; arguments follow.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = self.tarpon.command(subcommand);
        command.env("CONTAINERS_REGISTRIES_CONF", &self.conf).env("TARPON_ENDPOINTS", self.endpoints());
        command
    }

    /// Mounts an image by the name that the host's configuration knows.
    pub fn mount(&self, image: &str, options: &[&str]) -> Mount {
        self.mount_in(image, options, &[])
    }

    /// The same, with more variables in the environment.
    pub fn mount_in(&self, image: &str, options: &[&str], environment: &[(&str, &OsStr)]) -> Mount {
        let root = tempfile::Builder::new().prefix("mirrored-").tempdir_in(self.conf.parent().unwrap()).unwrap();
        let mut mount = self.command("mount");
        mount.envs(environment.iter().copied()).args(options).arg(image).arg(root.path());
        real::run(&mut mount).unwrap();
        Mount { root, store: self.tarpon.store() }
    }

    /// The image, mounted without a mirror in a store of its own.
    pub fn mount_plain(&self, registry: &str) -> Mount {
        let root = tempfile::Builder::new().prefix("plain-").tempdir_in(self.conf.parent().unwrap()).unwrap();
        let store = self.tarpon.store().with_file_name("plain");
        let mut mount = self.tarpon.command("mount");
        mount.env("TARPON_STORE", &store).arg(format!("{registry}/{IMAGE}:zstdchunked")).arg(root.path());
        real::run(&mut mount).unwrap();
        Mount { root, store }
    }
}

impl Mount {
    /// The directory.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Fails if files of a folder do not have the same bytes as in the other mount.
    pub fn check(&self, folder: &str, expected: &Self) {
        let digest = |path: &Path| Digest::of(&fs::read(path).unwrap());
        let entries = fs::read_dir(expected.path().join(folder)).unwrap().flatten();
        let files: Vec<_> = entries.filter(|entry| entry.file_type().unwrap().is_file()).take(FILES).collect();
        assert_eq!(files.len(), FILES, "{folder}");
        for file in files {
            let path = self.path().join(folder).join(file.file_name());
            assert_eq!(digest(&path), digest(&file.path()), "{}", path.display());
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mut unmount = Command::new(binary());
        unmount.env("TARPON_STORE", &self.store).args(["umount", "--lazy"]).arg(self.root.path());
        let _ = unmount.output();
    }
}
