//! The archive of a release: `tar --directory /usr/local --strip-components=1` installs it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

/// Writes a folder as NAME.tar.gz, and returns its path. The same files give the same bytes: names in order, no owner, one
/// time, fixed modes.
pub(super) fn write(tree: &Path, name: &str, seconds: u64, to: &Path) -> Result<PathBuf> {
    let file = to.join(format!("{name}.tar.gz"));
    let out = File::create(&file).with_context(|| format!("cannot write {}", file.display()))?;
    // Without name and time in the header.
    let mut archive = tar::Builder::new(GzBuilder::new().write(out, Compression::best()));
    append(&mut archive, tree, Path::new(name), seconds)?;
    archive.into_inner()?.finish()?.flush()?;
    Ok(file)
}

fn append(archive: &mut tar::Builder<GzEncoder<File>>, folder: &Path, name: &Path, seconds: u64) -> Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    archive.append_data(&mut header(EntryType::Directory, 0o755, seconds), name, &[][..])?;
    for entry in entries {
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            append(archive, &path, &name, seconds)?;
            continue;
        }
        let is_program = path.parent().is_some_and(|parent| parent.ends_with("bin"));
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut header = header(EntryType::Regular, if is_program { 0o755 } else { 0o644 }, seconds);
        header.set_size(bytes.len().try_into()?);
        archive.append_data(&mut header, name, &bytes[..])?;
    }
    Ok(())
}

fn header(kind: EntryType, mode: u32, seconds: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(seconds);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}
