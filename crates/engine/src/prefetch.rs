//! Fetching images before they are started.

use std::sync::atomic::{AtomicBool, Ordering};

use tarpon_client::protocol::{BroughtStart, StartKind, StartRequest};
use tarpon_images::{
    Error, ErrorKind, ImageRequest, LayerLimits, LayerPlan, LayerWay, Prepared, Progress, Pull, Pulled, Result,
    ResultExt as _,
};
use tarpon_oci::{Digest, Source};
use tarpon_registry::Stats;
use tarpon_server::StartBringer;
use tarpon_store::{ImageRecord, Store};

use crate::engine::Engine;

/// How much of an image is fetched before it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefetchExtent {
    /// What a mount would fetch without a reader: the record, for which layers without a table of contents are streamed, and the boot pack, or
    /// what earlier starts read, or what the image's author marked.
    Start,
    /// Of that only the record, if no layer has to be streamed for it, and the boot pack, or what earlier starts read.
    StartOnly,
    /// Everything, as [`Engine::pull`] does.
    Whole,
}

/// An image that was fetched before it is started.
#[derive(Debug, Clone)]
pub struct Prefetched {
    /// Its record.
    pub record: ImageRecord,
    /// Requests to its sources, and bytes received.
    pub fetched: Stats,
    /// What the store has of what its start needs. `None`: it has the whole image.
    pub start: Option<BroughtStart>,
    /// Whether anything of it was missing.
    pub is_new: bool,
}

impl Prefetched {
    /// The failure if something that was to be fetched is still missing.
    pub fn lacks(&self) -> Option<Error> {
        let BroughtStart { kind, wanted, missing, problem, refused, .. } =
            self.start.as_ref().filter(|start| start.missing > 0)?;
        let what = if *kind == StartKind::BootPack { "its boot pack" } else { "what its start needs" };
        let why = problem.as_ref().map_or_else(String::new, |problem| format!(": {problem}"));
        let kind = if *refused { ErrorKind::Store } else { ErrorKind::Unavailable };
        Some(Error::new(kind, format!("fetch {what}"), format!("{missing} of {wanted} bytes are missing{why}")))
    }
}

/// Notices whether layers are fetched, or described again.
struct Watched<'p> {
    progress: &'p dyn Progress,
    is_new: AtomicBool,
}

impl Progress for Watched<'_> {
    fn resolved(&self, manifest: &Digest, layers: &[LayerPlan]) {
        if layers.iter().any(|layer| layer.way != LayerWay::Local) {
            self.is_new.store(true, Ordering::Relaxed);
        }
        self.progress.resolved(manifest, layers);
    }

    fn received(&self, layer: usize, bytes: u64) {
        self.progress.received(layer, bytes);
    }

    fn layer_done(&self, layer: usize) {
        self.progress.layer_done(layer);
    }

    fn start_requested(&self, requested: u64, missing: u64) {
        self.progress.start_requested(requested, missing);
    }

    fn note(&self, line: &str) {
        self.progress.note(line);
    }
}

impl Engine {
    /// Fetches an image into the store, so that its next start waits for less. Resolves its name again, unless the request forbids that. What
    /// is in the store is not fetched again, and counts as used now. The rate of the request's limits applies to everything that is large.
    ///
    /// # Errors
    /// Those of [`Engine::prepare`] or [`Engine::pull`]. What a start needs and its source does not provide is no error but missing.
    pub async fn prefetch(
        &self,
        request: &ImageRequest,
        extent: PrefetchExtent,
        progress: &dyn Progress,
    ) -> Result<Prefetched> {
        let progress = Watched { progress, is_new: AtomicBool::new(false) };
        if extent == PrefetchExtent::Whole {
            let Pulled { record, fetched } = self.pull(request, &progress).await?;
            self.note_use(request, &record)?;
            return Ok(Prefetched { record, fetched, start: None, is_new: progress.is_new.into_inner() });
        }
        let limits = LayerLimits { may_stream: extent == PrefetchExtent::Start, ..request.limits };
        let request = ImageRequest { limits, pull: resolving(request), ..request.clone() };
        let prepared = self.prepare(&request, &progress).await?;
        let store = self.note_use(&request, &prepared.record)?;
        let start = self.bring_start(store, &request, extent, &prepared, &progress).await?;
        let fetched = prepared.fetched + Stats { requests: start.requests, bytes: start.bytes };
        let is_new = progress.is_new.into_inner() || start.missing_before > 0;
        Ok(Prefetched { record: prepared.record, fetched, start: Some(start), is_new })
    }

    /// Makes the image the last that eviction removes. Returns the part of the store that has it.
    fn note_use(&self, request: &ImageRequest, record: &ImageRecord) -> Result<Store> {
        let images = self.images().for_image(&request.text, &request.access)?;
        let noted = images.store().touch_image(&record.manifest);
        noted.context(ErrorKind::Store, "note the use of the image")?;
        Ok(images.store().clone())
    }

    /// Has the running server fetch what the start needs, or fetches it here if none runs.
    async fn bring_start(
        &self,
        store: Store,
        request: &ImageRequest,
        extent: PrefetchExtent,
        prepared: &Prepared,
        progress: &dyn Progress,
    ) -> Result<BroughtStart> {
        let wanted = StartRequest {
            image: prepared.text.clone(),
            manifest: prepared.record.manifest,
            access: prepared.access.clone(),
            index_places: prepared.index_places.clone(),
            rate: request.limits.rate,
            landmarks: extent == PrefetchExtent::Start,
        };
        let report = |requested, missing| progress.start_requested(requested, missing);
        match self.client().bring_start(wanted.clone(), &report).await? {
            Some(brought) => Ok(brought),
            None => StartBringer::new(store, self.sources().clone()).bring(&wanted, &report).await,
        }
    }
}

/// When to resolve the name: a tag may refer to another image since it was resolved; a digest does not.
fn resolving(request: &ImageRequest) -> Pull {
    match (&request.source, request.pull) {
        (Source::Registry(reference), Pull::Missing) if reference.digest().is_none() => Pull::Always,
        (_, pull) => pull,
    }
}
