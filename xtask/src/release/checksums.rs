//! The checksums of a release, in the format of `sha256sum`, and their signature.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};
use tarpon_harness::process;

/// Name of the file.
pub(super) const NAME: &str = "SHA256SUMS";

/// Writes the checksums of `files`, which are in `folder`.
pub(super) fn write(folder: &Path, files: &[PathBuf]) -> Result<PathBuf> {
    let mut text = Vec::new();
    for file in files {
        let name = file.file_name().context("a file of a release has a name")?.to_string_lossy();
        writeln!(text, "{}  {name}", sha256(file)?)?;
    }
    let sums = folder.join(NAME);
    fs::write(&sums, text).with_context(|| format!("cannot write {}", sums.display()))?;
    Ok(sums)
}

/// Signs the checksums. The comment is signed, too: it names the version, so that an older release cannot be passed off as
/// this one.
pub(super) fn sign(sums: &Path, key: &Path, comment: &str) -> Result<()> {
    let mut command = Command::new("minisign");
    command.arg("-S").arg("-s").arg(key).args(["-t", comment, "-m"]).arg(sums);
    // Standard input stays the terminal: minisign asks for the password of the key.
    process::check(&mut command)
}

fn sha256(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}
