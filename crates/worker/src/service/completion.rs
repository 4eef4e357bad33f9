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
use tarpon_oci::{Blob, Digest};
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use crate::blob_channel::{BlobChannel, Reply};
use crate::distrusted::Distrusted;
use crate::event;
use crate::frames::{self, Reader, Tag, invalid};
use crate::message::{Action, BlobRequest, ImageName, Step, StepDone};

/// The completion of the one image that this worker is for.
#[derive(Default)]
pub(super) struct StepService {
    completion: OnceCell<Arc<Completion>>,
    source: Arc<UserSource>,
}

impl StepService {
    /// One more channel to the source.
    pub(super) fn add_source(&self, channel: UnixStream) {
        self.source.idle.lock().push(BlobChannel::new(channel));
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
    distrusted: Distrusted,
}

impl BlobSource for UserSource {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, std::result::Result<BlobStream, SourceError>> {
        let idle = self.idle.clone();
        async move {
            let channel = idle.lock().pop();
            // One is lost with each response that is not read to its end. The user starts another worker then.
            let channel =
                channel.ok_or_else(|| SourceError::new(Fault::Unavailable, "no channel to the source is left"))?;
            let image = ImageName { number: 0, text: String::new(), endpoints: Vec::new(), cert_dir: None, tier: None };
            let distrusted = self.distrusted.contains(&blob.digest);
            let request = BlobRequest { image, blob, range, probe: false, distrusted };
            let mut reading = Reading { channel, idle };
            reading.begin(&request).await.map_err(broken)??;
            Ok(stream::unfold(Some(reading), Reading::next).boxed())
        }
        .boxed()
    }

    /// The user knows whether there are mirrors.
    fn distrust(&self, blob: &Digest) -> bool {
        self.distrusted.add(blob)
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
        self.channel.send(request).await?;
        match self.channel.receive().await? {
            Reply::Head(_) => Ok(Ok(())),
            Reply::Failure(failure) => Ok(Err(failure.into_error())),
            Reply::Totals(_) | Reply::Body(_) | Reply::End(_) => Err(invalid("a response without a head")),
        }
    }

    async fn next(reading: Option<Self>) -> Option<(std::result::Result<Bytes, SourceError>, Option<Self>)> {
        let mut reading = reading?;
        let error = match reading.part().await {
            Ok(Reply::Body(bytes)) => return Some((Ok(bytes), Some(reading))),
            Ok(Reply::End(_)) => {
                reading.keep();
                return None;
            }
            Ok(Reply::Failure(failure)) => {
                reading.keep();
                failure.into_error()
            }
            Ok(Reply::Head(_) | Reply::Totals(_)) => broken(invalid("a part of no response")),
            Err(error) => broken(error),
        };
        Some((Err(error), None))
    }

    /// The next part but totals: the user counts for itself.
    async fn part(&mut self) -> io::Result<Reply> {
        loop {
            match self.channel.receive().await? {
                Reply::Totals(_) => {}
                part => return Ok(part),
            }
        }
    }

    /// The response was read to its end: the channel serves the next request.
    fn keep(self) {
        self.idle.lock().push(self.channel);
    }
}
