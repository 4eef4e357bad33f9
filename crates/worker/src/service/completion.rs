//! Completes an image: the steps, and the source of its layers, which is the worker's user.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use parking_lot::Mutex;
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_images::prepare::complete::{Completing as _, Completion, Incomplete};
use tarpon_images::{Error, ErrorKind, Images, Result};
use tarpon_oci::Blob;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use crate::event;
use crate::frames::{self, Part, Reader, Tag, invalid};
use crate::message::{Action, BlobRequest, Failure, ImageName, Step, StepDone, decode};
use crate::process::BlobChannel;

/// The completion of the one image that this worker is for.
#[derive(Default)]
pub(super) struct StepService {
    completion: OnceCell<Arc<Completion>>,
    source: Arc<UserSource>,
}

impl StepService {
    /// One more channel to the source.
    pub(super) fn add_source(&self, channel: UnixStream) {
        self.source.idle.lock().push(BlobChannel { stream: channel, reader: Reader::default() });
    }

    /// Does the step of a channel.
    pub(super) async fn step(&self, mut channel: UnixStream) -> io::Result<()> {
        let step = Reader::default().message::<Step>(&mut channel).await?;
        let step = step.ok_or_else(|| invalid("a channel without a step"))?;
        let done = self.act(&step).await;
        frames::send_message(&mut channel, Tag::Message, &done).await
    }

    async fn act(&self, step: &Step) -> StepDone {
        let completion = match self.completion.get_or_try_init(|| self.open(step)).await {
            Ok(completion) => completion,
            Err(error) => return StepDone::Failed(event::encode_error(&error)),
        };
        let done = match step.action {
            Action::Open => {
                let (layers, by_index) = (completion.layers(), completion.by_index());
                return StepDone::Opened { layers, by_index, was_seen: completion.was_seen() };
            }
            Action::NoteLie(layer) => {
                completion.note_lie(layer).await;
                Ok(true)
            }
            Action::Layer(at) => completion.layer(at as usize).await.map(|()| true),
            Action::Install => completion.install().await,
        };
        match done {
            Ok(done) => StepDone::Done(done),
            Err(Incomplete::Lie(cause)) => StepDone::Lie(cause),
            Err(Incomplete::Refused(cause)) => StepDone::Refused(cause),
            Err(Incomplete::NoRoom) => StepDone::NoRoom,
            Err(Incomplete::Failed(error)) => StepDone::Failed(event::encode_error(&error)),
        }
    }

    async fn open(&self, step: &Step) -> Result<Arc<Completion>> {
        let (step, source) = (step.clone(), self.source.clone());
        let open = move || {
            let store = Images::open(&step.store)?.store().of_tenant(step.tenant.as_ref());
            Completion::open(store, &step.manifest, source)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        Ok(Arc::new(opened.map_err(|error| Error::new(ErrorKind::Other, "complete the image", error))??))
    }
}

/// The worker's user, as a source. It has one channel for each stream, and a few more.
#[derive(Debug, Default)]
struct UserSource {
    idle: Arc<Mutex<Vec<BlobChannel>>>,
}

impl BlobSource for UserSource {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, std::result::Result<BlobStream, SourceError>> {
        let idle = self.idle.clone();
        async move {
            let channel = idle.lock().pop();
            // One is lost with each response that is not read to its end. The user starts another worker then.
            let channel =
                channel.ok_or_else(|| SourceError::new(Fault::Unavailable, "no channel to the source is left"))?;
            let image = ImageName { number: 0, text: String::new(), tls_verify: None, cert_dir: None };
            let request = BlobRequest { image, blob, range, probe: false };
            let mut reading = Reading { channel, idle };
            reading.begin(&request).await.map_err(broken)??;
            Ok(stream::unfold(Some(reading), Reading::next).boxed())
        }
        .boxed()
    }

    fn name(&self) -> String {
        String::new()
    }
}

fn broken(error: io::Error) -> SourceError {
    SourceError::new(Fault::Unavailable, format!("the channel to the source broke: {error}"))
}

/// A response of the user.
struct Reading {
    channel: BlobChannel,
    idle: Arc<Mutex<Vec<BlobChannel>>>,
}

impl Reading {
    async fn begin(&mut self, request: &BlobRequest) -> io::Result<std::result::Result<(), SourceError>> {
        let BlobChannel { stream, reader } = &mut self.channel;
        frames::send_message(stream, Tag::Message, request).await?;
        match reader.next(stream).await? {
            Some(Part::Whole(Tag::Head, _)) => Ok(Ok(())),
            Some(Part::Whole(Tag::Failure, bytes)) => Ok(Err(failure(&bytes))),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    async fn next(reading: Option<Self>) -> Option<(std::result::Result<Bytes, SourceError>, Option<Self>)> {
        let mut reading = reading?;
        let BlobChannel { stream, reader } = &mut reading.channel;
        match reader.next(stream).await {
            Ok(Some(Part::Body(bytes))) => Some((Ok(bytes), Some(reading))),
            Ok(Some(Part::Whole(Tag::End, _))) => {
                let Self { channel, idle } = reading;
                idle.lock().push(channel);
                None
            }
            Ok(Some(Part::Whole(Tag::Failure, bytes))) => {
                let Self { channel, idle } = reading;
                idle.lock().push(channel);
                Some((Err(failure(&bytes)), None))
            }
            Ok(_) => Some((Err(broken(io::ErrorKind::UnexpectedEof.into())), None)),
            Err(error) => Some((Err(broken(error)), None)),
        }
    }
}

fn failure(bytes: &[u8]) -> SourceError {
    match decode::<Failure>(bytes) {
        Ok(failure) => failure.into_error(),
        Err(problem) => SourceError::new(Fault::BadData, problem),
    }
}
