//! [`MappedFile`]: a store file as bytes, without reading it.
//!
//! The one place here with `unsafe`: a mapping is only as constant as its file. What keeps it sound is the store's
//! rule that the files behind it (tree and chunk table of an image) are written under a temporary name, verified,
//! linked in read-only, and never written or truncated again; an unlinked one stays whole as long as it is mapped.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// A read-only file of the store, mapped in memory. Only the pages that are touched cost memory, and the kernel may take
/// them back at any time.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps all of `file`, which must be a finished file of the store: nobody may ever write to it or shorten it.
    pub fn map(file: &File) -> io::Result<Self> {
        // SAFETY: finished store files are never modified in place (see the head of this module), so the bytes behind
        // the returned slice do not change while it lives.
        #[allow(unsafe_code)]
        let mapping = unsafe { Mmap::map(file) }?;
        Ok(Self(mapping))
    }

    /// Opens and maps the file at `path`, under the same condition.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::map(&File::open(path)?)
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_outlives_the_name_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tree");
        std::fs::write(&path, b"tarpon").unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mapped.as_ref(), b"tarpon");
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(MappedFile::map(&file).unwrap().as_ref(), b"");
    }
}
