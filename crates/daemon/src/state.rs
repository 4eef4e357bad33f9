//! State that all requests share: the engine, the jobs and the limits on concurrent work.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use tarpon_engine::{ContainerName, ContainerState, Engine, Flights, ImageRequest, MountChange, Observer, Prepared};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use crate::api::{Failure, ImageWish};
use crate::feed::{Feed, What};
use crate::flag;
use crate::gates::{Gates, Place};
use crate::jobs::Jobs;
use crate::progress::Told;

/// State that all requests share.
#[derive(Clone)]
pub(crate) struct State(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) observer: Observer,
    pub(crate) keeper_command: Vec<OsString>,
    /// The OCI runtime where a request names none.
    pub(crate) runtime: Option<PathBuf>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) gates: Gates,
    pub(crate) jobs: Jobs,
    pub(crate) began: Instant,
    /// Set when the daemon ends.
    pub(crate) stopping: watch::Sender<bool>,
    prepares: Flights<(ImageWish, For), Result<Prepared, Failure>>,
}

/// Purpose of a preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum For {
    /// To be available later.
    Later,
    /// To be mounted at once: fetching its boot pack begins.
    Mount,
}

impl std::ops::Deref for State {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl State {
    pub(crate) fn new(
        engine: Engine,
        observer: Observer,
        keeper_command: Vec<OsString>,
        runtime: Option<PathBuf>,
    ) -> Self {
        Self(Arc::new(Shared {
            engine,
            observer,
            keeper_command,
            runtime,
            feed: Arc::default(),
            gates: Gates::default(),
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
        let place = self.gates.call().await?;
        self.call_from(place, call).await
    }

    /// The same, with a permit that the caller already has.
    pub(crate) async fn call_from<T: Send + 'static>(
        &self,
        place: Place,
        call: impl FnOnce(&Engine) -> tarpon_engine::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let engine = self.engine.clone();
        let called = tokio::task::spawn_blocking(move || {
            let _until_done = place;
            call(&engine)
        });
        Ok(called.await.map_err(|error| Failure::of_us("serve the request", error))??)
    }

    /// Prepares an image for at most `patience`. Equal requests share one preparation, which continues as long as one of them waits.
    /// An image whose name must be resolved for each request is prepared alone.
    pub(crate) async fn prepare(
        &self,
        wish: ImageWish,
        what_for: For,
        patience: Duration,
    ) -> Result<Prepared, Failure> {
        let _waiting = self.gates.wait()?;
        let (state, wanted) = (self.clone(), wish.clone());
        let work = async move { state.prepare_alone(wanted, what_for).await }.boxed();
        // A joining request would get a name resolution that is older than the request.
        let flight = if wish.asks_anew()? { work.shared() } else { self.prepares.join((wish, what_for), || work) };
        let late = |_| Failure::late("prepare the image", patience);
        tokio::time::timeout(patience, flight).await.map_err(late)?
    }

    /// The request to the engine, if the caller's credentials may be used with this store.
    pub(crate) async fn admit(&self, wish: &ImageWish) -> Result<ImageRequest, Failure> {
        let request = wish.request()?;
        if wish.has_credentials() {
            self.call(Engine::admit_credentials).await?;
        }
        Ok(request)
    }

    async fn prepare_alone(self, wish: ImageWish, what_for: For) -> Result<Prepared, Failure> {
        let request = self.admit(&wish).await?;
        let _turn = self.gates.prepare().await;
        self.feed.tell(What::Preparing { image: wish.image.clone() });
        let progress = Told::new(self.feed.clone(), wish.image.clone());
        let prepared = match what_for {
            For::Later => self.engine.prepare(&request, &progress).await,
            For::Mount => self.engine.prepare_to_mount(&request, &progress).await,
        };
        let prepared = prepared.map_err(Failure::from);
        self.tell_prepared(wish.image, prepared.as_ref().map(|prepared| prepared.manifest().to_string()));
        prepared
    }

    /// Sends the result of a preparation to the feed.
    pub(crate) fn tell_prepared(&self, image: String, outcome: Result<String, &Failure>) {
        self.feed.tell(match outcome {
            Ok(manifest) => What::Prepared { image, manifest },
            Err(failure) => What::NotPrepared { image, failure: failure.clone() },
        });
    }

    /// Forwards the server's events until the server or the daemon ends.
    pub(crate) async fn tell_mounts(self) {
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
                Ok(change) => self.tell_mount(change).await,
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!("{missed} mounts were made or went too fast to be told")
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn tell_mount(&self, change: MountChange) {
        let MountChange { mountpoint, image, manifest, is_mounted } = change;
        let container = self.container_at(&mountpoint).filter(|_| !is_mounted);
        let (mountpoint, manifest) = (mountpoint.to_string_lossy().into_owned(), manifest.to_string());
        self.feed.tell(match is_mounted {
            true => What::Mounted { mountpoint, image, manifest },
            false => What::Unmounted { mountpoint, image, manifest },
        });
        if let Some(name) = container {
            let ended = name.clone();
            let known = self.call(move |engine| engine.containers()).await.unwrap_or_default();
            let known = known.into_iter().find(|container| container.name == ended);
            let exit_code = known.and_then(|container| match container.record.ok()?.state {
                ContainerState::Exited { code, .. } => code,
                _ => None,
            });
            self.feed.tell(What::ContainerEnded { name: name.to_string(), exit_code });
        }
    }

    /// The container whose image was mounted there: it is unmounted once the container has ended and its end is recorded.
    fn container_at(&self, mountpoint: &std::path::Path) -> Option<ContainerName> {
        let below = mountpoint.strip_prefix(self.engine.store().containers_folder()).ok()?;
        below.components().next()?.as_os_str().to_str()?.parse().ok()
    }
}
