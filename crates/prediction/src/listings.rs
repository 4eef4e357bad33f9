//! The names in directories, each directory listed once.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use tarpon_oci::limits;

use super::files::{File, Files, file_name, join, parent};

/// Names in the directories that are listed. A large environment has about a hundred thousand files.
const LISTED: usize = 1 << 20;
/// Bytes of a directory's path that count as one name: what is remembered of directories is as long as their paths.
const NAME_BYTES: usize = 64;

type Names = Rc<BTreeSet<Vec<u8>>>;

/// The names in the directories of an image.
pub(crate) struct Listings<'a> {
    files: &'a dyn Files,
    known: HashMap<Vec<u8>, Option<Names>>,
    listed: usize,
}

impl<'a> Listings<'a> {
    pub(crate) fn of(files: &'a dyn Files) -> Self {
        Self { files, known: HashMap::new(), listed: 0 }
    }

    /// The names in a directory. None: there is no such directory, or too much was listed.
    pub(crate) fn names(&mut self, directory: &[u8]) -> Option<Names> {
        if let Some(known) = self.known.get(directory) {
            return known.clone();
        }
        if self.listed >= LISTED || directory.len() > limits::PATH_BYTES {
            return None;
        }
        let names = self.files.list(directory);
        self.listed += names.as_ref().map_or(1, Vec::len) + directory.len() / NAME_BYTES;
        let names: Option<Names> = names.map(|names| Rc::new(names.into_iter().collect()));
        self.known.insert(directory.to_vec(), names.clone());
        names
    }

    /// The paths of the names in a directory for which this holds, in order.
    pub(crate) fn paths(&mut self, directory: &[u8], is: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let names = self.names(directory);
        let names = names.iter().flat_map(|names| names.iter()).filter(|name| is(name));
        names.map(|name| join(directory, name)).collect()
    }

    pub(crate) fn has(&mut self, directory: &[u8], name: &[u8]) -> bool {
        self.names(directory).is_some_and(|names| names.contains(name))
    }

    /// The file at a path. Most paths that are tried do not exist, which the listing of the directory shows.
    pub(crate) fn find(&mut self, path: &[u8]) -> Option<File> {
        self.has(parent(path), file_name(path)).then(|| self.files.find(path)).flatten()
    }

    /// The file at a path below a directory. Most directories that are searched lack its first component, so that no others are listed.
    pub(crate) fn find_below(&mut self, directory: &[u8], path: &[u8]) -> Option<File> {
        let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
        self.has(directory, first).then(|| self.find(&join(directory, path))).flatten()
    }
}
