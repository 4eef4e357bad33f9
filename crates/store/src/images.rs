//! Image records: the data to mount an image again without its registry.
//!
//! A record is a folder that appears and disappears with one rename. It is not synced; after a power cut its digests
//! reveal whether it is complete, and an incomplete record is treated as absent.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tarpon_oci::{Digest, Hasher, Verified, limits};

use crate::StoreError;
use crate::budget::{on_disk, signed};
use crate::files::{
    self, BLOCK, DIR_MODE, FILE_MODE, TemporaryName, io_error, open_existing, read_at_most, read_record,
};
use crate::layout::RECORD;
use crate::locks::RECORD_WAIT;
use crate::map::MappedFile;
use crate::record::{ImageRecord, LayerRecord, Part, PartRecord, REFERENCES, parse_record};
use crate::renew;
use crate::sealed;
use crate::storage::Access;
use crate::store::{Shared, Store};

/// Attempts to install an image that other processes install or remove at the same time. The second one finds what another installed.
const INSTALL_ATTEMPTS: u32 = 4;

/// An image record that was read and checked, ready to mount.
#[derive(Debug, Clone)]
pub struct LoadedImage {
    /// The record.
    pub record: ImageRecord,
    /// The manifest.
    pub manifest: Verified<Bytes>,
    /// The image config.
    pub config: Verified<Bytes>,
    /// The EROFS image of the tree.
    pub tree: MappedFile,
    /// Path of `tree`, for the kernel to mount.
    pub tree_path: PathBuf,
    /// The chunk table.
    pub chunks: MappedFile,
    /// The index of its boot pack.
    pub boot: Option<Verified<Bytes>>,
}

impl Store {
    /// Starts a record. Nothing of it is visible before [`ImageStaging::install`].
    pub fn stage_image(&self, record: ImageRecord) -> Result<ImageStaging, StoreError> {
        self.shared.before_record_change()?;
        let name = TemporaryName::new();
        let folder = name.in_folder(&self.shared.layout.name("images"));
        let created = self.shared.storage.create_dir(&folder, DIR_MODE);
        created.map_err(|error| self.shared.refuse(io_error("creating", &folder)(error)))?;
        Ok(ImageStaging { store: self.clone(), _name: name, folder, record })
    }

    /// The record of an image, without its files; `None` if no trusted one exists. A tree written by an older version of
    /// tarpon is replaced, which takes the eviction lock with a bounded wait.
    pub fn image(&self, manifest: &Digest) -> Result<Option<ImageRecord>, StoreError> {
        match self.record(manifest)? {
            Some(record) if record.has_old_tree() => self.renew_tree(manifest),
            record => Ok(record),
        }
    }

    /// As [`Store::image`], with the current tree.
    pub(crate) fn record(&self, manifest: &Digest) -> Result<Option<ImageRecord>, StoreError> {
        let path = self.shared.layout.image(manifest).join(RECORD);
        let Some(text) = read_record(self.shared.storage(), &path)? else { return Ok(None) };
        match parse_record(&text) {
            Ok(record) if record.manifest != *manifest => Ok(None),
            Ok(mut record) => {
                let used = self.shared.storage.metadata(&path).map_or(UNIX_EPOCH, |metadata| metadata.modified);
                record.last_used = used.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                Ok(Some(record))
            }
            Err(error) => {
                tracing::warn!(image = %manifest, %error, "image record is not believed");
                Ok(None)
            }
        }
    }

    /// The image with all its files, hashed once per boot and after each change; `None` if it is not local or is damaged. An unreadable file
    /// is an error, because it may be sound. The image's objects are not checked: see [`Store::check_image`].
    pub fn load_image(&self, manifest: &Digest) -> Result<Option<LoadedImage>, StoreError> {
        let Some(record) = self.image(manifest)? else { return Ok(None) };
        self.load_record(record)
    }

    fn load_record(&self, record: ImageRecord) -> Result<Option<LoadedImage>, StoreError> {
        let manifest = &record.manifest.clone();
        let loader = Loader { shared: &self.shared, folder: self.shared.layout.image(manifest), record };
        let loaded = loader.load()?;
        if loaded.is_none() {
            tracing::warn!(image = %manifest, "a file of the image record is missing or damaged");
        }
        Ok(loaded)
    }

