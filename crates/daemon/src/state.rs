//! State that all requests share: the engine, the jobs and the limits on concurrent work.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use tarpon_engine::oci::IndexRepo;
use tarpon_engine::{
    ContainerName, ContainerState, Engine, Flights, ImageRequest, MountChange, Observer, PolicyChoice, Prepared,
    TierLocation,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use crate::failure::Failure;
use crate::feed::{EventKind, Feed, FeedProgress};
use crate::flag;
use crate::image::{ImageSelection, resolves_each_time};
use crate::jobs::{JobEntry, JobOutcome, Jobs};
use crate::limits::{Permit, RequestLimits};

/// State that all requests share.
#[derive(Clone)]
pub(crate) struct ApiState(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) observer: Observer,
    pub(crate) keeper_command: Vec<OsString>,
    /// The OCI runtime where a request names none.
    pub(crate) runtime: Option<PathBuf>,
    /// Which images are accepted.
    pub(crate) policy: PolicyChoice,
    /// Where indexes of images may be.
    pub(crate) index_repos: Vec<IndexRepo>,
    /// Where hosts share layers.
    pub(crate) tier: Option<TierLocation>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) limits: RequestLimits,
    pub(crate) jobs: Jobs,
    pub(crate) began: Instant,
    /// Set when the daemon ends.
    pub(crate) stopping: watch::Sender<bool>,
    prepares: Flights<(ImageSelection, Purpose), Result<Prepared, Failure>>,
}

/// Purpose of a preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// To be available later.
    Later,
    /// To be mounted at once: fetching its boot pack begins.
    Mount,
}

impl std::ops::Deref for ApiState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl ApiState {
    pub(crate) fn new(
        engine: Engine,
        observer: Observer,
        keeper_command: Vec<OsString>,
        runtime: Option<PathBuf>,
        policy: PolicyChoice,
        index_repos: Vec<IndexRepo>,
        tier: Option<TierLocation>,
    ) -> Self {
        Self(Arc::new(Shared {
            engine,
            observer,
            keeper_command,
            runtime,
            policy,
            index_repos,
            tier,
            feed: Arc::default(),
            limits: RequestLimits::default(),
            jobs: Jobs::default(),
            began: Instant::now(),
            stopping: watch::Sender::new(false),
            prepares: Flights::default(),
        }))
    }

