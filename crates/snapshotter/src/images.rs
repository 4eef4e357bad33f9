//! [`Images`]: the engine functions that the snapshotter needs, and their implementation.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tarpon_engine::{
    Access, Admission, Backfill, Engine, ImageRequest, IndexChoice, ModeChoice, MountRequest, Prepared, Progress, Pull,
};
use tarpon_oci::{Digest, IndexRepo, Platform, Source};
use tokio::sync::Semaphore;

use crate::labels::PulledLayer;
use crate::record::LazyLayers;

/// Images that are prepared at the same time: each may be streamed, which takes memory.
const PREPARED_AT_ONCE: usize = 4;

/// A result with a one-line error.
pub(crate) type Outcome<T> = Result<T, String>;

/// Why no layers are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unprepared {
    /// Containerd must unpack the image, for this reason.
    Unpack(String),
    /// The image must not be used, for this reason.
    Forbidden(String),
}

impl From<String> for Unprepared {
    fn from(why: String) -> Self {
        Self::Unpack(why)
    }
}

/// Images whose layers can be mounted.
pub(crate) trait Images: Send + Sync + 'static {
    /// Prepares the image for mounting. Returns the chain IDs of its layers, lowest first, or the reason why there are none.
    fn prepare(&self, layer: PulledLayer) -> BoxFuture<'static, Result<Arc<[Digest]>, Unprepared>>;

    /// Mounts layers at `place`, unless they are mounted there already.
    fn mount(&self, layers: LazyLayers, place: PathBuf) -> BoxFuture<'static, Outcome<()>>;

    /// Unmounts `place`, if anything is mounted there.
    fn unmount(&self, place: PathBuf) -> BoxFuture<'static, Outcome<()>>;
}

/// How to handle images with layers whose files cannot be fetched one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainImages {
    /// Stream them into the store once, and mount them like all others.
    Stream,
    /// Let containerd pull and unpack them.
    Unpack,
}

/// How images are accessed and mounted.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Index that may replace missing tables of contents of layers.
    pub index: IndexChoice,
    /// Where indexes may be, besides the repositories of images.
    pub index_repos: Vec<IndexRepo>,
    /// The boot pack to use.
    pub profile: Option<String>,
    /// Credentials and certificates.
    pub access: Access,
    /// How images are mounted.
    pub mode: ModeChoice,
    /// Whether the rest of a mounted image is fetched in the background.
    pub backfill: Backfill,
    /// How to handle images that cannot be read in parts.
    pub plain: PlainImages,
    /// Whether each image is fetched whole and verified when it is pulled.
    pub whole: bool,
}

/// [`Images`] of an engine.
#[derive(Clone)]
pub(crate) struct EngineImages {
    engine: Engine,
    options: Arc<ImageOptions>,
    turns: Arc<Semaphore>,
}

impl EngineImages {
    pub(crate) fn new(engine: Engine, options: ImageOptions) -> Self {
        Self { engine, options: Arc::new(options), turns: Arc::new(Semaphore::new(PREPARED_AT_ONCE)) }
    }

    fn request(&self, text: &str) -> Outcome<ImageRequest> {
        let source: Source = text.parse().map_err(|error| format!("{text:?} is no image: {error}"))?;
        let ImageOptions { index, index_repos, profile, access, .. } = (*self.options).clone();
        let (text, platform, pull) = (text.to_owned(), Platform::host(), Pull::Missing);
        Ok(ImageRequest { text, source, platform, platform_named: false, pull, index, index_repos, profile, access })
    }

    /// Whether the policy demands signatures of the image. Containerd does not check them.
    fn must_be_accepted(&self, text: &str) -> Result<bool, Unprepared> {
        let request = self.request(text)?;
        let admission = Admission::of(&request.source, &request.access);
        admission
            .map(|known| known.demands().need_signatures())
            .map_err(|error| Unprepared::Forbidden(error.to_string()))
    }

