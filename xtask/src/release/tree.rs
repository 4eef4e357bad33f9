//! The files of a release as they are installed below `/usr` or `/usr/local`. The archive and both packages take them from
//! here.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use tarpon_harness::process;

/// Shells with the place of their completions. Debian's zsh looks elsewhere; `crates/cli/Cargo.toml` moves the file.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/tarpon"),
    ("zsh", "share/zsh/site-functions/_tarpon"),
    ("fish", "share/fish/vendor_completions.d/tarpon.fish"),
];

/// Files of the repository, and where they go.
const COPIES: &[(&str, &str)] = &[
    ("contrib/systemd/tarpon.service", "lib/systemd/system/tarpon.service"),
    ("contrib/systemd/tarpon.socket", "lib/systemd/system/tarpon.socket"),
    ("contrib/systemd/tarpon-snapshotter.service", "lib/systemd/system/tarpon-snapshotter.service"),
    ("contrib/systemd/tarpon-prefetch.service", "lib/systemd/system/tarpon-prefetch.service"),
    ("contrib/systemd/tarpon-prefetch.timer", "lib/systemd/system/tarpon-prefetch.timer"),
    ("contrib/systemd/user/tarpon.service", "lib/systemd/user/tarpon.service"),
    ("contrib/systemd/user/tarpon.socket", "lib/systemd/user/tarpon.socket"),
    ("contrib/systemd/cri-proxy.conf", "share/doc/tarpon/examples/cri-proxy.conf"),
    ("contrib/nginx/tarpon-cache.conf", "share/doc/tarpon/examples/tarpon-cache.conf"),
    ("contrib/nginx/tarpon-cache-entrypoint", "share/doc/tarpon/examples/tarpon-cache-entrypoint"),
    ("contrib/nginx/Containerfile", "share/doc/tarpon/examples/tarpon-cache.Containerfile"),
    ("contrib/nginx/tarpon-balancer.conf", "share/doc/tarpon/examples/tarpon-balancer.conf"),
    ("LICENSE", "share/licenses/tarpon/LICENSE"),
    ("README.md", "share/doc/tarpon/README.md"),
    ("SECURITY.md", "share/doc/tarpon/SECURITY.md"),
];

/// The place of the list of changes.
const CHANGES: &str = "share/doc/tarpon/changelog.gz";

/// The place of the licences of what the program contains.
const LICENCES: &str = "share/doc/tarpon/third-party-licences.gz";

/// What goes into a tree.
pub(super) struct Input<'a> {
    /// The root of the repository.
    pub(super) root: &'a Path,
    pub(super) program: &'a Path,
    /// The same program for this machine: it writes its manual pages and completions.
    pub(super) runnable: &'a Path,
    /// The licences of all crates in the program.
    pub(super) licences: &'a str,
}

/// Writes the tree. An older one is removed first.
pub(super) fn write(input: &Input<'_>, folder: &Path) -> Result<()> {
    // What an earlier release left.
    let _absent = fs::remove_dir_all(folder);
    copy(input.program, &folder.join("bin/tarpon"))?;
    for (from, to) in COPIES {
        copy(&input.root.join(from), &folder.join(to))?;
    }
    pack(&fs::read(input.root.join("CHANGELOG.md"))?, &folder.join(CHANGES))?;
    pack(input.licences.as_bytes(), &folder.join(LICENCES))?;
    for (shell, to) in COMPLETIONS {
        let script = process::output(run(input.runnable).args(["completions", shell]))?;
        create(&folder.join(to), format!("{script}\n").as_bytes())?;
    }
    let pages = folder.join("share/man/man1");
    process::output(run(input.runnable).arg("man").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        let page = page?.path();
        let mut packed = page.clone().into_os_string();
        packed.push(".gz");
        pack(&fs::read(&page)?, Path::new(&packed))?;
        fs::remove_file(page)?;
    }
    Ok(())
}

/// The entry that Debian wants for each version of a package; the changes themselves are in `changelog.gz`.
pub(super) fn write_debian_changes(version: &str, date: &str, maintainer: &str, file: &Path) -> Result<()> {
    let text = format!(
        "tarpon ({version}-1) unstable; urgency=medium\n\n  * Version {version}. Its changes are in changelog.gz.\n\n \
         -- {maintainer}  {date}\n"
    );
    pack(text.as_bytes(), file)
}

/// A program whose output depends on nothing of this machine: the width of the terminal, defaults from variables.
fn run(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LANG", "C.UTF-8");
    command
}

/// Without the name and the time that gzip puts into the header, and as small as it gets.
fn pack(bytes: &[u8], file: &Path) -> Result<()> {
    create(file, &[])?;
    let mut packed = GzBuilder::new().write(File::create(file)?, Compression::best());
    std::io::Write::write_all(&mut packed, bytes)?;
    packed.finish()?;
    Ok(())
}

fn create(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