    /// The config of an image; `None` if it is not local or is damaged. Much cheaper than the whole image.
    pub fn image_config(&self, manifest: &Digest) -> Result<Option<Verified<Bytes>>, StoreError> {
        let Some(record) = self.image(manifest)? else { return Ok(None) };
        Loader { shared: &self.shared, folder: self.shared.layout.image(manifest), record }.small(Part::Config)
    }

    /// The manifest of an image; `None` if it is not local or is damaged.
    pub fn image_manifest(&self, manifest: &Digest) -> Result<Option<Verified<Bytes>>, StoreError> {
        let Some(record) = self.image(manifest)? else { return Ok(None) };
        Loader { shared: &self.shared, folder: self.shared.layout.image(manifest), record }.small(Part::Manifest)
    }

    /// The layer forms stored by [`Store::keep_image_forms`]; `None` if there are none, or they are damaged.
    pub fn image_forms(&self, manifest: &Digest) -> Result<Option<MappedFile>, StoreError> {
        let Some(record) = self.image(manifest)? else { return Ok(None) };
        Loader { shared: &self.shared, folder: self.shared.layout.image(manifest), record }.mapped(Part::Forms)
    }

    /// Stores the forms of an image's layers with its record, replacing earlier ones. They live as long as the record.
    pub fn keep_image_forms(&self, manifest: &Digest, forms: &[u8]) -> Result<(), StoreError> {
        self.shared.before_record_change()?;
        let _lock = self.shared.lock_eviction(RECORD_WAIT, "keep the layers' directories with the image")?;
        let folder = self.shared.layout.image(manifest);
        let Some(mut record) = self.record(manifest)? else { return Ok(()) };
        let before = self.shared.folder_size(&folder)?;
        let part = PartRecord { part: Part::Forms, digest: Digest::of(forms), size: forms.len() as u64 };
        record.parts.retain(|known| known.part != Part::Forms);
        record.parts.push(part);
        let text = sealed::seal(&record).map_err(|error| io_error("describing image", &folder)(error.into()))?;
        // In this order: the file does not belong to the record until the record names it.
        let written = files::replace(self.shared.storage(), &folder, Part::Forms.file_name(), forms)
            .and_then(|()| files::replace(self.shared.storage(), &folder, RECORD, &text));
        written.map_err(|error| self.shared.refuse(error))?;
        self.shared.budget.add(signed(self.shared.folder_size(&folder)?) - signed(before));
        Ok(())
    }

    /// Notes that the image was accepted under demands with this digest. The note lives as long as the record.
    pub fn note_admission(&self, manifest: &Digest, demands: &Digest) -> Result<(), StoreError> {
        if self.is_admitted(manifest, demands)? || self.record(manifest)?.is_none() {
            return Ok(());
        }
        let folder = self.shared.layout.image(manifest);
        let before = self.shared.folder_size(&folder)?;
        // Only the name is read; content makes it a file like others.
        let written = files::replace(self.shared.storage(), &folder, &admission_name(demands), b"accepted\n");
        written.map_err(|error| self.shared.refuse(error))?;
        self.shared.budget.add(signed(self.shared.folder_size(&folder)?) - signed(before));
        Ok(())
    }

    /// Whether [`Store::note_admission`] noted this.
    pub fn is_admitted(&self, manifest: &Digest, demands: &Digest) -> Result<bool, StoreError> {
        let path = self.shared.layout.image(manifest).join(admission_name(demands));
        Ok(read_record(self.shared.storage(), &path)?.is_some())
    }

    /// All images, the least recently used first. An image of two tenants is listed twice.
    pub fn images(&self) -> Result<Vec<ImageRecord>, StoreError> {
        let mut records = Vec::new();
        for part in self.parts()? {
            records.extend(part.own_images()?);
        }
        records.sort_by_key(|record| (record.last_used, record.manifest));
        Ok(records)
    }

    /// The images of this part alone.
    pub(crate) fn own_images(&self) -> Result<Vec<ImageRecord>, StoreError> {
        let mut records = Vec::new();
        for name in files::list(self.shared.storage(), &self.shared.layout.name("images"))? {
            let manifest = name.to_str().and_then(|name| Digest::from_hex(name).ok());
            if let Some(manifest) = manifest {
                records.extend(self.record(&manifest)?);
            }
        }
        Ok(records)
    }

