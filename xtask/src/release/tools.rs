//! The programs that make a release, each in one version, in a folder of their own.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::{paths, process};

use super::common::{Folders, with_toolchain};
use super::target::Target;

/// The subcommands of cargo, with their versions.
const SUBCOMMANDS: &[(&str, &str)] = &[
    ("cargo-auditable", "0.7.7"),
    ("cargo-deb", "3.8.0"),
    ("cargo-generate-rpm", "0.21.1"),
    ("cargo-cyclonedx", "0.5.9"),
];

/// The C compiler for the crates that contain C: zig, which compiles for each target with the headers of its musl.
const ZIG: &str = "0.15.2";

/// The checksum of zig's package for x86-64.
const ZIG_SHA256: &str = "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130";

/// The installed programs.
pub(super) struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Installs what is missing, which takes minutes the first time.
    pub(super) fn install() -> Result<Self> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            bail!("a release is made on Linux on x86-64: the C compiler is pinned for it");
        }
        let tools = Self { folder: paths::target().join("release-tools") };
        fs::create_dir_all(tools.programs()).with_context(|| format!("cannot create {}", tools.folder.display()))?;
        for (name, version) in SUBCOMMANDS {
            tools.install_subcommand(name, version)?;
        }
        tools.install_zig()?;
        Ok(tools)
    }

    /// Cargo, which finds the installed subcommands.
    pub(super) fn cargo(&self, folders: &Folders) -> Result<Command> {
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([self.programs()].into_iter().chain(env::split_paths(&path)))?;
        let mut cargo = with_toolchain("cargo");
        cargo.current_dir(&folders.root).env("CARGO_HOME", &folders.home).env("PATH", path);
        Ok(cargo)
    }

    /// Cargo with a subcommand that writes times: that of the commit. It is not for builds, as scripts that call the C compiler run again if the
    /// time changes.
    pub(super) fn packager(&self, folders: &Folders) -> Result<Command> {
        let mut cargo = self.cargo(folders)?;
        cargo.env("SOURCE_DATE_EPOCH", folders.seconds.to_string());
        Ok(cargo)
    }

    /// The C compiler for a target: a script, because the crate `cc` calls one program with arguments of its own.
    pub(super) fn c_compiler(&self, target: Target) -> Result<PathBuf> {
        // The crate passes the name that Rust has for the target, which zig does not know.
        let drop = "for a; do shift; case $a in --target=*) ;; *) set -- \"$@\" \"$a\";; esac; done\n";
        self.script(
            &format!("{}-cc", target.triple()),
            &format!("{drop}exec {} cc -target {} \"$@\"", self.zig(), target.zig()),
        )
    }

    /// The archiver that goes with the compiler.
    pub(super) fn archiver(&self) -> Result<PathBuf> {
        self.script("zig-ar", &format!("exec {} ar \"$@\"", self.zig()))
    }

    /// Where the compiler keeps what it compiles of its own.
    pub(super) fn zig_cache(&self) -> PathBuf {
        self.folder.join("zig-cache")
    }

    /// The licence of musl, which is a part of every program of a release.
    pub(super) fn licence_of_musl(&self) -> PathBuf {
        self.folder.join("zig/ziglang/lib/libc/musl/COPYRIGHT")
    }

    fn programs(&self) -> PathBuf {
        self.folder.join("bin")
    }

    fn zig(&self) -> String {
        self.folder.join("zig/ziglang/zig").display().to_string()
    }

    fn install_subcommand(&self, name: &str, version: &str) -> Result<()> {
        let list = fs::read_to_string(self.folder.join(".crates.toml")).unwrap_or_default();
        if list.contains(&format!("\"{name} {version} ")) {
            return Ok(());
        }
        println!("installing {name} {version}");
        let mut install = Command::new("cargo");
        // --locked: with the dependencies that its release was tested with.
        install.args(["install", "--quiet", "--locked", "--force", &format!("{name}@{version}"), "--root"]);
        install.arg(&self.folder).arg("--target-dir").arg(self.folder.join("build"));
        process::check(&mut install)
    }

    fn install_zig(&self) -> Result<()> {
        let (folder, list) = (self.folder.join("zig"), self.folder.join("zig.requirements"));
        let wanted = format!("ziglang=={ZIG} --hash=sha256:{ZIG_SHA256}\n");
        if folder.join("ziglang/zig").exists() && fs::read_to_string(&list).is_ok_and(|have| have == wanted) {
            return Ok(());
        }
        println!("installing zig {ZIG}");
        // What another version, or an interrupted installation, left.
        let _absent = fs::remove_dir_all(&folder);
        let part = self.folder.join("zig.requirements.part");
        fs::write(&part, wanted)?;
        let mut install = Command::new("python3");
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]);
        install.args(["--no-deps", "--require-hashes", "--only-binary=:all:", "--target"]).arg(&folder);
        process::check(install.arg("--requirement").arg(&part))?;
        // The list shows that all of it is there.
        fs::rename(part, list)?;
        Ok(())
    }

    fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.programs().join(name);
        let text = format!("#!/bin/sh\n{text}\n");
        // Not written again: cargo would rebuild what a changed compiler compiled.
        if !fs::read_to_string(&file).is_ok_and(|old| old == text) {
            fs::write(&file, text)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        Ok(file)
    }
}
