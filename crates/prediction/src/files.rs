//! The files of an image, by the paths that its programs use.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::iter;
use std::ops::Range;

use bytes::Bytes;
use tarpon_layer::ObjectId;
use tarpon_tree::{DentryId, Kind, Tree};

use crate::error::Result;

/// Symbolic links that are followed in one path, as in Linux.
const LINKS: usize = 40;
/// Components that are walked through in all paths of a prediction, those of links included: sixteen for each lookup.
const STEPS: u64 = 1 << 26;
/// Permission to execute: of the owner, the group, or others.
const EXECUTE: u16 = 0o111;

/// A part of a file's content.
pub type Piece = (ObjectId, Range<u64>);

/// A file that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its absolute path, in which no component is a link.
    pub path: Vec<u8>,
    /// Its content.
    pub object: ObjectId,
    /// Bytes of its content.
    pub size: u64,
    /// Whether its owner, its group or others may execute it.
    pub is_executable: bool,
}

impl File {
    /// All of it, as a list of ranges.
    pub(crate) fn whole(&self) -> Vec<Range<u64>> {
        iter::once(0..self.size).collect()
    }
}

/// The root file system of an image.
pub trait Files {
    /// The file at an absolute path. Links are followed. None: there is none, it is empty, or not a regular file.
    fn find(&self, path: &[u8]) -> Option<File>;

    /// The names in a directory, in no order. None: it does not exist.
    fn list(&self, directory: &[u8]) -> Option<Vec<Vec<u8>>>;

    /// A range of a file, shorter at its end.
    ///
    /// # Errors
    /// The content cannot be fetched.
    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes>;
}

/// Reads a range of an object, which is inside of it.
pub type ReadObject<'a> = dyn Fn(&ObjectId, Range<u64>) -> Result<Bytes> + 'a;

/// The files of a merged tree.
pub(crate) struct TreeFiles<'a> {
    tree: &'a Tree<'a>,
    read: &'a ReadObject<'a>,
    /// The names in the directories that were walked through.
    directories: RefCell<HashMap<DentryId, HashMap<&'a [u8], DentryId>>>,
    /// What is left of [`STEPS`].
    steps: Cell<u64>,
}

impl<'a> TreeFiles<'a> {
    pub(crate) fn new(tree: &'a Tree<'a>, read: &'a ReadObject<'a>) -> Self {
        Self { tree, read, directories: RefCell::default(), steps: Cell::new(STEPS) }
    }

    fn child(&self, directory: DentryId, name: &[u8]) -> Option<DentryId> {
        let mut directories = self.directories.borrow_mut();
        let names = directories
            .entry(directory)
            .or_insert_with(|| self.tree.children(directory).map(|child| (self.tree.name(child), child)).collect());
        names.get(name).copied()
    }

    fn walk(&self, path: &[u8]) -> Option<DentryId> {
        // Components that are left, the next one last.
        let mut left: Vec<&[u8]> = components(path).rev().collect();
        let mut here = self.tree.root();
        let mut links = 0;
        while let Some(name) = left.pop() {
            self.steps.set(self.steps.get().checked_sub(1)?);
            if name == b".." {
                here = self.tree.parent(here);
                continue;
            }
            here = self.child(here, name)?;
            let Some(target) = self.tree.inode(here).target() else { continue };
            links += 1;
            if links > LINKS {
                return None;
            }
            here = if target.starts_with(b"/") { self.tree.root() } else { self.tree.parent(here) };
            left.extend(components(target).rev());
        }
        Some(here)
    }
}

impl Files for TreeFiles<'_> {
    fn find(&self, path: &[u8]) -> Option<File> {
        let dentry = self.walk(path)?;
        let inode = self.tree.inode(dentry);
        let object = inode.object()?;
        let is_executable = inode.attributes().mode & EXECUTE != 0;
        Some(File { path: join(b"", &self.tree.path(dentry)), object: object.id, size: object.size, is_executable })
    }

    fn list(&self, directory: &[u8]) -> Option<Vec<Vec<u8>>> {
        let dentry = self.walk(directory)?;
        if self.tree.inode(dentry).kind() != Kind::Directory {
            return None;
        }
        Some(self.tree.children(dentry).map(|child| self.tree.name(child).to_vec()).collect())
    }

    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
        let end = range.end.min(file.size);
        if range.start >= end {
            return Ok(Bytes::new());
        }
        (self.read)(&file.object, range.start..end)
    }
}

/// The path below a directory; the path itself if it is absolute.
pub(crate) fn join(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { [directory, b"/", path].concat() }
}

/// The absolute path of a directory, without what means nothing in it. Links are not followed.
pub(crate) fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in components(path) {
        if name == b".." {
            names.pop();
        } else {
            names.push(name);
        }
    }
    let path: Vec<u8> = names.iter().flat_map(|name| [b"/".as_slice(), name]).collect::<Vec<_>>().concat();
    if path.is_empty() { b"/".to_vec() } else { path }
}

/// The directory of a path.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    path.get(..end).unwrap_or_default()
}

/// The last component of a path.
pub(crate) fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use tarpon_oci::Digest;

    use super::*;

    /// Files by their paths.
    #[derive(Default)]
    pub(crate) struct MapFiles(pub(crate) BTreeMap<Vec<u8>, Vec<u8>>);

    impl MapFiles {
        pub(crate) fn with(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
            self.0.insert(path.as_bytes().to_vec(), content.into());
            self
        }
    }

    impl Files for MapFiles {
        fn find(&self, path: &[u8]) -> Option<File> {
            let path = normal(path);
            let content = self.0.get(&path).filter(|content| !content.is_empty())?;
            // The path names the object, so that tests can tell files with equal content apart.
            let object = Digest::of(&path);
            Some(File { object, size: content.len() as u64, is_executable: true, path })
        }

        fn list(&self, directory: &[u8]) -> Option<Vec<Vec<u8>>> {
            let prefix = [directory, b"/"].concat();
            let below = self.0.keys().filter_map(|path| path.strip_prefix(prefix.as_slice()));
            let names: std::collections::BTreeSet<Vec<u8>> =
                below.filter_map(|rest| Some(rest.split(|byte| *byte == b'/').next()?.to_vec())).collect();
            (!names.is_empty()).then(|| names.into_iter().collect())
        }

        fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
            let content = &self.0[&file.path];
            let end = usize::try_from(range.end).unwrap().min(content.len());
            Ok(Bytes::copy_from_slice(&content[usize::try_from(range.start).unwrap().min(end)..end]))
        }
    }
}