    /// Replaces the layer data in the record. The image's files stay unchanged.
    pub fn set_layers(&self, manifest: &Digest, layers: Vec<LayerRecord>) -> Result<(), StoreError> {
        self.shared.before_record_change()?;
        let _lock = self.shared.lock_eviction(RECORD_WAIT, "update the image's record")?;
        let folder = self.shared.layout.image(manifest);
        let Some(mut record) = self.record(manifest)? else { return Ok(()) };
        record.layers = layers;
        let text = sealed::seal(&record).map_err(|error| io_error("describing image", &folder)(error.into()))?;
        files::replace(self.shared.storage(), &folder, RECORD, &text).map_err(|error| self.shared.refuse(error))
    }

    /// Records that the image is used now.
    pub fn touch_image(&self, manifest: &Digest) -> Result<(), StoreError> {
        let path = self.shared.layout.image(manifest).join(RECORD);
        self.shared.storage.set_modified(&path, None).map_err(io_error("touching", &path))
    }

    /// Removes the record, and the references to it. Objects stay until `gc` or eviction.
    pub(crate) fn drop_image(&self, manifest: &Digest) -> Result<u64, StoreError> {
        self.forget_references(manifest)?;
        let folder = self.shared.layout.image(manifest);
        let bytes = self.shared.folder_size(&folder)?;
        self.shared.retire(&folder)?;
        self.shared.budget.add(-signed(bytes));
        Ok(bytes)
    }
}

/// The name of the file that notes an admission.
fn admission_name(demands: &Digest) -> String {
    format!("accepted-{}", demands.hex())
}

impl Shared {
    /// Must be called before a file of a record is written: what a power cut leaves of it must not be found in a store
    /// that is marked clean.
    pub(crate) fn before_record_change(&self) -> Result<(), StoreError> {
        self.durability.before_change().map_err(|error| self.refuse(error))
    }

    /// Makes a record disappear at once, then removes its files.
    fn retire(&self, folder: &Path) -> Result<(), StoreError> {
        let name = TemporaryName::new();
        let temporary = name.in_folder(&self.layout.name("images"));
        match self.storage.rename(folder, &temporary) {
            Ok(()) => files::remove_all(self.storage(), &temporary),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error("removing", folder)(error)),
        }
    }

    /// Bytes that the files of a folder are counted as.
    pub(crate) fn folder_size(&self, folder: &Path) -> Result<u64, StoreError> {
        let names = files::list(self.storage(), folder)?;
        let sizes = names.iter().filter_map(|name| self.storage.metadata(&folder.join(name)).ok());
        Ok(sizes.fold(0, |sum, metadata| sum.saturating_add(on_disk(metadata.size))))
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Opens a file of a record, which is hashed once per boot and after each change; `None` if it does not match the record.
    pub(crate) fn open_part(&self, folder: &Path, part: &PartRecord) -> Result<Option<File>, StoreError> {
        let path = folder.join(part.part.file_name());
        let Some(file) = open_existing(self.storage(), &path)? else { return Ok(None) };
        let metadata = self.storage.file_metadata(&file).map_err(io_error("examining", &path))?;
        if metadata.size != part.size {
            return Ok(None);
        }
        if self.hashed_records.has(&part.digest, &metadata) {
            return Ok(Some(file));
        }
        // The metadata from before: a file that changes meanwhile must be hashed again.
        let notable = self.is_notable(&metadata, &file);
        let sound = self.is_part(&path, &file, part)?;
        notable.filter(|_| sound).into_iter().for_each(|metadata| self.hashed_records.add(&part.digest, metadata));
        Ok(sound.then_some(file))
    }

    /// As [`Shared::open_part`], and the file is hashed now. Of a damaged one the times change, so that no process takes it for a known one
    /// any more.
    pub(crate) fn hash_part(&self, folder: &Path, part: &PartRecord) -> Result<Option<File>, StoreError> {
        let path = folder.join(part.part.file_name());
        let Some(file) = open_existing(self.storage(), &path)? else { return Ok(None) };
        let sound = self.is_part(&path, &file, part);
        if !matches!(sound, Ok(true))
            && let Err(error) = self.storage.touch(&file)
        {
            tracing::warn!(path = %path.display(), %error, "a damaged file of an image's record may be used until the next boot");
        }
        Ok(sound?.then_some(file))
    }

    fn is_part(&self, path: &Path, file: &File, part: &PartRecord) -> Result<bool, StoreError> {
        let (size, hasher) = self.hash_whole(file).map_err(io_error("reading", path))?;
        Ok(size == part.size && Verified::check_stream(&part.digest, hasher).is_ok())
    }
}

