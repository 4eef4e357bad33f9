//! A file of an image record, mapped into memory.
//!
//! Mapping keeps the tree of a large image out of the server's own memory: its pages belong to the page cache. This is
//! the only place in the store with unsafe Rust.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use memmap2::Mmap;

/// Bytes of a file that was hashed before it was mapped. Clones share the mapping.
#[derive(Debug, Clone)]
pub struct MappedFile {
    map: Arc<Mmap>,
    file: Arc<File>,
}

impl MappedFile {
    /// Maps the whole of `file`, which must not be written any more.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        // SAFETY: the bytes under the mapping must not change. The file has no name and is this process's alone
        // (`of_unnamed`), or is one of an image record: created under a
        // temporary name by this crate, never opened for writing again after it was moved to its place, and only
        // ever replaced or removed by name, which leaves the mapped inode alone. Its folder is closed to other users.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map: Arc::new(map), file: Arc::new(file) })
    }

    /// Maps the whole of an unnamed temporary file: the caller gives the file up, so no writer remains.
    ///
    /// # Errors
    /// The system's errors, and an error for a file that has a name.
    pub fn of_unnamed(file: File) -> io::Result<Self> {
        match file.metadata()?.nlink() {
            0 => Self::new(file),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has a name")),
        }
    }

    /// The file itself, for example to let the kernel mount it.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_mapping_outlives_the_name_of_its_file_and_empty_files_map() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().write_all(b"tarpon").unwrap();
        let map = MappedFile::new(File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&*map, b"tarpon");
        File::create(&path).unwrap();
        assert_eq!(MappedFile::new(File::open(&path).unwrap()).unwrap().len(), 0);
    }
}
