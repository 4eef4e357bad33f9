//! Prepares an image.

use std::io;
use std::sync::Arc;

use tarpon_images::index::places::IndexPlaces;
use tarpon_images::preparer::Task;
use tarpon_images::{
    Access, Error, ErrorKind, ImageRequest, Images, IndexChoice, PolicyChoice, Pull, Result, ResultExt as _, access,
    admission,
};
use tarpon_oci::{IndexLock, Platform, Source};
use tarpon_registry::{Repository, Stats};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::interval;

use super::images::Images as Opened;
use crate::event::{self, Reporter};
use crate::frames::{self, Reader, Tag, invalid};
use crate::message::{Event, IndexName, JOB_BYTES, Job, Work, encode_up_to, one_line};

/// Does the job of a channel.
pub(super) async fn serve(mut channel: UnixStream, images: Arc<Opened>) -> io::Result<()> {
    let job = Reader::up_to(JOB_BYTES).message::<Job>(&mut channel).await?;
    let job = job.ok_or_else(|| invalid("a channel without a job"))?;
    let (events, mut queue) = mpsc::unbounded_channel();
    let reporter = Arc::new(Reporter::new(events.clone()));
    let reported = reporter.clone();
    tokio::spawn(async move {
        let last = prepare(&job, &images, &reported).await.unwrap_or_else(|error| failed(&error));
        reported.flush();
        // The user is gone, if this fails.
        let _ = events.send(last);
    });
    let mut ticks = interval(event::REPORT);
    loop {
        tokio::select! {
            event = queue.recv() => {
                let Some(event) = event else { return Ok(()) };
                let encoded = encode_up_to(JOB_BYTES, &event).map_err(|error| invalid(&error))?;
                frames::send(&mut channel, Tag::Message, &encoded).await?;
                if matches!(event, Event::Done { .. } | Event::Documents { .. } | Event::Failed(_)) {
                    return Ok(());
                }
            }
            _ = ticks.tick() => reporter.flush(),
        }
    }
}

async fn prepare(job: &Job, credentials: &Opened, reporter: &Arc<Reporter>) -> Result<Event> {
    let request = request(job)?;
    let repository = access::open_with(&request.text, &request.access, credentials.lookup(job.image.number)).await?;
    let list = job.places.iter().map(|named| named.place.clone()).collect();
    let places = IndexPlaces::opened_by(list, |number, place| {
        let step = "open an index repository";
        let named = job.places.get(number);
        let named = named.ok_or_else(|| Error::new(ErrorKind::Other, step, "there is none of this number"))?;
        let name = named.name.as_ref().map_err(|why| Error::new(ErrorKind::Refused, step, why.clone()))?;
        let access = name.access().context(ErrorKind::Other, step)?;
        access::open_later_with(&place.source, &access, credentials.lookup(name.number))
    });
    let images = || Ok::<_, Error>(Images::open(&job.store)?.with_tier(credentials.tier_of(&job.image)));
    let (manifest, fallbacks) = match job.work {
        Work::Task(Task::Prepare) => {
            let prepared =
                images()?.prepare_from(&request, &repository, &places, Some(&**reporter), &**reporter).await?;
            (*prepared.manifest(), prepared.fallbacks)
        }
        Work::Task(Task::WithoutStreaming) => {
            let prepared = images()?.without_streaming_from(&request, &repository, &**reporter).await?;
            (*prepared.manifest(), prepared.fallbacks)
        }
        Work::Task(Task::Pull) => {
            let pulled = images()?.pull_from(&request, &repository, &**reporter).await?;
            (pulled.record.manifest, Vec::new())
        }
        Work::Documents => return documents(&request, &repository).await,
    };
    let Stats { requests, bytes } = repository.stats() + places.stats() + images()?.tier_stats();
    let fallbacks = fallbacks.iter().map(|line| one_line(line)).collect();
    Ok(Event::Done { manifest, fallbacks, requests, bytes })
}

async fn documents(request: &ImageRequest, repository: &Repository) -> Result<Event> {
    let image = admission::resolve(repository, &request.access, &request.platform).await?;
    let config = access::config(repository, &image).await?;
    Ok(Event::Documents {
        digest: *image.manifest.digest(),
        manifest: image.manifest.bytes.to_vec(),
        config: config.bytes.to_vec(),
        index_digest: image.index_digest,
    })
}

fn failed(error: &Error) -> Event {
    Event::Failed(event::encode_error(error))
}

pub(crate) fn request(job: &Job) -> Result<ImageRequest> {
    let step = "read the job";
    let source: Source = job.source.parse().context(ErrorKind::Other, step)?;
    let platform: Platform = job.platform.parse().context(ErrorKind::Other, step)?;
    let index = match &job.index {
        IndexName::None => IndexChoice::None,
        IndexName::Unset => IndexChoice::Unset,
        IndexName::Pinned(digest) => IndexChoice::Pinned(*digest),
        IndexName::Locked(text) => {
            IndexChoice::Locked(Arc::new(IndexLock::parse(text).context(ErrorKind::Other, step)?))
        }
        IndexName::Registry => IndexChoice::Registry,
        IndexName::Signed => IndexChoice::Signed,
    };
    let image = &job.image;
    Ok(ImageRequest {
        platform_named: job.platform_named,
        pull: Pull::Always,
        index,
        profile: job.profile.clone(),
        starts: job.starts,
        limits: job.limits,
        access: Access {
            policy: PolicyChoice::Settled(Box::new(job.demands.clone())),
            ..image.access().context(ErrorKind::Other, step)?
        },
        ..ImageRequest::new(image.text.clone(), source, platform)
    })
}