struct Loader<'a> {
    shared: &'a Shared,
    folder: PathBuf,
    record: ImageRecord,
}

impl Loader<'_> {
    fn load(self) -> Result<Option<LoadedImage>, StoreError> {
        let Some(manifest) = self.small(Part::Manifest)? else { return Ok(None) };
        let Some(config) = self.small(Part::Config)? else { return Ok(None) };
        let Some(tree) = self.tree()? else { return Ok(None) };
        let Some(chunks) = self.mapped(Part::Chunks)? else { return Ok(None) };
        // Nothing depends on it: a damaged one is treated as absent.
        let boot = self.small(Part::Boot)?;
        let tree_path = self.folder.join(Part::Tree.file_name());
        self.shared.hashed_records.flush();
        Ok(Some(LoadedImage { record: self.record, manifest, config, tree, tree_path, chunks, boot }))
    }

    fn small(&self, part: Part) -> Result<Option<Verified<Bytes>>, StoreError> {
        let Some(expected) = self.record.part(part) else { return Ok(None) };
        let path = self.folder.join(part.file_name());
        let most = if part == Part::Boot { limits::BOOT_INDEX_BYTES } else { limits::MANIFEST_BYTES };
        if expected.size > most {
            return Ok(None);
        }
        let bytes = read_at_most(self.shared.storage(), &path, most)?;
        Ok(bytes.and_then(|bytes| Verified::check(&expected.digest, Bytes::from(bytes)).ok()))
    }

    /// A process that rewrote the tree may have ended between the record and the file.
    fn tree(&self) -> Result<Option<MappedFile>, StoreError> {
        match self.mapped(Part::Tree)? {
            None if renew::complete(self.shared, &self.record)? => self.mapped(Part::Tree),
            tree => Ok(tree),
        }
    }

    /// Hashed by reading, not through the mapping, so that the pages are not charged to this process until they are used.
    fn mapped(&self, part: Part) -> Result<Option<MappedFile>, StoreError> {
        let Some(expected) = self.record.part(part) else { return Ok(None) };
        let Some(file) = self.shared.open_part(&self.folder, expected)? else { return Ok(None) };
        let mapped = MappedFile::new(file);
        Ok(Some(mapped.map_err(io_error("mapping", &self.folder.join(part.file_name())))?))
    }
}

/// An image record under construction. Dropped without [`ImageStaging::install`], it leaves nothing behind.
#[derive(Debug)]
pub struct ImageStaging {
    store: Store,
    _name: TemporaryName,
    folder: PathBuf,
    record: ImageRecord,
}

impl ImageStaging {
    /// Writes one file of the record.
    pub fn put(&mut self, part: Part, bytes: &[u8]) -> Result<(), StoreError> {
        self.write(part, |writer| writer.write_all(bytes))
    }

    /// Writes the list of the image's objects. The order does not matter.
    pub fn put_objects(&mut self, mut objects: Vec<Digest>) -> Result<(), StoreError> {
        objects.sort_unstable();
        objects.dedup();
        self.write(Part::Objects, |writer| objects.iter().try_for_each(|object| writer.write_all(object.as_bytes())))
    }

    /// Writes one file of the record piece by piece.
    pub fn write<F>(&mut self, part: Part, fill: F) -> Result<(), StoreError>
    where
        F: FnOnce(&mut dyn Write) -> io::Result<()>,
    {
        let path = self.folder.join(part.file_name());
        let shared = &*self.store.shared;
        let written = shared.storage.open(&path, Access::CreateNew(FILE_MODE)).and_then(|file| {
            let sink = HashedFile { shared, file: &file, hasher: Hasher::new(), size: 0 };
            let mut writer = io::BufWriter::with_capacity(BLOCK, sink);
            fill(&mut writer)?;
            let sink = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
            let record = PartRecord { part, digest: sink.hasher.finish(), size: sink.size };
            shared.storage.touch(&file)?;
            shared.hashed_records.add_file(&record.digest, &file);
            Ok(record)
        });
        let written = written.map_err(|error| shared.refuse(io_error("writing", &path)(error)))?;
        self.record.parts.push(written);
        Ok(())
    }

