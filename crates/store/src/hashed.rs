//! [`HashedFiles`]: the files hashed since boot, so that each is hashed once per boot.
//!
//! A file is identified by a fingerprint of its digest, inode number, size and change times. A file that was written,
//! truncated, extended or replaced has another fingerprint and is hashed again before it is used. So is every file after
//! a boot, because this kernel never read what the disk returns then. This cannot detect a disk that changes bytes within
//! one boot: `verify` can.
//!
//! Where changes within a tick of the kernel's clock share one time (before Linux 6.13), a file that changed just before
//! it was hashed is not recorded, as with Git's index: a later change could have the same times. Files that the store
//! itself writes are recorded at once: their modification time is set to the nanosecond, where every write would leave
//! that of a tick.
//!
//! The fingerprints are stored in `run/hashed-BOOT`, 8 bytes each, appended under a lock. Those of image records are in a file of their
//! own, `run/records-BOOT`: a mount of an image that is known reads only that one, however many objects the store has. The files are a
//! cache: a lost or damaged one costs hashing, and never makes an unhashed file trusted.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tarpon_oci::Digest;

use crate::StoreError;
use crate::clock::Clock;
use crate::files::{self, io_error};
use crate::layout::Layout;
use crate::locks::{Locks, SHORT_WAIT};
use crate::storage::{Access, Metadata, Storage};

/// Prefixes of the file names.
const OBJECTS: &str = "hashed-";
const RECORDS: &str = "records-";
/// Bytes of a fingerprint.
const ENTRY: usize = 8;
/// Maximum number of fingerprints of a boot. At this number (16 MiB on disk) all are dropped: a long-running host must
/// not grow without bound, and hashing the files once more costs seconds.
const MOST: usize = 2 << 20;
/// Fingerprints buffered before a write: a crash costs hashing that many files again.
const GATHERED: usize = 1024;

/// Twice the longest tick of a kernel's clock, which is 10 ms.
const TICKS: Duration = Duration::from_millis(20);

type Fingerprint = u64;

/// The fingerprints of a store in this boot.
#[derive(Debug)]
pub(crate) struct HashedFiles {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    path: PathBuf,
    prefix: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: HashSet<Fingerprint, BuildHasherDefault<Itself>>,
    /// Fingerprints that are not written yet.
    gathered: Vec<Fingerprint>,
    /// Bytes of the file already read.
    read: u64,
}

