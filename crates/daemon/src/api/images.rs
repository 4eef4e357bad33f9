//! `/v1/images`.

use std::num::NonZeroU64;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tarpon_engine::store::{ImageRecord, LayerRecord};
use tarpon_engine::{Error, ErrorKind, ImageRequest, LayerLimits, PrefetchExtent};
use utoipa::ToSchema;

use super::extract::{JsonBody, time_limit};
use crate::answer::{Answer, found};
use crate::failure::Failure;
use crate::feed::EventKind;
use crate::feed::FeedProgress;
use crate::image::{ImageOptions, ImageSelection};
use crate::jobs::{Job, JobKind, JobOutcome};
use crate::state::{ApiState, Purpose, RunningJob};

/// Minimum rate, as of `tarpon prefetch --rate`: at less, a job would take a turn for days.
const MIN_RATE: u64 = 64 << 10;

/// An image in the store.
#[derive(Serialize, ToSchema)]
pub(super) struct Image {
    /// Digest of its manifest.
    manifest: String,
    /// Names that resolved to it, oldest first.
    references: Vec<String>,
    /// Its platform, as OS/ARCH[/VARIANT].
    platform: String,
    /// Compressed bytes of all layers.
    size: u64,
    /// Its layers, lowest first.
    layers: Vec<Layer>,
    /// Creation time of its record, in seconds since 1970.
    created: u64,
    /// Time of last use, in seconds since 1970.
    last_used: u64,
}

/// A layer of an image.
#[derive(Serialize, ToSchema)]
pub(super) struct Layer {
    /// Digest of its blob.
    digest: String,
    /// Bytes of its blob.
    size: u64,
    /// How it is read: `estargz`, `zstd:chunked`, `tar+gzip`, …
    format: String,
    /// How it was verified against the manifest: `diffID-verified`, `toc-verified`, …
    verification: String,
}

impl From<ImageRecord> for Image {
    fn from(record: ImageRecord) -> Self {
        let layer = |layer: &LayerRecord| Layer {
            digest: layer.digest.to_string(),
            size: layer.size,
            format: layer.format.to_string(),
            verification: layer.verification.to_string(),
        };
        Self {
            manifest: record.manifest.to_string(),
            size: record.compressed_size(),
            layers: record.layers.iter().map(layer).collect(),
            references: record.references,
            platform: record.platform,
            created: record.created,
            last_used: record.last_used,
        }
    }
}

/// An image to prepare.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PrepareBody {
    /// The image: NAME[:TAG|@DIGEST], or `oci:`, `oci-archive:`, `docker-archive:` and an absolute path.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// Seconds to wait for the image, 1 to 3600. Default: 600.
    timeout_seconds: Option<u32>,
}

/// A prepared image.
#[derive(Serialize, ToSchema)]
pub(super) struct Prepared {
    /// Its record in the store.
    image: Image,
    /// Features that fell back to a slower form, one line each.
    fallbacks: Vec<String>,
}

/// How much of an image is fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Extent {
    /// The whole image, as by `tarpon pull`.
    #[default]
    All,
    /// What a start needs, as by `tarpon prefetch`: the record, and the boot pack, or what earlier starts read, or what the image's author marked.
    Start,
    /// As `start`, and the image is refused if layers would have to be streamed, as by `tarpon prefetch --pack-only`.
    PackOnly,
}

impl From<Extent> for PrefetchExtent {
    fn from(extent: Extent) -> Self {
        match extent {
            Extent::All => Self::Whole,
            Extent::Start => Self::Start,
            Extent::PackOnly => Self::StartOnly,
        }
    }
}

/// An image to fetch before it is used.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PrefetchBody {
    /// The image.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// How much of it is fetched. Default: `all`.
    #[serde(default)]
    extent: Extent,
    /// Maximum rate in bytes per second of boot packs and layers, at least 65536. Default: unlimited.
    #[schema(minimum = 65536)]
    rate: Option<u64>,
}

