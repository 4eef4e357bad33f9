//! Disk usage of a directory.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::record::Usage;

/// Unit of `st_blocks`.
const BLOCK: u64 = 512;

/// Bytes and inodes of `folder` and everything below; hard links count once. Files that vanish meanwhile do not count.
pub(crate) fn usage(folder: &Path) -> io::Result<Usage> {
    let mut usage = Usage::default();
    let mut linked = HashSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        let Some(found) = unless_gone(path.symlink_metadata())? else { continue };
        if found.is_dir() {
            for entry in unless_gone(std::fs::read_dir(&path))?.into_iter().flatten() {
                open.push(entry?.path());
            }
        } else if found.nlink() > 1 && !linked.insert((found.dev(), found.ino())) {
            continue;
        }
        usage.size = usage.size.saturating_add(found.blocks().saturating_mul(BLOCK));
        usage.inodes += 1;
    }
    Ok(usage)
}

fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_is_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("d")).unwrap();
        std::fs::write(path("d/f"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(path("d/f"), path("again")).unwrap();
        std::os::unix::fs::symlink("/nowhere", path("link")).unwrap();
        let usage = usage(folder.path()).unwrap();
        assert_eq!(usage.inodes, 4);
        assert!((100_000..200_000).contains(&usage.size), "{usage:?}");
    }
}