    async fn prepare(&self, text: &str, manifest: Digest) -> Outcome<(ImageRequest, Prepared)> {
        let request = self.request(text)?;
        let prepared = self.engine.prepare(&request, &Logged(text)).await.map_err(|error| error.to_string())?;
        if *prepared.manifest() == manifest {
            Ok((request, prepared))
        } else {
            Err(format!("{text} is an index of images"))
        }
    }

    /// Whether containerd must unpack the image because some layer cannot be read in parts.
    async fn is_left_alone(&self, text: &str) -> Outcome<bool> {
        if self.options.plain == PlainImages::Stream {
            return Ok(false);
        }
        let found = self.engine.inspect(&self.request(text)?).await.map_err(|error| error.to_string())?;
        Ok(!found.in_store && found.layers.iter().any(|layer| !layer.lazy))
    }

    async fn chain(&self, layer: &PulledLayer) -> Outcome<Arc<[Digest]>> {
        let text = layer.image.to_string();
        if self.is_left_alone(&text).await? {
            return Err("a layer has no table of contents, and such images are to be unpacked".to_owned());
        }
        let (request, prepared) = self.prepare(&text, layer.manifest).await?;
        let prepared = self.verified(&request, prepared).await?;
        self.engine.chain_ids(&prepared).map(Arc::from).map_err(|error| error.to_string())
    }

    /// Fetches the whole image if the options require it and it is not verified: when it is pulled, or after an eviction.
    async fn verified(&self, request: &ImageRequest, prepared: Prepared) -> Outcome<Prepared> {
        if !self.options.whole || prepared.is_verified() {
            return Ok(prepared);
        }
        let record = self.engine.pull(request, &Logged(&request.text)).await.map_err(|error| error.to_string())?.record;
        let prepared = Prepared { record, ..prepared };
        if prepared.is_verified() {
            Ok(prepared)
        } else {
            Err("it was brought whole, and not all of it could be verified".to_owned())
        }
    }

    async fn mount(&self, layers: LazyLayers, place: PathBuf) -> Outcome<()> {
        let (request, prepared) = self.prepare(&layers.image, layers.manifest).await?;
        let prepared = self.verified(&request, prepared).await?;
        let failed = |error: tarpon_engine::Error| error.to_string();
        let whole = self.engine.chain_ids(&prepared).map_err(failed)?.len() == layers.count;
        let prepared = if whole {
            prepared
        } else {
            let logged = Logged(&layers.image);
            self.engine.lowest_layers(&request, &prepared, layers.count, &logged).await.map_err(failed)?
        };
        let mount = MountRequest {
            mode: self.options.mode,
            // Restrictions come from the mount above.
            suid: true,
            dev: true,
            // Also for some of the layers: we wrote the documents of that partial image, and the backfill fetches only layers of the image.
            backfill: self.options.backfill,
            ..MountRequest::for_image(&prepared, place)
        };
        let client = self.engine.client();
        let mounted = blocking(move || client.ensure_mounted(mount)).await?;
        for fallback in &mounted.fallbacks {
            tracing::warn!(image = layers.image, "{fallback}");
        }
        Ok(())
    }
}

impl Images for EngineImages {
    fn prepare(&self, layer: PulledLayer) -> BoxFuture<'static, Result<Arc<[Digest]>, Unprepared>> {
        let this = self.clone();
        async move {
            let _turn = this.turns.acquire().await.map_err(|error| error.to_string())?;
            let must_be_accepted = this.must_be_accepted(&layer.image.to_string())?;
            this.chain(&layer).await.map_err(|why| match must_be_accepted {
                true => Unprepared::Forbidden(why),
                false => Unprepared::Unpack(why),
            })
        }
        .boxed()
    }

    fn mount(&self, layers: LazyLayers, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        let this = self.clone();
        async move { Self::mount(&this, layers, place).await }.boxed()
    }

    fn unmount(&self, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        let client = self.engine.client();
        blocking(move || client.release(&place)).boxed()
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> tarpon_engine::Result<T> + Send + 'static) -> Outcome<T> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

/// Writes the progress of an image to the log.
struct Logged<'a>(&'a str);

impl Progress for Logged<'_> {
    fn note(&self, line: &str) {
        tracing::warn!(image = self.0, "{line}");
    }
}
