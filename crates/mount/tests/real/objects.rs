//! Objects in memory, each with its own behavior.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_fs::{Errno, Objects};
use tarpon_oci::Digest;
use tokio::sync::watch;

/// Far longer than anything takes.
pub(crate) const HUNG: Duration = Duration::from_secs(60);

/// How an object behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    /// In memory.
    #[default]
    Local,
    /// Only by a remote read.
    Remote,
    /// Unavailable.
    Broken,
    /// Reads panic.
    Panics,
    /// Reads wait until [`Memory::speak`].
    Silent,
}

/// The objects.
pub(crate) struct Memory {
    known: Mutex<HashMap<Digest, (Bytes, Manner)>>,
    asked: watch::Sender<u64>,
    paged_in: watch::Sender<u64>,
    silent: watch::Sender<bool>,
    folder: PathBuf,
}

impl Memory {
    /// An empty set; complete objects become files in `folder`.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            known: Mutex::default(),
            asked: watch::Sender::new(0),
            paged_in: watch::Sender::new(0),
            silent: watch::Sender::new(true),
            folder,
        }
    }

    /// Adds an object, or changes its behavior.
    pub(crate) fn add(&self, content: impl Into<Bytes>, manner: Manner) {
        let content = content.into();
        self.known.lock().insert(Digest::of(&content), (content, manner));
    }

    /// Stores it as a complete object.
    pub(crate) fn complete(&self, content: &[u8]) {
        let path = self.path(&Digest::of(content));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Releases waiting reads.
    pub(crate) fn speak(&self) {
        self.silent.send_replace(false);
    }

    /// Number of remote reads.
    pub(crate) fn asked(&self) -> u64 {
        *self.asked.borrow()
    }

    /// Blocks until a remote read has arrived.
    pub(crate) fn wait_until_asked(&self, runtime: &tokio::runtime::Runtime) {
        runtime.block_on(self.asked.subscribe().wait_for(|asked| *asked > 0)).unwrap();
    }

    /// Blocks until bytes were read for the kernel's page cache.
    pub(crate) fn wait_until_paged_in(&self, runtime: &tokio::runtime::Runtime) {
        let mut paged_in = self.paged_in.subscribe();
        let is_in_time =
            runtime.block_on(async { tokio::time::timeout(HUNG, paged_in.wait_for(|count| *count > 0)).await.is_ok() });
        assert!(is_in_time, "nothing was put into the page cache");
    }

    fn path(&self, object: &Digest) -> PathBuf {
        let hex = object.hex();
        self.folder.join(&hex[..2]).join(&hex[2..])
    }

    fn get(&self, object: &Digest) -> Option<(Bytes, Manner)> {
        self.known.lock().get(object).cloned()
    }
}

fn part(bytes: &Bytes, offset: u64, length: usize) -> Bytes {
    let start = usize::try_from(offset).unwrap();
    bytes.slice(start..start + length)
}

impl Objects for Memory {
    fn size(&self, object: &Digest) -> Option<u64> {
        self.get(object).map(|(bytes, _)| bytes.len() as u64)
    }

    fn read_local(&self, object: &Digest, offset: u64, length: usize) -> Result<Option<Bytes>, Errno> {
        match self.get(object).ok_or(Errno::Io)? {
            (bytes, Manner::Local) => Ok(Some(part(&bytes, offset, length))),
            (_, Manner::Panics) => panic!("as this test wants it"),
            _ => Ok(None),
        }
    }

    fn page_in(&self, object: &Digest, offset: u64, length: usize) -> Option<Bytes> {
        let (bytes, manner) = self.get(object)?;
        self.paged_in.send_modify(|count| *count += 1);
        (manner == Manner::Local).then(|| part(&bytes, offset, length))
    }

    fn read(&self, object: Digest, offset: u64, length: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
        // How it behaves is settled before a test that waits for this read can change it.
        let known = self.get(&object);
        self.asked.send_modify(|asked| *asked += 1);
        let mut silent = self.silent.subscribe();
        Box::pin(async move {
            let (bytes, manner) = known.ok_or(Errno::Io)?;
            if manner == Manner::Silent {
                silent.wait_for(|silent| !*silent).await.map_err(|_| Errno::Io)?;
            }
            if manner == Manner::Broken { Err(Errno::Io) } else { Ok(part(&bytes, offset, length)) }
        })
    }

    fn open_local(&self, object: &Digest) -> Option<Arc<File>> {
        File::open(self.path(object)).ok().map(Arc::new)
    }
}
