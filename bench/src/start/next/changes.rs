//! The files of a next version that differ: every 20th file of /usr, in a way that no program notices.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// One file in so many changes: about as many as in an update of a distribution.
pub(crate) const EVERY: usize = 20;

/// The folder in which files change.
const FOLDER: &str = "usr";

/// Appended to programs and libraries. What loads them reads the sections that their header names.
const TO_ELF: &[u8] = &[0; 16];
/// Appended to compiled Python, which is read up to the end of its first object.
const TO_COMPILED: &[u8] = &[0];
/// Appended to text: an empty line.
const TO_TEXT: &[u8] = b"\n";

/// A file that differs.
pub(super) struct Changed {
    /// Below the root of the image.
    pub(super) path: PathBuf,
    pub(super) content: Vec<u8>,
    /// Those of the present version, except for the size.
    pub(super) metadata: Metadata,
}

/// What changes below the root of an image: of every 20th file in the order of their paths those that can be changed.
pub(super) fn of(root: &Path) -> Result<Vec<Changed>> {
    let mut files = Vec::new();
    collect(&root.join(FOLDER), &mut files)?;
    files.sort();
    let mut changed = Vec::new();
    for file in files.iter().skip(EVERY - 1).step_by(EVERY) {
        changed.extend(one(root, file).with_context(|| format!("cannot change {}", file.display()))?);
    }
    if changed.is_empty() {
        bail!("of {} files in /{FOLDER} none can be changed", files.len());
    }
    Ok(changed)
}

/// The regular files of a folder and the folders in it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn one(root: &Path, file: &Path) -> Result<Option<Changed>> {
    let metadata = fs::symlink_metadata(file)?;
    // A new layer would cut a hard link, and lose extended attributes.
    if metadata.nlink() > 1 || rustix::fs::llistxattr(file, &mut [0_u8; 0])? > 0 {
        return Ok(None);
    }
    let mut content = fs::read(file)?;
    let Some(more) = more(file, &content) else { return Ok(None) };
    content.extend(more);
    Ok(Some(Changed { path: file.strip_prefix(root)?.to_owned(), content, metadata }))
}

/// What can be appended to a file such that whatever reads it does the same as before.
pub(crate) fn more(file: &Path, content: &[u8]) -> Option<&'static [u8]> {
    let is = |extension: &str| file.extension().is_some_and(|found| found == extension);
    match content {
        // Often its presence alone has a meaning.
        [] => None,
        elf if elf.starts_with(b"\x7fELF") => Some(TO_ELF),
        _ if is("pyc") => Some(TO_COMPILED),
        // What was compiled names the size of its source, and would not be used any more.
        _ if is("py") && has_compiled(file) => None,
        text if !text.contains(&0) && std::str::from_utf8(text).is_ok() => Some(TO_TEXT),
        // Archives and tables may be read from their end.
        _ => None,
    }
}

/// Whether a Python source has a compiled form beside it.
fn has_compiled(source: &Path) -> bool {
    let (Some(folder), Some(name)) = (source.parent(), source.file_stem()) else { return false };
    let compiled = fs::read_dir(folder.join("__pycache__")).into_iter().flatten().flatten();
    let begin = format!("{}.", name.to_string_lossy());
    compiled.into_iter().any(|file| file.file_name().to_string_lossy().starts_with(&begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with these files.
    fn root(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        root
    }

    #[test]
    fn every_twentieth_file_of_usr_changes_in_the_order_of_the_paths() {
        let names: Vec<String> = (0..45).map(|number| format!("usr/share/{number:02}")).collect();
        let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"text"[..])).collect();
        let root = root(&[&files[..], &[("etc/passwd", b"root"), ("usr/lib/a", b"")]].concat());
        let changed = of(root.path()).unwrap();
        let paths: Vec<_> = changed.iter().map(|changed| changed.path.to_str().unwrap()).collect();
        // usr/lib/a is the first file.
        assert_eq!(paths, ["usr/share/18", "usr/share/38"]);
        assert!(changed.iter().all(|changed| changed.content == b"text\n" && changed.metadata.len() == 4));
    }

    #[test]
    fn what_is_appended_is_what_readers_of_such_a_file_pass_over() {
        let root = root(&[("lib/__pycache__/os.cpython-311.pyc", b"\x01\0"), ("lib/os.py", b"import sys")]);
        let more = |name: &str, content: &[u8]| more(&root.path().join(name), content);
        assert_eq!(more("bin/sh", b"\x7fELF\x02\0"), Some(TO_ELF));
        assert_eq!(more("lib/__pycache__/os.cpython-311.pyc", b"\x01\0"), Some(TO_COMPILED));
        assert_eq!(more("bin/script", b"#!/bin/sh\n"), Some(TO_TEXT));
        assert_eq!(more("lib/ospath.py", b"import os"), Some(TO_TEXT));
        for (name, content) in [("lib/os.py", &b"import sys"[..]), ("empty", b""), ("a.gz", b"\x1f\x8b\0")] {
            assert_eq!(more(name, content), None, "{name}");
        }
    }

    #[test]
    fn hard_links_stay() {
        let root = root(&[("usr/one", b"text")]);
        let file = root.path().join("usr/one");
        assert!(one(root.path(), &file).unwrap().is_some());
        fs::hard_link(&file, root.path().join("usr/two")).unwrap();
        assert!(one(root.path(), &file).unwrap().is_none());
    }

    #[test]
    fn an_image_in_which_nothing_can_change_is_refused() {
        let root = root(&[("usr/one", b"text")]);
        assert!(of(root.path()).err().unwrap().to_string().contains("none can be changed"));
    }
}