/// A hasher without hashing: fingerprints are already random enough.
#[derive(Debug, Default, Clone, Copy)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl HashedFiles {
    /// Those of objects.
    pub(crate) fn objects(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, layout: &Layout, boot: &str) -> Self {
        Self::new(storage, clock, layout, OBJECTS, boot)
    }

    /// Those of image records, and the images whose objects were checked.
    pub(crate) fn records(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, layout: &Layout, boot: &str) -> Self {
        Self::new(storage, clock, layout, RECORDS, boot)
    }

    fn new(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        layout: &Layout,
        prefix: &'static str,
        boot: &str,
    ) -> Self {
        let path = layout.name("run").join(file_name(prefix, boot));
        Self { storage, clock, path, prefix, state: Mutex::default() }
    }

    /// Whether the file with this metadata was found to have this digest, and is unchanged since.
    pub(crate) fn has(&self, digest: &Digest, metadata: &Metadata) -> bool {
        self.knows(fingerprint(digest, metadata))
    }

    /// Returns those of these files for which [`HashedFiles::has`] is false. Takes the lock once for all of them.
    pub(crate) fn unknown(&self, mut files: Vec<(Digest, Metadata)>) -> Vec<(Digest, Metadata)> {
        let state = self.state.lock();
        files.retain(|(digest, metadata)| !state.known.contains(&fingerprint(digest, metadata)));
        drop(state);
        // Another process may have hashed them.
        files.retain(|(digest, metadata)| !self.has(digest, metadata));
        files
    }

    /// Records that the file was found to have this digest.
    pub(crate) fn add(&self, digest: &Digest, metadata: &Metadata) {
        self.note(fingerprint(digest, metadata));
    }

    /// As [`HashedFiles::add`], for an open file that was just written, or of which only metadata changed since it was hashed.
    pub(crate) fn add_file(&self, digest: &Digest, file: &File) {
        if let Ok(metadata) = self.storage.file_metadata(file) {
            self.add(digest, &metadata);
        }
    }

    /// Whether all files of the image, of this tenant in an isolated store, were checked in this boot.
    pub(crate) fn has_image(&self, manifest: &Digest, tenant: Option<&Digest>) -> bool {
        self.knows(image_fingerprint(manifest, tenant))
    }

    /// Records that all files of the image were checked.
    pub(crate) fn add_image(&self, manifest: &Digest, tenant: Option<&Digest>) {
        self.note(image_fingerprint(manifest, tenant));
    }

    fn knows(&self, fingerprint: Fingerprint) -> bool {
        let mut state = self.state.lock();
        if state.known.contains(&fingerprint) {
            return true;
        }
        if let Err(error) = self.read_on(&mut state) {
            tracing::debug!(%error, "cannot read the list of hashed files");
        }
        state.known.contains(&fingerprint)
    }

    fn note(&self, fingerprint: Fingerprint) {
        let mut state = self.state.lock();
        if !state.known.insert(fingerprint) {
            return;
        }
        state.gathered.push(fingerprint);
        if state.gathered.len() >= GATHERED {
            self.write(&mut state);
        }
    }

    /// Writes the buffered fingerprints, for other processes to read.
    pub(crate) fn flush(&self) {
        let mut state = self.state.lock();
        if !state.gathered.is_empty() {
            self.write(&mut state);
        }
    }

    fn write(&self, state: &mut State) {
        let gathered = std::mem::take(&mut state.gathered);
        if let Err(error) = self.append(state, &gathered) {
            tracing::debug!(%error, "files that were hashed will be hashed again by the next process");
        }
    }

    fn append(&self, state: &mut State, gathered: &[Fingerprint]) -> Result<(), StoreError> {
        let storage = &*self.storage;
        let Some(file) = Locks { storage, clock: &*self.clock }.lock_within(&self.path, SHORT_WAIT)? else {
            return Ok(());
        };
        let failed = |error: io::Error| io_error("writing", &self.path)(error);
        let size = storage.file_metadata(&file).map_err(failed)?.size;
        // A partly written entry is overwritten.
        let mut end = size - size % ENTRY as u64;
        if end >= (MOST * ENTRY) as u64 {
            storage.set_len(&file, 0).map_err(failed)?;
            state.known.clear();
            state.known.extend(gathered);
            (end, state.read) = (0, 0);
        }
        let bytes: Vec<u8> = gathered.iter().flat_map(|fingerprint| fingerprint.to_le_bytes()).collect();
        files::write_all_at(storage, &file, &bytes, end).map_err(failed)?;
        if state.read == end {
            state.read += bytes.len() as u64;
        }
        Ok(())
    }

    /// Reads what was appended since the last read.
    fn read_on(&self, state: &mut State) -> io::Result<()> {
        let size = match self.storage.metadata(&self.path) {
            Ok(metadata) => metadata.size.min((2 * MOST * ENTRY) as u64),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        // Another process has started the file over.
        state.read = if size < state.read { 0 } else { state.read };
        if size - state.read < ENTRY as u64 {
            return Ok(());
        }
        let file = self.storage.open(&self.path, Access::Read)?;
        self.read_from(&file, state, size)
    }

    fn read_from(&self, file: &File, state: &mut State, size: u64) -> io::Result<()> {
        let mut buffer = vec![0; files::BLOCK];
        while state.read < size {
            let count = files::read_full_at(&*self.storage, file, &mut buffer, state.read)?;
            let (entries, _) = buffer.get(..count).unwrap_or_default().as_chunks::<ENTRY>();
            if entries.is_empty() {
                break;
            }
            state.known.extend(entries.iter().map(|entry| u64::from_le_bytes(*entry)));
            state.read += (entries.len() * ENTRY) as u64;
        }
        Ok(())
    }

    /// Removes the files of earlier boots.
    pub(crate) fn sweep(&self) -> Result<(), StoreError> {
        let Some(folder) = self.path.parent() else { return Ok(()) };
        for name in files::list(&*self.storage, folder)? {
            if name.to_str().is_some_and(|name| name.starts_with(self.prefix))
                && Some(name.as_os_str()) != self.path.file_name()
            {
                files::unlink(&*self.storage, &folder.join(name))?;
            }
        }
        Ok(())
    }
}

impl Drop for HashedFiles {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The file name for a boot id. In tests the id is not a valid file name.
fn file_name(prefix: &str, boot: &str) -> String {
    let hex = Digest::of(boot.as_bytes()).hex();
    format!("{prefix}{}", hex.get(..32).unwrap_or(&hex))
}

fn fingerprint(digest: &Digest, metadata: &Metadata) -> Fingerprint {
    let (seconds, nanoseconds) = metadata.changed;
    let modified = metadata.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    let modified = [modified.as_secs(), modified.subsec_nanos().into()];
    [metadata.inode, metadata.size, seconds.cast_unsigned(), nanoseconds.cast_unsigned(), modified[0], modified[1]]
        .into_iter()
        .fold(start(digest), |state, value| mix(state ^ value))
}

/// Whether a file with this change time, hashed from `now` on, gets a different time when it changes again.
pub(crate) fn is_settled((seconds, nanoseconds): (i64, i64), now: SystemTime) -> bool {
    let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(seconds), u32::try_from(nanoseconds)) else { return false };
    let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
    changed.and_then(|changed| now.duration_since(changed).ok()).is_some_and(|since| since >= TICKS)
}

/// Fingerprint of an image. Images have no size or inode; a file has the same fingerprint only by chance.
fn image_fingerprint(manifest: &Digest, tenant: Option<&Digest>) -> Fingerprint {
    mix(mix(!start(manifest)) ^ tenant.map_or(0, start))
}

fn start(digest: &Digest) -> u64 {
    u64::from_le_bytes(digest.as_bytes().first_chunk().copied().unwrap_or_default())
}

/// The finaliser of splitmix64: every bit of the result depends on every bit of `value`.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