impl PrefetchBody {
    fn rate(&self) -> Result<Option<NonZeroU64>, Failure> {
        let Some(rate) = self.rate else { return Ok(None) };
        let enough = NonZeroU64::new(rate).filter(|rate| rate.get() >= MIN_RATE);
        let cause = || format!("a rate is at least {MIN_RATE} bytes per second, not {rate}");
        enough.map(Some).ok_or_else(|| Failure::invalid("read the request", cause()))
    }
}

/// Lists the images in the store.
#[utoipa::path(get, path = "/v1/images", tag = "images", operation_id = "listImages", responses(
    (status = 200, description = "All images", body = [Image]),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn list(State(state): State<ApiState>) -> Result<Answer<Vec<Image>>, Failure> {
    let images = state
        .call(|engine| engine.store().images().map_err(|error| Error::new(ErrorKind::Store, "list the images", error)));
    Ok(found(images.await?.into_iter().map(Image::from).collect()))
}

/// Prepares an image: fetches tables of contents, and streams layers that have none. Does not mount the image.
#[utoipa::path(post, path = "/v1/images/prepare", tag = "images", operation_id = "prepareImage", request_body = PrepareBody, responses(
    (status = 200, description = "The image is prepared", body = Prepared),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn prepare(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<PrepareBody>,
) -> Result<Answer<Prepared>, Failure> {
    let time_limit = time_limit(body.timeout_seconds)?;
    let selection = ImageSelection::new(body.image, body.image_options);
    let admitted = state.admit(&selection).await?;
    let prepared = state.prepare(selection, admitted, Purpose::Later, time_limit).await?;
    Ok(found(Prepared { image: prepared.record.into(), fallbacks: prepared.fallbacks }))
}

/// Starts to fetch an image: all of it, as `tarpon pull` does, or what a start needs, as `tarpon prefetch` does. A tag is resolved again.
/// Returns the job.
#[utoipa::path(post, path = "/v1/images/prefetch", tag = "images", operation_id = "prefetchImage", request_body = PrefetchBody, responses(
    (status = 202, description = "The job has started", body = Job),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn prefetch(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<PrefetchBody>,
) -> Result<Answer<Job>, Failure> {
    let (rate, extent) = (body.rate()?, body.extent.into());
    let selection = ImageSelection::new(body.image, body.image_options);
    // Invalid requests fail at once.
    let request = state.admit(&selection).await?;
    let entry = state.jobs.begin(JobKind::Prefetch, selection.image.clone())?;
    let job = entry.job();
    let work = RunningJob::new(state.feed.clone(), entry.clone());
    tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = bring(&state, &selection.image, request, extent, rate) => outcome,
            () = entry.cancelled() => Err(Failure::cancelled("prefetch the image")),
        };
        work.end(outcome);
    });
    Ok(Answer(StatusCode::ACCEPTED, job))
}

async fn bring(
    state: &ApiState,
    image: &str,
    request: ImageRequest,
    extent: PrefetchExtent,
    rate: Option<NonZeroU64>,
) -> Result<JobOutcome, Failure> {
    let request = ImageRequest { limits: LayerLimits { rate, ..request.limits }, ..request };
    let _turn = match extent {
        PrefetchExtent::Whole => state.limits.pull().await,
        PrefetchExtent::Start | PrefetchExtent::StartOnly => state.limits.start().await,
    };
    state.feed.publish(EventKind::Preparing { image: image.to_owned() });
    let progress = FeedProgress::new(state.feed.clone(), image.to_owned());
    let prefetched = state.engine.prefetch(&request, extent, &progress).await?;
    if let Some(error) = prefetched.lacks() {
        return Err(error.into());
    }
    Ok(JobOutcome {
        content: prefetched.start.as_ref().map(|start| start.kind.name()),
        content_bytes: prefetched.start.as_ref().map(|start| start.wanted),
        fetched_bytes: Some(prefetched.fetched.bytes),
        ..JobOutcome::of(&prefetched.record.manifest)
    })
}