    /// Calls the engine on a thread that may block, usually for milliseconds. The call runs to its end even if the client disconnects.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Engine) -> tarpon_engine::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = self.limits.call().await?;
        self.call_from(permit, call).await
    }

    /// The same, with a permit that the caller already has.
    pub(crate) async fn call_from<T: Send + 'static>(
        &self,
        permit: Permit,
        call: impl FnOnce(&Engine) -> tarpon_engine::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let engine = self.engine.clone();
        let called = tokio::task::spawn_blocking(move || {
            let _until_done = permit;
            call(&engine)
        });
        Ok(called.await.map_err(|error| Failure::internal("serve the request", error))??)
    }

    /// Prepares an image for at most `time_limit`. Equal requests share one preparation, which continues as long as one of them waits.
    /// An image whose name must be resolved for each request is prepared alone. `request` is that of [`ApiState::admit`].
    pub(crate) async fn prepare(
        &self,
        selection: ImageSelection,
        request: ImageRequest,
        purpose: Purpose,
        time_limit: Duration,
    ) -> Result<Prepared, Failure> {
        let _waiting = self.limits.wait()?;
        let (state, image) = (self.clone(), selection.image.clone());
        let resolves_each_time = resolves_each_time(&request);
        let work = async move { state.prepare_alone(image, request, purpose).await }.boxed();
        // A joining request would get a name resolution that is older than the request.
        let flight = if resolves_each_time { work.shared() } else { self.prepares.join((selection, purpose), || work) };
        let late = |_| Failure::late("prepare the image", time_limit);
        tokio::time::timeout(time_limit, flight).await.map_err(late)?
    }

    /// The request to the engine, if the caller's credentials may be used with this store. Reads configuration files.
    pub(crate) async fn admit(&self, selection: &ImageSelection) -> Result<ImageRequest, Failure> {
        let wanted = selection.clone();
        let read = tokio::task::spawn_blocking(move || wanted.request());
        let mut request = read.await.map_err(|error| Failure::internal("read the request", error))??;
        request.access.policy = self.policy.clone();
        request.access.tier.clone_from(&self.tier);
        request.index_repos.clone_from(&self.index_repos);
        if selection.has_credentials() {
            self.call(Engine::admit_credentials).await?;
        }
        Ok(request)
    }

    async fn prepare_alone(self, image: String, request: ImageRequest, purpose: Purpose) -> Result<Prepared, Failure> {
        let _turn = self.limits.prepare().await;
        self.feed.publish(EventKind::Preparing { image: image.clone() });
        let progress = FeedProgress::new(self.feed.clone(), image.clone());
        let prepared = match purpose {
            Purpose::Later => self.engine.prepare(&request, &progress).await,
            Purpose::Mount => self.engine.prepare_to_mount(&request, &progress).await,
        };
        let prepared = prepared.map_err(Failure::from);
        self.publish_prepared(image, prepared.as_ref().map(|prepared| prepared.manifest().to_string()));
        prepared
    }

    /// Sends the result of a preparation to the feed.
    pub(crate) fn publish_prepared(&self, image: String, outcome: Result<String, &Failure>) {
        self.feed.publish(match outcome {
            Ok(manifest) => EventKind::Prepared { image, manifest },
            Err(failure) => EventKind::NotPrepared { image, failure: failure.clone() },
        });
    }

    /// Forwards the server's events until the server or the daemon ends.
    pub(crate) async fn publish_mounts(self) {
        let mut stopping = self.stopping.subscribe();
        let found = tokio::select! {
            found = self.observer.changes() => found,
            () = flag::set(&mut stopping) => return,
        };
        let Some(mut changes) = found else { return };
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = flag::set(&mut stopping) => return,
            };
            match change {
                Ok(change) => self.publish_mount(change).await,
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!("{missed} mount events were dropped")
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn publish_mount(&self, change: MountChange) {
        let MountChange { mountpoint, image, manifest, is_mounted } = change;
        let container = self.container_at(&mountpoint).filter(|_| !is_mounted);
        let (mountpoint, manifest) = (mountpoint.to_string_lossy().into_owned(), manifest.to_string());
        self.feed.publish(match is_mounted {
            true => EventKind::Mounted { mountpoint, image, manifest },
            false => EventKind::Unmounted { mountpoint, image, manifest },
        });
        if let Some(name) = container {
            let ended = name.clone();
            let known = self.call(move |engine| engine.containers()).await.unwrap_or_default();
            let known = known.into_iter().find(|container| container.name == ended);
            let exit_code = known.and_then(|container| match container.record.ok()?.state {
                ContainerState::Exited { code, .. } => code,
                _ => None,
            });
            self.feed.publish(EventKind::ContainerEnded { name: name.to_string(), exit_code });
        }
    }

    /// The container whose image was mounted there: it is unmounted once the container has ended and its end is recorded.
    fn container_at(&self, mountpoint: &std::path::Path) -> Option<ContainerName> {
        let below = mountpoint.strip_prefix(self.engine.store().containers_folder()).ok()?;
        below.components().next()?.as_os_str().to_str()?.parse().ok()
    }
}

/// A job in progress. Dropping it ends the job for any reason, so that no caller waits for a task that panicked.
pub(crate) struct RunningJob {
    feed: Arc<Feed>,
    entry: Arc<JobEntry>,
}

impl RunningJob {
    pub(crate) fn new(feed: Arc<Feed>, entry: Arc<JobEntry>) -> Self {
        Self { feed, entry }
    }

    /// Ends the job and sends the event.
    pub(crate) fn end(self, outcome: Result<JobOutcome, Failure>) {
        self.note(outcome);
    }

    fn note(&self, outcome: Result<JobOutcome, Failure>) {
        let state = self.entry.end(outcome);
        self.feed.publish(EventKind::JobEnded { id: self.entry.job().id, state });
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if self.entry.is_running() {
            self.note(Err(Failure::internal("run the job", "its task ended without a result; see the log")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{JobKind, JobState};
    use tarpon_engine::oci::Digest;

    #[tokio::test]
    async fn a_job_whose_task_panics_has_failed() {
        let jobs = Jobs::default();
        let entry = jobs.begin(JobKind::Prefetch, "app".to_owned()).unwrap();
        let work = RunningJob::new(Arc::default(), entry.clone());
        let task = tokio::spawn(async move {
            let _work = work;
            panic!("on purpose");
        });
        assert!(task.await.is_err());
        assert_eq!(entry.job().state, JobState::Failed);
        let entry = jobs.begin(JobKind::Prefetch, "app".to_owned()).unwrap();
        let outcome = JobOutcome { fetched_bytes: Some(7), ..JobOutcome::of(&Digest::of(b"manifest")) };
        RunningJob::new(Arc::default(), entry.clone()).end(Ok(outcome));
        assert_eq!(entry.job().state, JobState::Done);
    }
}