    /// Makes the record visible atomically. If the image already has a record, that one stays and receives the new
    /// references. The bytes transferred for this record are added to those of its predecessors.
    pub fn install(mut self) -> Result<ImageRecord, StoreError> {
        self.record.created = self.store.shared.seconds();
        self.record.last_used = self.record.created;
        let fetched = self.record.prepared_bytes;
        let before = self.store.record(&self.record.manifest)?;
        self.record.prepared_bytes = before.map_or(0, |before| before.prepared_bytes).saturating_add(fetched);
        let text = self.sealed()?;
        let shared = std::sync::Arc::clone(&self.store.shared);
        files::replace(shared.storage(), &self.folder, RECORD, &text).map_err(|error| shared.refuse(error))?;
        let target = shared.layout.image(&self.record.manifest);
        let bytes = shared.folder_size(&self.folder)?;
        let mut attempts = 0;
        while !self.join_existing(&target, fetched)? {
            attempts += 1;
            match shared.storage.rename(&self.folder, &target) {
                Ok(()) => {
                    shared.budget.add(signed(bytes));
                    shared.hashed_records.flush();
                    break;
                }
                // Another process has just installed the image.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && attempts < INSTALL_ATTEMPTS => {}
                Err(error) => return Err(shared.refuse(io_error("installing", &target)(error))),
            }
        }
        Ok(self.record.clone())
    }

    fn sealed(&self) -> Result<Vec<u8>, StoreError> {
        let failed = |error| io_error("describing image", Path::new(&self.record.manifest.hex()))(error);
        let text = sealed::seal(&self.record).map_err(|error| failed(error.into()))?;
        // Every reader checks the same; better to fail now than to install a record that is not trusted.
        parse_record(&text).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        Ok(text)
    }

    /// Whether a sound record of this image exists: then it is updated with `fetched` transferred bytes. An unsound one
    /// is removed.
    fn join_existing(&mut self, target: &Path, fetched: u64) -> Result<bool, StoreError> {
        let store = self.store.clone();
        match store.shared.storage.metadata(target) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(io_error("examining", target)(error)),
        }
        // No other process changes the record meanwhile.
        let _lock = store.shared.lock_eviction(RECORD_WAIT, "install the image")?;
        let existing = store.record(&self.record.manifest)?.filter(|record| !record.has_old_tree());
        let loaded = existing.map(|record| store.load_record(record)).transpose()?.flatten();
        let is_listed = |record: &ImageRecord| -> Result<bool, StoreError> {
            let Some(list) = record.part(Part::Objects) else { return Ok(false) };
            Ok(store.shared.open_part(target, list)?.is_some())
        };
        let sound = match loaded.map(|image| image.record) {
            Some(record) if is_listed(&record)? => Some(record),
            _ => None,
        };
        let Some(mut record) = sound else {
            store.shared.retire(target)?;
            return Ok(false);
        };
        let new: Vec<_> = self.record.references.drain(..).filter(|name| !record.references.contains(name)).collect();
        record.references.extend(new);
        let surplus = record.references.len().saturating_sub(REFERENCES);
        record.references.drain(..surplus);
        record.layers = std::mem::take(&mut self.record.layers);
        record.prepared_bytes = record.prepared_bytes.saturating_add(fetched);
        record.last_used = self.record.last_used;
        self.record = record;
        let text = self.sealed()?;
        files::replace(store.shared.storage(), target, RECORD, &text).map_err(|error| store.shared.refuse(error))?;
        Ok(true)
    }
}

impl Drop for ImageStaging {
    fn drop(&mut self) {
        // Already gone if it was installed.
        if let Err(error) = files::remove_all(self.store.shared.storage(), &self.folder) {
            tracing::debug!(%error, "the next sweep will do it");
        }
    }
}

struct HashedFile<'a> {
    shared: &'a Shared,
    file: &'a File,
    hasher: Hasher,
    size: u64,
}

impl Write for HashedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        files::write_all_at(self.shared.storage(), self.file, bytes, self.size)?;
        self.size += bytes.len() as u64;
        self.hasher.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The exact time of a record's last use.
pub(crate) fn last_used(shared: &Shared, manifest: &Digest) -> SystemTime {
    let path = shared.layout.image(manifest).join(RECORD);
    shared.storage.metadata(&path).map_or(UNIX_EPOCH, |metadata| metadata.modified)
}
