//! [`Bounded`]: files of which only so much is looked up and read.

use std::cell::Cell;
use std::ops::Range;

use bytes::Bytes;
use tarpon_oci::limits;

use super::error::Result;
use super::files::{File, Files};

/// Lookups, and names in listed directories. The prediction of a web application with 400 modules takes about 30,000.
const LOOKUPS: u64 = 1 << 22;
/// Bytes that are read: headers, scripts and sources. That application has 10 MB of sources.
const READ_BYTES: u64 = 512 << 20;

/// Nothing is found, and each read fails, once a limit is reached. Paths that Linux refuses as too long are not found.
pub(crate) struct Bounded<'a> {
    files: &'a dyn Files,
    lookups: Cell<u64>,
    bytes: Cell<u64>,
}

impl<'a> Bounded<'a> {
    pub(crate) fn new(files: &'a dyn Files) -> Self {
        Self { files, lookups: Cell::new(LOOKUPS), bytes: Cell::new(READ_BYTES) }
    }

    /// Whether a limit was reached.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.lookups.get() == 0 || self.bytes.get() == 0
    }
}

/// Takes from what is left. `false`: there is less, and nothing is left then.
fn take(left: &Cell<u64>, count: u64) -> bool {
    let rest = left.get().checked_sub(count);
    left.set(rest.unwrap_or_default());
    rest.is_some()
}

impl Files for Bounded<'_> {
    fn find(&self, path: &[u8]) -> Option<File> {
        (take(&self.lookups, 1) && path.len() <= limits::PATH_BYTES).then(|| self.files.find(path))?
    }

    fn list(&self, directory: &[u8]) -> Option<Vec<Vec<u8>>> {
        if !take(&self.lookups, 1) || directory.len() > limits::PATH_BYTES {
            return None;
        }
        let names = self.files.list(directory)?;
        take(&self.lookups, names.len() as u64).then_some(names)
    }

    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
        let length = range.end.min(file.size).saturating_sub(range.start);
        if self.lookups.get() == 0 || !take(&self.bytes, length) {
            return Err("the files of this start are too many or too large to be followed".into());
        }
        self.files.read(file, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::join;
    use crate::files::tests::MapFiles;

    #[test]
    fn what_is_looked_up_and_read_is_bounded() {
        let files = MapFiles::default().with("/a", "content").with("/d/a", "x").with("/d/b", "x");
        let bounded = Bounded::new(&files);
        bounded.lookups.set(4);
        let file = bounded.find(b"/a").unwrap();
        assert_eq!(bounded.list(b"/d").unwrap().len(), 2);
        assert!(bounded.is_exhausted() && bounded.find(b"/a").is_none() && bounded.list(b"/d").is_none());
        assert!(bounded.read(&file, 0..7).is_err());

        let bounded = Bounded::new(&files);
        let long = [b"/.".repeat(limits::PATH_BYTES / 2), b"/d".to_vec()].concat();
        assert!(bounded.list(&long).is_none() && bounded.find(&join(&long, b"a")).is_none());

        let bounded = Bounded::new(&files);
        bounded.bytes.set(10);
        assert_eq!(bounded.read(&file, 0..100).unwrap(), "content");
        assert!(!bounded.is_exhausted() && bounded.read(&file, 0..7).is_err() && bounded.is_exhausted());
    }
}
