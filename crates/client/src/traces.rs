//! Traces that a client passes to the server, and those that the server learned from starts.
//!
//! The server may not see the client's other files, but it sees the store.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use tarpon_images::DEFAULT_PROFILE;
use tarpon_oci::Digest;
use tarpon_store::{Store, StoredTrace};
use tarpon_trace::{FILE_BYTES, Trace};

use crate::{ErrorKind, Result, ResultExt};

/// Name prefix of the files.
const PREFIX: &str = "trace-";

/// Leaves a trace where the server finds it, until the returned value is dropped.
///
/// # Errors
/// The store is not writable.
pub fn leave(store: &Store, trace: &Trace) -> Result<impl AsRef<Path> + use<>> {
    let step = "leave the trace for the server";
    let mut file =
        tempfile::Builder::new().prefix(PREFIX).tempfile_in(store.run_folder()).context(ErrorKind::Store, step)?;
    file.write_all(&trace.write()).context(ErrorKind::Store, step)?;
    Ok(file.into_temp_path())
}

/// Takes the trace that a client left, and reads it within bounds. `Err`: why it is not followed.
pub fn take(store: &Store, path: &Path) -> std::result::Result<Trace, String> {
    let is_left = path.parent() == Some(&store.run_folder())
        && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    if !is_left {
        return Err(format!("{} is not where a client leaves one", path.display()));
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes));
    let _removed = std::fs::remove_file(path);
    read.map_err(|error| error.to_string())?;
    Trace::read(&bytes).map_err(|error| error.to_string())
}

/// The trace that earlier starts left under this name. One that cannot be read counts as none: the next start replaces it.
pub fn learned(store: &Store, key: &Digest) -> Option<Trace> {
    let bytes = store.trace(key).inspect_err(|error| tracing::debug!(%error, "a learned trace is not read")).ok()??;
    let mut trace =
        Trace::read(&bytes).inspect_err(|error| tracing::debug!(%error, "a learned trace is damaged")).ok()?;
    if trace.header.profile.is_empty() {
        // Earlier programs named none, and a pack without a name is never requested.
        DEFAULT_PROFILE.clone_into(&mut trace.header.profile);
    }
    Some(trace)
}

/// All traces that starts left, those that were written last first.
///
/// # Errors
/// The store cannot be read.
pub fn all_learned(store: &Store) -> Result<Vec<(StoredTrace, Trace)>> {
    let all = store.traces().context(ErrorKind::Store, "list the traces")?;
    let read = |(part, stored): (Store, StoredTrace)| Some((stored, learned(&part, &stored.key)?));
    let mut all: Vec<_> = all.into_iter().filter_map(read).collect();
    all.sort_by_key(|(stored, _)| std::cmp::Reverse(stored.modified));
    Ok(all)
}

/// Removes a trace that starts left, from all tenants. `false`: there is none of this name.
///
/// # Errors
/// The store cannot be changed.
pub fn forget_learned(store: &Store, key: &Digest) -> Result<bool> {
    let step = "remove a trace";
    let mut is_removed = false;
    for (part, _) in store.traces().context(ErrorKind::Store, step)?.iter().filter(|(_, stored)| stored.key == *key) {
        is_removed |= part.remove_trace(key).context(ErrorKind::Store, step)?;
    }
    Ok(is_removed)
}

#[cfg(test)]
mod tests {
    use tarpon_store::StoreConfig;
    use tarpon_trace::Header;

    use super::*;

    #[test]
    fn a_trace_is_taken_once_and_only_from_where_clients_leave_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store"), StoreConfig::default()).unwrap();
        let header = Header::new("a", Digest::of(b"m"), "default");
        let trace = Trace { header, touches: Vec::new() };
        let path = leave(&store, &trace).unwrap();
        let path = path.as_ref();
        assert_eq!(take(&store, path), Ok(trace.clone()));
        assert!(!path.exists() && take(&store, path).is_err());
        let elsewhere = folder.path().join("trace-mine");
        std::fs::write(&elsewhere, trace.write()).unwrap();
        assert!(take(&store, &elsewhere).is_err() && elsewhere.exists());
        let broken = store.run_folder().join("trace-broken");
        std::fs::write(&broken, "no trace").unwrap();
        assert!(take(&store, &broken).is_err() && !broken.exists());
    }

    #[test]
    fn a_learned_trace_without_a_profile_is_of_the_default_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store"), StoreConfig::default()).unwrap();
        let manifest = Digest::of(b"m");
        let text = format!(r#"{{"tarpon-trace":1,"image":"a","manifest":"{manifest}","profile":""}}"#);
        store.set_trace(&manifest, text.as_bytes()).unwrap();
        let header = learned(&store, &manifest).unwrap().header;
        assert_eq!((header.profile.as_str(), header.starts), (DEFAULT_PROFILE, 0));
    }
}
