//! Hints for images without a boot pack: the data fetched first, from the trace of the mount request and the landmarks of the image's
//! layers.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use tarpon_fetch::{Hint, ImageHandle};
use tarpon_store::{LayerRecord, Store};
use tarpon_trace::{FILE_BYTES, Trace, pieces};

use crate::{Engine, Error, ErrorKind, Result};

/// Name prefix of traces that a client leaves for the server.
const PREFIX: &str = "trace-";

impl Engine {
    /// Leaves a trace where the server finds it, until the returned value is dropped. The server may not see the client's other files, but
    /// it sees the store.
    ///
    /// # Errors
    /// The store is not writable.
    pub fn leave_trace(&self, trace: &Trace) -> Result<impl AsRef<Path> + use<>> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Store, "leave the trace for the server", error);
        let mut file =
            tempfile::Builder::new().prefix(PREFIX).tempfile_in(self.store().run_folder()).map_err(failed)?;
        file.write_all(&trace.write()).map_err(failed)?;
        Ok(file.into_temp_path())
    }
}

/// Takes the trace that a client left, and reads it within bounds. `Err`: why it is not followed.
pub(super) fn take(store: &Store, path: &Path) -> std::result::Result<Trace, String> {
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

/// Starts to fetch what the hints name. A recorded trace takes precedence over the landmarks of the image's authors. `false`: there are no
/// hints, or others are being followed.
pub(super) fn follow(handle: &ImageHandle, layers: &[LayerRecord], trace: Option<&Trace>) -> bool {
    let traced = trace.map(pieces).unwrap_or_default().into_iter();
    let traced = traced.map(|piece| Hint::Object { object: piece.object, range: piece.range });
    let starts =
        layers.iter().filter_map(|layer| Some(Hint::LayerStart { layer: layer.digest, until: layer.prefetch? }));
    let (traced, starts): (Vec<Hint>, Vec<Hint>) = (traced.collect(), starts.collect());
    if traced.is_empty() && starts.is_empty() {
        return false;
    }
    let (pieces, landmarks) = (traced.len(), starts.len());
    let follows = handle.follow(traced.into_iter().chain(starts).collect());
    if follows {
        tracing::info!(image = handle.name(), pieces, landmarks, "hints say what is brought first");
    }
    follows
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Digest;
    use tarpon_trace::Header;

    use super::*;
    use crate::EngineOptions;

    #[test]
    fn a_trace_is_taken_once_and_only_from_where_clients_leave_it() {
        let folder = tempfile::tempdir().unwrap();
        let options = EngineOptions { store: folder.path().join("store"), server_command: Vec::new() };
        let engine = Engine::open(options).unwrap();
        let header = Header {
            image: "a".into(),
            manifest: Digest::of(b"m"),
            profile: "default".into(),
            command: Vec::new(),
            ready: None,
            truncated: false,
        };
        let trace = Trace { header, touches: Vec::new() };
        let path = engine.leave_trace(&trace).unwrap();
        let path = path.as_ref();
        assert_eq!(take(engine.store(), path), Ok(trace.clone()));
        assert!(!path.exists() && take(engine.store(), path).is_err());
        let elsewhere = folder.path().join("trace-mine");
        std::fs::write(&elsewhere, trace.write()).unwrap();
        assert!(take(engine.store(), &elsewhere).is_err() && elsewhere.exists());
        let broken = engine.store().run_folder().join("trace-broken");
        std::fs::write(&broken, "no trace").unwrap();
        assert!(take(engine.store(), &broken).is_err() && !broken.exists());
    }
}
