//! Records every read of one mount.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use tarpon_client::protocol::MountRequest;
use tarpon_fetch::Fetcher;
use tarpon_fs::{Errno, Objects};
use tarpon_oci::Digest;
use tarpon_store::Store;
use tarpon_trace::{Header, Origin, Recorder};

use crate::{Error, ErrorKind, Result, ResultExt};

/// The fetcher, wrapped to record reads.
#[derive(Clone)]
pub(super) struct Recording {
    fetcher: Fetcher,
    recorder: Arc<Recorder>,
    /// Whether its beginning was lost with an earlier server.
    is_partial: bool,
}

impl Recording {
    pub(super) fn new(fetcher: Fetcher) -> Self {
        Self { fetcher, recorder: Arc::default(), is_partial: false }
    }

    /// A recording that an earlier server began.
    pub(super) fn partial(fetcher: Fetcher) -> Self {
        Self { is_partial: true, ..Self::new(fetcher) }
    }

    fn note(&self, object: Digest, offset: u64, bytes: &Bytes, from: Origin, stall: Duration) {
        if let Some(size) = self.fetcher.object_size(&object) {
            self.recorder.touch(object, size, offset..offset + bytes.len() as u64, from, stall);
        }
    }

    /// Writes the trace so far to a file for the client.
    ///
    /// # Errors
    /// Among others: the beginning of the trace was lost.
    pub(super) fn write(&self, store: &Store, request: &MountRequest) -> Result<PathBuf> {
        let step = "write the trace";
        if self.is_partial {
            let cause = "the server was restarted during the recording, and what it had recorded is lost";
            return Err(Error::new(ErrorKind::Other, step, cause).hint("record it again"));
        }
        let header = Header {
            image: request.image.clone(),
            manifest: request.manifest,
            profile: String::new(),
            command: Vec::new(),
            ready: None,
            truncated: false,
        };
        let trace = self.recorder.finish(header).write();
        let mut file = tempfile::Builder::new()
            .prefix("trace-")
            .tempfile_in(store.run_folder())
            .context(ErrorKind::Store, step)?;
        std::io::Write::write_all(&mut file, &trace).context(ErrorKind::Store, step)?;
        let (_, path) = file.keep().map_err(|error| Error::new(ErrorKind::Store, step, error.error))?;
        Ok(path)
    }
}

impl Objects for Recording {
    fn size(&self, object: &Digest) -> Option<u64> {
        Objects::size(&self.fetcher, object)
    }

    fn hold(&self, object: &Digest) -> Option<u64> {
        Objects::hold(&self.fetcher, object)
    }

    fn release(&self, object: &Digest) {
        Objects::release(&self.fetcher, object);
    }

    fn starting_with(&self, start: u64, bits: u32) -> Vec<Digest> {
        Objects::starting_with(&self.fetcher, start, bits)
    }

    fn read_local(&self, object: &Digest, offset: u64, length: usize) -> std::result::Result<Option<Bytes>, Errno> {
        let bytes = Objects::read_local(&self.fetcher, object, offset, length)?;
        if let Some(bytes) = &bytes {
            self.note(*object, offset, bytes, Origin::Local, Duration::ZERO);
        }
        Ok(bytes)
    }

    fn read(
        &self,
        object: Digest,
        offset: u64,
        length: usize,
    ) -> BoxFuture<'static, std::result::Result<Bytes, Errno>> {
        let (recording, began) = (self.clone(), Instant::now());
        Box::pin(async move {
            let bytes = Objects::read(&recording.fetcher, object, offset, length).await?;
            recording.note(object, offset, &bytes, Origin::Demand, began.elapsed());
            Ok(bytes)
        })
    }

    /// Never: the kernel would read the file unobserved.
    fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
        None
    }
}
