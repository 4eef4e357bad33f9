//! Writes an OCI layout: blobs and documents appear whole or not at all.
//!
//! Everything is written to a temporary file beside the layout's own, synced and renamed. `index.json` lists a manifest only after
//! all of its content exists. Only one program may write to a layout at a time.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::StreamExt as _;
use tarpon_blob::{BlobStream, Fault, SourceError};
use tarpon_oci::{Blob, Descriptor, Digest, Hasher, ImageIndex, NewDescriptor, Verified, limits};
use tempfile::NamedTempFile;
use tokio::sync::Mutex;

use super::archive::read_file;
use super::blobs::blocking;
use super::layout::{REF_NAME, is_called};
use crate::error::UploadError;

/// Content of the file `oci-layout`.
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
/// Mode of the files in a layout, before the umask.
const MODE: u32 = 0o644;

/// A layout that is being written.
pub(crate) struct LayoutWriter {
    pub(super) directory: PathBuf,
    /// Held while `index.json` is replaced.
    pub(super) index: Mutex<()>,
}

/// A blob that is being written.
struct Unnamed {
    file: NamedTempFile,
    hasher: Hasher,
    size: u64,
}

impl LayoutWriter {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, index: Mutex::default() }
    }

    /// Whether `blob` exists.
    pub(crate) async fn has_blob(&self, blob: Blob) -> Result<bool, SourceError> {
        let path = blob_path(&self.directory, &blob.digest);
        blocking(move || Ok(fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == blob.size))).await
    }

    /// Writes `bytes`.
    pub(crate) async fn push_bytes(&self, bytes: Bytes) -> Result<Blob, SourceError> {
        self.write(move |directory| {
            let mut blob = Unnamed::new(directory)?;
            blob.write(&bytes)?;
            blob.name(directory)
        })
        .await
    }

    /// Writes all of `pieces`, which must be `expected` if that is given.
    pub(crate) async fn push_stream(
        &self,
        mut pieces: BlobStream,
        expected: Option<Blob>,
    ) -> Result<Blob, UploadError> {
        let mut blob = self.write(Unnamed::new).await.map_err(UploadError::Push)?;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(UploadError::Source)?;
            let written = self.write(move |_| blob.write(&piece).map(|()| blob));
            blob = written.await.map_err(UploadError::Push)?;
        }
        let found = blob.blob();
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            let message = format!("blob {}: the content is {} ({})", expected.digest, found.digest, found.size);
            return Err(UploadError::Source(SourceError::new(Fault::BadData, message)));
        }
        self.write(move |directory| blob.name(directory)).await.map_err(UploadError::Push)
    }

    /// Runs a part of writing a blob where it may block.
    async fn write<T: Send + 'static>(
        &self,
        part: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, SourceError> {
        let directory = self.directory.clone();
        blocking(move || part(&directory).map_err(failed(&directory, "a blob"))).await
    }

    /// Writes `entry` into `index.json`, under `tag` if there is one. It replaces the entry with that tag, and an entry without tag
    /// for the same manifest.
    pub(crate) async fn add(&self, entry: NewDescriptor, tag: Option<String>) -> Result<(), SourceError> {
        let _guard = self.index.lock().await;
        let directory = self.directory.clone();
        blocking(move || add(&directory, entry, tag)).await
    }
}

fn add(directory: &Path, mut entry: NewDescriptor, tag: Option<String>) -> Result<(), SourceError> {
    let path = directory.join("index.json");
    let index = match read_file(&path, limits::MANIFEST_BYTES) {
        Ok(bytes) => ImageIndex::parse(Verified::seal(bytes)).map_err(|error| refused(directory, &error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ImageIndex::empty(),
        Err(error) => return Err(failed(directory, "index.json")(error)),
    };
    if let Some(tag) = &tag {
        entry.annotations.insert(REF_NAME.to_owned(), tag.clone());
    }
    let replaces = |found: &Descriptor| match found.annotations.contains_key(REF_NAME) {
        true => tag.as_deref().is_some_and(|tag| is_called(found, tag)),
        false => found.digest == entry.digest,
    };
    let index = index.with(&entry, replaces).map_err(|error| refused(directory, &error))?;
    let marker = directory.join("oci-layout");
    if !marker.exists() {
        write(directory, &marker, LAYOUT).map_err(failed(directory, "oci-layout"))?;
    }
    write(directory, &path, &index.bytes).map_err(failed(directory, "index.json"))
}

impl Unnamed {
    fn new(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory.join("blobs/sha256"))?;
        Ok(Self { file: temporary(directory)?, hasher: Hasher::new(), size: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    fn blob(&self) -> Blob {
        Blob { digest: self.hasher.clone().finish(), size: self.size }
    }

    fn name(self, directory: &Path) -> io::Result<Blob> {
        let blob = self.blob();
        place(self.file, &blob_path(directory, &blob.digest))?;
        Ok(blob)
    }
}

pub(super) fn write(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = temporary(directory)?;
    file.write_all(bytes)?;
    place(file, path)
}

/// A file in the layout that is deleted unless it is placed.
fn temporary(directory: &Path) -> io::Result<NamedTempFile> {
    let permissions = fs::Permissions::from_mode(MODE);
    tempfile::Builder::new().prefix(".tarpon-").permissions(permissions).tempfile_in(directory)
}

/// Renames `file` to `path` durably.
fn place(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

pub(super) fn blob_path(directory: &Path, digest: &Digest) -> PathBuf {
    directory.join("blobs/sha256").join(digest.hex())
}

pub(super) fn failed(directory: &Path, what: &str) -> impl Fn(io::Error) -> SourceError {
    let doing = format!("oci:{}: writing {what}", directory.display());
    move |error| {
        let fault = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Fault::Denied,
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => Fault::Refused,
            _ => Fault::Unavailable,
        };
        SourceError::new(fault, format!("{doing}: {error}"))
    }
}

pub(super) fn refused(directory: &Path, why: &dyn std::fmt::Display) -> SourceError {
    SourceError::new(Fault::Refused, format!("oci:{}: index.json: {why}", directory.display()))
}
