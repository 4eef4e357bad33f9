//! [`Sources`]: texts that are searched for imports.

use bytes::Bytes;

use super::error::Result;
use super::files::{File, Files};

/// Bytes of one source. Longer ones are tables, generated, or bundles that contain what they need.
pub(crate) const SOURCE_BYTES: u64 = 1 << 20;
/// Bytes of all sources of a program: 4096 modules of usual length. Each is read from the registry.
const ALL_SOURCE_BYTES: u64 = 64 << 20;

/// Whether the text has this part.
pub(crate) fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The sources of one program.
pub(crate) struct Sources<'a> {
    files: &'a dyn Files,
    bytes: u64,
}

impl<'a> Sources<'a> {
    pub(crate) fn of(files: &'a dyn Files) -> Self {
        Self { files, bytes: 0 }
    }

    /// The text of a source. Empty: it is too long, or all are.
    ///
    /// # Errors
    /// The content cannot be fetched.
    pub(crate) fn read(&mut self, file: &File) -> Result<Bytes> {
        let bytes = self.bytes.saturating_add(file.size);
        if file.size > SOURCE_BYTES || bytes > ALL_SOURCE_BYTES {
            return Ok(Bytes::new());
        }
        self.bytes = bytes;
        self.files.read(file, 0..file.size)
    }
}
