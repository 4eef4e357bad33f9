//! Records every read of one mount. The recording is in a memory file that outlives the server.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use rustix::fs::MemfdFlags;
use rustix::time::{ClockId, clock_gettime};
use tarpon_client::protocol::MountRequest;
use tarpon_fetch::Fetcher;
use tarpon_fs::{Errno, Objects};
use tarpon_oci::Digest;
use tarpon_store::Store;
use tarpon_trace::{Header, JOURNAL_BYTES, Journal, Origin, Recorder};

use super::holding::Holding;
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
    /// Starts a recording of what is about to be mounted.
    pub(super) fn begin(fetcher: Fetcher, mountpoint: &Path, holding: &Arc<Holding>) -> Self {
        let journal = holding.is_held().then(|| HeldJournal::new(recording_of(mountpoint), holding.clone()));
        let recorder = match journal {
            Some(Ok(journal)) => Recorder::journaled(Box::new(journal), now()),
            Some(Err(error)) => {
                tracing::warn!(%error, "a recording ends with this server");
                Recorder::new()
            }
            None => Recorder::new(),
        };
        Self { fetcher, recorder: Arc::new(recorder), is_partial: false }
    }

    /// Continues a recording that an earlier server began.
    pub(super) fn continued(fetcher: Fetcher, mountpoint: &Path, holding: &Arc<Holding>) -> Self {
        match continued(recording_of(mountpoint), holding) {
            Ok(recorder) => Self { fetcher, recorder: Arc::new(recorder), is_partial: false },
            Err(error) => {
                tracing::warn!(%error, "the beginning of a recording is lost");
                Self { fetcher, recorder: Arc::default(), is_partial: true }
            }
        }
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
        let header = Header::new(request.image.clone(), request.manifest, "");
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

/// The state that holds the recording of a mount.
pub(super) fn recording_of(mountpoint: &Path) -> String {
    format!("recording.{}", Digest::of(mountpoint.as_os_str().as_bytes()).hex())
}

fn continued(name: String, holding: &Arc<Holding>) -> io::Result<Recorder> {
    let file = holding.take_file(&name).ok_or(io::ErrorKind::NotFound)?;
    let length = file.metadata()?.len();
    if length > JOURNAL_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    let journal = HeldJournal { file, name, holding: holding.clone(), is_broken: false };
    Recorder::continued(&bytes, Box::new(journal), now()).map_err(io::Error::other)
}

/// The clock of [`Instant`], which all processes of the machine share.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// A journal in a memory file that the holder has.
struct HeldJournal {
    file: File,
    name: String,
    holding: Arc<Holding>,
    /// A part could not be written.
    is_broken: bool,
}

impl HeldJournal {
    fn new(name: String, holding: Arc<Holding>) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("tarpon-recording", MemfdFlags::CLOEXEC)?);
        holding.keep_file(&name, &file);
        Ok(Self { file, name, holding, is_broken: false })
    }
}

impl Journal for HeldJournal {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        if self.is_broken {
            return;
        }
        if let Err(error) = self.file.write_all_at(bytes, offset) {
            tracing::warn!(%error, "a recording ends with this server");
            self.is_broken = true;
            // A successor must not take the part for the whole.
            self.holding.release_state(&self.name);
        }
    }
}
