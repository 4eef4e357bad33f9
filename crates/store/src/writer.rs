//! [`Writer`]: a new object, written sequentially.
//!
//! A small object stays in memory until it is published: it costs one create, one write, one link. A larger one is
//! written to an unnamed file, which disappears with the process.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use tarpon_blob::ObjectWriter;
use tarpon_oci::{Digest, Verified};

use crate::StoreError;
use crate::budget::{Charge, on_disk};
use crate::files::{self, OBJECT_MODE, TemporaryName};
use crate::objects::{Linked, SMALL_OBJECT};
use crate::storage::Access;
use crate::store::Shared;

/// Bytes buffered before a write to the file.
const BUFFER: u64 = 256 << 10;

pub(crate) struct Writer {
    shared: Arc<Shared>,
    buffer: Vec<u8>,
    file: Option<NewFile>,
    written: u64,
    charge: Charge,
}

impl Writer {
    pub(crate) fn new(shared: &Arc<Shared>, size_hint: u64) -> Self {
        let capacity = usize::try_from(size_hint.min(SMALL_OBJECT)).unwrap_or(0);
        Self {
            shared: Arc::clone(shared),
            buffer: Vec::with_capacity(capacity),
            file: None,
            written: 0,
            charge: Charge::new(&shared.budget),
        }
    }

    /// Writes the buffer, followed by `more`, to the file.
    fn spill(&mut self, more: &[u8]) -> Result<(), StoreError> {
        let gathered = std::mem::take(&mut self.buffer);
        let total = self.written + (gathered.len() + more.len()) as u64;
        self.shared.make_room(on_disk(total).saturating_sub(self.charge.bytes()))?;
        let file = match self.file.take() {
            Some(file) => file,
            None => NewFile::create(&self.shared)?,
        };
        let file = self.file.insert(file);
        for bytes in [&*gathered, more] {
            file.write_at(bytes, self.written)?;
            self.written += bytes.len() as u64;
        }
        self.charge.grow_to(on_disk(total));
        self.buffer = gathered;
        self.buffer.clear();
        Ok(())
    }

    fn publish(mut self, object: &Digest) -> Result<(), StoreError> {
        if self.file.is_none() && self.shared.claim_existing(object)? {
            return Ok(());
        }
        if self.file.is_none() || !self.buffer.is_empty() {
            self.spill(&[])?;
        }
        let file = self.file.take().expect("spill leaves a file behind");
        if self.shared.link_in(object, |path| file.link(path))? == Linked::New {
            self.charge.keep();
            file.became_object(object);
        }
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let limit = if self.file.is_none() { SMALL_OBJECT } else { BUFFER };
        if (self.buffer.len() + bytes.len()) as u64 <= limit {
            self.buffer.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        self.spill(bytes).map_err(|error| match error {
            StoreError::Full => io::ErrorKind::StorageFull.into(),
            error => io::Error::other(error),
        })?;
        Ok(bytes.len())
    }

    /// Does nothing: the bytes are not visible before they are published.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectWriter for Writer {
    fn publish(self: Box<Self>, proof: Verified<()>) -> Result<(), StoreError> {
        Writer::publish(*self, proof.digest())
    }
}

/// A file that is not an object yet. Unnamed where the file system supports that, else with a temporary name.
#[derive(Debug)]
pub(crate) struct NewFile {
    shared: Arc<Shared>,
    file: File,
    name: Option<(PathBuf, TemporaryName)>,
}

impl NewFile {
    pub(crate) fn create(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let folder = shared.layout.name("objects");
        let (file, name) = match shared.storage.open_unnamed(&folder, OBJECT_MODE) {
            Ok(file) => (file, None),
            // No O_TMPFILE here (some network and overlay file systems).
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::ISDIR)) => {
                let name = TemporaryName::new();
                let path = name.in_folder(&shared.layout.name("partial"));
                let file = shared.storage.open(&path, Access::CreateNew(OBJECT_MODE));
                let file = file.map_err(shared.bypass("creating", &path))?;
                (file, Some((path, name)))
            }
            Err(error) => return Err(shared.bypass("creating a file in", &folder)(error)),
        };
        Ok(Self { shared: Arc::clone(shared), file, name })
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        let outcome = files::write_all_at(self.shared.storage(), &self.file, bytes, offset);
        outcome.map_err(self.shared.bypass("writing an object in", self.shared.layout.root()))
    }

    pub(crate) fn link(&self, to: &std::path::Path) -> io::Result<()> {
        self.shared.storage.touch(&self.file)?;
        match &self.name {
            None => self.shared.storage.link_file(&self.file, to),
            Some((path, _)) => self.shared.storage.link(path, to),
        }
    }

    /// Records that it was linked in under the digest of its bytes. Removing another name changes its metadata, so that
    /// comes first.
    pub(crate) fn became_object(mut self, object: &Digest) {
        self.remove_name();
        self.shared.note_hashed(object, &self.file);
    }

    fn remove_name(&mut self) {
        if let Some((path, _name)) = self.name.take() {
            let _ = self.shared.storage.unlink(&path);
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        self.remove_name();
    }
}
