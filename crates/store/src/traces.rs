//! Traces of starts: what a start of an image read, for the next start of it or of another version.
//!
//! A file is named by a digest that its user chose. Its content is a hint, so no digest covers it. The least recently written traces are
//! removed when there are too many.

use std::path::PathBuf;
use std::time::SystemTime;

use tarpon_oci::Digest;

use crate::StoreError;
use crate::files::{self, DIR_MODE};
use crate::layout::TRACES;
use crate::store::Store;

/// Maximum size of one trace in bytes. A start that reads 20,000 files has a trace of about 4 MB.
pub const TRACE_BYTES: u64 = 8 << 20;
/// Maximum size of all traces of one part of the store. They do not count towards the budget, so this is small beside an image.
const ALL_BYTES: u64 = 32 << 20;

/// A trace in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredTrace {
    /// Its name.
    pub key: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was written.
    pub modified: SystemTime,
}

impl Store {
    /// The trace of this name.
    ///
    /// # Errors
    /// The disk failed, or the file has more than [`TRACE_BYTES`].
    pub fn trace(&self, key: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        files::read(self.shared.storage(), &self.trace_path(key), TRACE_BYTES)
    }

    /// Stores a trace under this name. Removes the least recently written others if all are too large together. A trace of more than
    /// [`TRACE_BYTES`] is not stored.
    ///
    /// # Errors
    /// The disk failed or is full.
    pub fn set_trace(&self, key: &Digest, trace: &[u8]) -> Result<(), StoreError> {
        if trace.len() as u64 > TRACE_BYTES {
            return Ok(());
        }
        let (storage, folder) = (self.shared.storage(), self.shared.layout.name(TRACES));
        files::create_dir(storage, &folder, DIR_MODE)?;
        files::replace(storage, &folder, &key.hex(), trace).map_err(|error| self.shared.refuse(error))?;
        let mut all = self.own_traces()?;
        all.sort_by_key(|trace| std::cmp::Reverse((trace.key == *key, trace.modified)));
        let mut bytes = 0;
        for trace in all {
            bytes += trace.bytes;
            if bytes > ALL_BYTES {
                files::unlink(storage, &self.trace_path(&trace.key))?;
            }
        }
        Ok(())
    }

    /// All traces, each with the part of the store that has it.
    ///
    /// # Errors
    /// The disk failed.
    pub fn traces(&self) -> Result<Vec<(Self, StoredTrace)>, StoreError> {
        let mut traces = Vec::new();
        for part in self.whole().parts()? {
            traces.extend(part.own_traces()?.into_iter().map(|trace| (part.clone(), trace)));
        }
        Ok(traces)
    }

    /// The traces of this part of the store, by name.
    fn own_traces(&self) -> Result<Vec<StoredTrace>, StoreError> {
        let mut traces = Vec::new();
        for name in files::list_records(self.shared.storage(), &self.shared.layout.name(TRACES))? {
            let key = name.to_str().and_then(|hex| format!("sha256:{hex}").parse::<Digest>().ok());
            let Some(key) = key else { continue };
            // Another process may have removed it.
            if let Ok(metadata) = self.shared.storage().metadata(&self.trace_path(&key)) {
                traces.push(StoredTrace { key, bytes: metadata.size, modified: metadata.modified });
            }
        }
        traces.sort_by_key(|trace| trace.key);
        Ok(traces)
    }

    /// Removes a trace. `false`: there is none of this name.
    ///
    /// # Errors
    /// The disk failed.
    pub fn remove_trace(&self, key: &Digest) -> Result<bool, StoreError> {
        let path = self.trace_path(key);
        let is_there = self.shared.storage().metadata(&path).is_ok();
        files::unlink(self.shared.storage(), &path)?;
        Ok(is_there)
    }

    fn trace_path(&self, key: &Digest) -> PathBuf {
        self.shared.layout.name(TRACES).join(key.hex())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;
    use crate::StoreConfig;

    #[test]
    fn a_trace_is_replaced_listed_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let key = Digest::of(b"image");
        assert_eq!((store.trace(&key).unwrap(), store.own_traces().unwrap()), (None, Vec::new()));
        store.set_trace(&key, b"first").unwrap();
        store.set_trace(&key, b"second").unwrap();
        assert_eq!(store.trace(&key).unwrap().as_deref(), Some(&b"second"[..]));
        let listed: Vec<_> = store.own_traces().unwrap().iter().map(|trace| (trace.key, trace.bytes)).collect();
        assert_eq!(listed, [(key, 6)]);
        assert!(store.remove_trace(&key).unwrap() && !store.remove_trace(&key).unwrap());
        assert_eq!(store.trace(&key).unwrap(), None);
    }

    #[test]
    fn the_traces_written_first_make_room_for_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let trace = vec![b'x'; usize::try_from(TRACE_BYTES).unwrap()];
        let keys: Vec<Digest> = (0..6_u8).map(|number| Digest::of(&[number])).collect();
        for (age, key) in keys.iter().enumerate() {
            store.set_trace(key, &trace).unwrap();
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000 + age as u64);
            File::open(store.trace_path(key)).unwrap().set_modified(modified).unwrap();
        }
        let kept: Vec<bool> = keys.iter().map(|key| store.trace(key).unwrap().is_some()).collect();
        assert_eq!(kept, [false, false, true, true, true, true]);
        store.set_trace(&Digest::of(b"large"), &[trace, b"x".to_vec()].concat()).unwrap();
        assert_eq!(store.own_traces().unwrap().len(), 4, "too large to keep");
    }
}
