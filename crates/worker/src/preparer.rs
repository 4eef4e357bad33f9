//! [`WorkerPreparer`]: prepares images, each in a worker of its own.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tarpon_images::access::Settled;
use tarpon_images::index::pack::PackListener;
use tarpon_images::index::places::{self, IndexPlace};
use tarpon_images::preparer::{Documents, Finished, Preparer, Task};
use tarpon_images::{
    Access, Admission, Error, ErrorKind, ImageRequest, IndexChoice, Progress, Result, ResultExt as _, access,
};
use tarpon_registry::Stats;
use tokio::net::UnixStream;
use zeroize::Zeroizing;

use crate::event;
use crate::frames::{self, Tag};
use crate::message::{
    Control, Event, ImageName, IndexName, JOB_BYTES, Job, PlaceName, Setup, Work, encode_up_to, one_line,
};
use crate::policy::{Policy, Watched};
use crate::process::{Process, async_stream};
use crate::supervise::{self, Credentials};

/// Prepares each image in a worker of its own, which can write in the store and nowhere else.
#[derive(Debug)]
pub struct WorkerPreparer {
    command: Arc<[OsString]>,
}

impl WorkerPreparer {
    /// A preparer whose workers `command` starts. It must run [`crate::serve`].
    pub fn new(command: Vec<OsString>) -> Self {
        Self { command: command.into() }
    }

    /// Has a worker do the job. Returns its last event.
    async fn run(&self, setup: &Setup, job: &Job, settled: &SettledRequest, report: impl Fn(Event)) -> Result<Event> {
        let step = "start the process that prepares the image";
        let process = Arc::new(Process::start(&self.command, setup, 0).context(ErrorKind::Other, step)?);
        let failed = |error: io::Error| ended(&process, &error.to_string());
        let images = supervise::Images::of(0, Credentials::of(&settled.image));
        for (number, place) in (1..).zip(&settled.places) {
            if let Ok(settled) = &place.settled {
                images.add(number, Credentials::of(settled));
            }
        }
        supervise::begin(&process, images, Watched::nothing()).map_err(failed)?;
        let mut channel = begin(&process, job).await.map_err(failed)?;
        match event::listen(&mut channel, report).await.map_err(failed)? {
            Some(Event::Failed(error)) => Err(event::error_of(&error)),
            Some(last) => Ok(last),
            None => Err(ended(&process, "its end")),
        }
    }
}

impl Preparer for WorkerPreparer {
    fn prepare<'a>(
        &'a self,
        task: Task,
        store: &'a Path,
        request: &'a ImageRequest,
        listener: Option<&'a dyn PackListener>,
        progress: &'a dyn Progress,
    ) -> BoxFuture<'a, Result<Finished>> {
        async move {
            let settled = SettledRequest::of(request)?;
            let mut setup = Policy::of(&settled.image, &request.access).setup_to_prepare(store);
            for place in &settled.places {
                if let Ok(settled) = &place.settled {
                    setup.reads_also(Policy::of(settled, &place.access).setup());
                }
            }
            let report = |event| event::report(event, listener, progress);
            match self.run(&setup, &job(Work::Task(task), store, request, &settled)?, &settled, report).await? {
                Event::Done { manifest, fallbacks, requests, bytes } => {
                    let fallbacks = fallbacks.iter().map(|line| one_line(line)).collect();
                    Ok(Finished { manifest, fallbacks, fetched: Stats { requests, bytes } })
                }
                _ => Err(Error::new(ErrorKind::Other, "prepare the image", WRONG_EVENT)),
            }
        }
        .boxed()
    }

    fn documents<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Documents>> {
        async move {
            let settled = SettledRequest::of(request)?;
            let setup = Policy::of(&settled.image, &request.access).without_tier().setup();
            let job = job(Work::Documents, Path::new(""), request, &settled)?;
            match self.run(&setup, &job, &settled, |_| ()).await? {
                Event::Documents { digest, manifest, config, index_digest } => {
                    Ok(Documents { digest, manifest: manifest.into(), config: config.into(), index_digest })
                }
                _ => Err(Error::new(ErrorKind::Other, "request the image's documents", WRONG_EVENT)),
            }
        }
        .boxed()
    }
}

/// The hosts of an image, and of the index repositories in which it may have indexes.
struct SettledRequest {
    image: Settled,
    places: Vec<SettledPlace>,
}

struct SettledPlace {
    place: IndexPlace,
    access: Access,
    /// Or why it cannot be opened, which prevents no mount.
    settled: std::result::Result<Settled, String>,
}

impl SettledRequest {
    fn of(request: &ImageRequest) -> Result<Self> {
        let settle = |place: IndexPlace| {
            let access = places::access_to(&place.source, &request.source, &request.access);
            let settled = access::settle(&place.source, &access).map_err(|error| error.to_string());
            SettledPlace { settled, place, access }
        };
        let places = places::list(request)?.into_iter().map(settle).collect();
        Ok(Self { image: access::settle(&request.text, &request.access)?, places })
    }
}

impl SettledPlace {
    /// The place, whose credentials have this number.
    fn name(&self, number: u64) -> PlaceName {
        let name = |settled| ImageName::of(number, &self.place.source, settled, &self.access);
        PlaceName { place: self.place.clone(), name: self.settled.as_ref().map(name).map_err(|error| one_line(error)) }
    }
}

const WRONG_EVENT: &str = "the confined process answered another question";

/// The image made the worker end, or someone did.
fn ended(process: &Process, problem: &str) -> Error {
    let cause = format!("the confined process that prepares it has failed: {}; {problem}", process.end().how);
    Error::new(ErrorKind::Refused, "prepare the image", cause)
        .hint("if it ran out of memory, the image needs more than one image may use; otherwise try again")
}

fn job(work: Work, store: &Path, request: &ImageRequest, settled: &SettledRequest) -> Result<Job> {
    Ok(Job {
        work,
        store: store.to_owned(),
        image: ImageName::of(0, &request.text, &settled.image, &request.access),
        source: request.source.to_string(),
        platform: request.platform.to_string(),
        platform_named: request.platform_named,
        index: match &request.index {
            IndexChoice::None => IndexName::None,
            IndexChoice::Unset => IndexName::Unset,
            IndexChoice::Pinned(digest) => IndexName::Pinned(*digest),
            IndexChoice::Locked(lock) => {
                IndexName::Locked(lock.to_json().context(ErrorKind::Other, "pass on the index lock")?)
            }
            IndexChoice::Registry => IndexName::Registry,
            IndexChoice::Signed => IndexName::Signed,
        },
        places: (1..).zip(&settled.places).map(|(number, place)| place.name(number)).collect(),
        profile: request.profile.clone(),
        starts: request.starts,
        demands: Admission::of(&request.source, &request.access)?.demands().clone(),
        limits: request.limits,
    })
}

async fn begin(process: &Process, job: &Job) -> io::Result<UnixStream> {
    let mut channel = async_stream(process.open(Control::Job)?)?;
    let job = Zeroizing::new(encode_up_to(JOB_BYTES, job).map_err(io::Error::other)?);
    frames::send(&mut channel, Tag::Message, &job).await?;
    Ok(channel)
}
