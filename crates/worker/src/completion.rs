//! [`WorkerCompletion`]: completes an image in a worker that has no network. Its user requests the layers for it.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_images::prepare::STREAMS;
use tarpon_images::prepare::complete::{Completing, Incomplete};
use tarpon_images::{Error, ErrorKind, Result, ResultExt as _};
use tarpon_oci::{Digest, limits};
use tarpon_store::Store;

use crate::blob_service::{self, Blobs};
use crate::event;
use crate::frames::{self, Reader, Tag};
use crate::message::{Action, BlobRequest, Control, Step, StepDone, Totals, one_line};
use crate::policy::{Policy, Watched};
use crate::process::{Process, async_stream};
use crate::supervise;

const STEP: &str = "complete the image";

/// Channels through which a worker requests layers: one for each stream, and some for responses that it gives up.
const SOURCES: usize = STREAMS + 5;

/// A completion in a worker. After a failed step another worker does the next one.
pub(crate) struct WorkerCompletion {
    command: Arc<[OsString]>,
    store: Store,
    manifest: Digest,
    source: Arc<dyn BlobSource>,
    current: Mutex<Option<Arc<Process>>>,
    layers: Vec<Digest>,
    by_index: Vec<Digest>,
    was_seen: bool,
}

impl WorkerCompletion {
    pub(crate) async fn open(
        command: Arc<[OsString]>,
        store: Store,
        manifest: Digest,
        source: Arc<dyn BlobSource>,
    ) -> Result<Self> {
        let (current, layers, by_index, was_seen) = Default::default();
        let new = Self { command, store, manifest, source, current, layers, by_index, was_seen };
        match new.step(Action::Open).await {
            Ok(StepDone::Opened { layers, by_index, was_seen })
                if layers.len() <= limits::LAYERS && by_index.len() <= limits::LAYERS =>
            {
                Ok(Self { layers, by_index, was_seen, ..new })
            }
            Ok(_) => Err(Error::new(ErrorKind::Other, STEP, "the confined process broke the protocol")),
            Err(Incomplete::Failed(error)) => Err(error),
            Err(_) => Err(Error::new(ErrorKind::Other, STEP, "the confined process cannot open it")),
        }
    }

    async fn step(&self, action: Action) -> std::result::Result<StepDone, Incomplete> {
        let process = self.process().map_err(|error| failed(&error))?;
        let done = self.attempt(&process, action).await;
        if !matches!(done, Ok(StepDone::Done(_) | StepDone::Opened { .. })) {
            self.current.lock().take_if(|current| Arc::ptr_eq(current, &process));
        }
        match done {
            Ok(StepDone::Lie(cause)) => Err(Incomplete::Lie(one_line(&cause))),
            Ok(StepDone::Refused(cause)) => Err(Incomplete::Refused(one_line(&cause))),
            Ok(StepDone::NoRoom) => Err(Incomplete::NoRoom),
            Ok(StepDone::Failed(error)) => Err(Incomplete::Failed(event::error_of(&error))),
            Ok(done) => Ok(done),
            Err(error) => {
                let cause = format!("the confined process has failed: {}; {error}", process.end().how);
                Err(Incomplete::Failed(Error::new(ErrorKind::Unavailable, STEP, cause)))
            }
        }
    }

    async fn attempt(&self, process: &Process, action: Action) -> io::Result<StepDone> {
        let mut channel = async_stream(process.open(Control::Step)?)?;
        let step = Step {
            store: self.store.whole().folder().to_owned(),
            tenant: self.store.tenant_id().copied(),
            manifest: self.manifest,
            action,
        };
        frames::send_message(&mut channel, Tag::Message, &step).await?;
        let done = Reader::default().message::<StepDone>(&mut channel).await?;
        done.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn process(&self) -> io::Result<Arc<Process>> {
        let mut current = self.current.lock();
        if let Some(process) = current.as_ref().filter(|process| process.is_usable()) {
            return Ok(process.clone());
        }
        let setup = Policy::setup_to_complete(self.store.whole().folder());
        let process = Arc::new(Process::start(&self.command, &setup, 0)?);
        self.open_channels(&process).map_err(|error| io::Error::other(format!("{error}; {}", process.end().how)))?;
        Ok(current.insert(process).clone())
    }

    fn open_channels(&self, process: &Arc<Process>) -> io::Result<()> {
        supervise::begin(process, supervise::Images::default(), Watched::nothing())?;
        for _ in 0..SOURCES {
            let (channel, source) = (async_stream(process.open(Control::Source)?)?, Layers(self.source.clone()));
            // It ends with the worker.
            tokio::spawn(async move { blob_service::serve(channel.into_split(), &source).await });
        }
        Ok(())
    }
}

fn failed(error: &io::Error) -> Incomplete {
    Incomplete::Failed(Error::new(ErrorKind::Other, STEP, format!("cannot start a confined process: {error}")))
}

impl Completing for WorkerCompletion {
    fn layers(&self) -> Vec<Digest> {
        self.layers.clone()
    }

    fn by_index(&self) -> Vec<Digest> {
        self.by_index.clone()
    }

    fn was_seen(&self) -> bool {
        self.was_seen
    }

    fn note_lie(&self, layer: Digest) -> BoxFuture<'_, ()> {
        async move {
            if let Err(error) = self.step(Action::NoteLie(layer)).await {
                tracing::warn!(?error, %layer, "cannot note in the image's record that its index is wrong");
            }
        }
        .boxed()
    }

    fn layer(&self, at: usize) -> BoxFuture<'_, std::result::Result<(), Incomplete>> {
        async move {
            let at = u32::try_from(at).context(ErrorKind::Other, STEP).map_err(Incomplete::Failed)?;
            self.step(Action::Layer(at)).await.map(drop)
        }
        .boxed()
    }

    fn install(&self) -> BoxFuture<'_, std::result::Result<bool, Incomplete>> {
        async move { Ok(matches!(self.step(Action::Install).await?, StepDone::Done(true))) }.boxed()
    }
}

/// The source of an image, for its worker.
struct Layers(Arc<dyn BlobSource>);

impl Blobs for Layers {
    fn open<'a>(&'a self, request: &'a BlobRequest) -> BoxFuture<'a, std::result::Result<BlobStream, SourceError>> {
        if request.distrusted {
            self.0.distrust(&request.blob.digest);
        }
        self.0.read(request.blob, request.range.clone())
    }

    fn totals(&self, _: &BlobRequest) -> Totals {
        Totals::default()
    }
}
