//! `/v1/images`.

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tarpon_engine::store::{ImageRecord, LayerRecord};
use tarpon_engine::{Error, ErrorKind, Pulled};
use utoipa::ToSchema;

use super::extract::{JsonBody, time_limit};
use crate::answer::{Answer, found};
use crate::failure::Failure;
use crate::feed::EventKind;
use crate::feed::FeedProgress;
use crate::image::{ImageOptions, ImageSelection};
use crate::jobs::{Job, JobKind, JobOutcome};
use crate::state::{ApiState, Purpose, RunningJob};

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

/// An image to fetch completely.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PrefetchBody {
    /// The image.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
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
    let prepared = state.prepare(selection, Purpose::Later, time_limit).await?;
    Ok(found(Prepared { image: prepared.record.into(), fallbacks: prepared.fallbacks }))
}

/// Starts to fetch and verify a whole image, as `tarpon pull` does. Returns the job.
#[utoipa::path(post, path = "/v1/images/prefetch", tag = "images", operation_id = "prefetchImage", request_body = PrefetchBody, responses(
    (status = 202, description = "The job has started", body = Job),
    (status = "default", description = "The request failed", body = Failure),
))]
pub(super) async fn prefetch(
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<PrefetchBody>,
) -> Result<Answer<Job>, Failure> {
    let selection = ImageSelection::new(body.image, body.image_options);
    // Invalid requests fail at once.
    selection.request()?;
    let entry = state.jobs.begin(JobKind::Prefetch, selection.image.clone())?;
    let job = entry.job();
    let work = RunningJob::new(state.feed.clone(), entry.clone());
    tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = pull(&state, &selection) => outcome,
            () = entry.cancelled() => Err(Failure::cancelled("pull the image")),
        };
        work.end(outcome);
    });
    Ok(Answer(StatusCode::ACCEPTED, job))
}

async fn pull(state: &ApiState, selection: &ImageSelection) -> Result<JobOutcome, Failure> {
    let request = state.admit(selection).await?;
    let _turn = state.limits.pull().await;
    state.feed.publish(EventKind::Preparing { image: selection.image.clone() });
    let Pulled { record, fetched } =
        state.engine.pull(&request, &FeedProgress::new(state.feed.clone(), selection.image.clone())).await?;
    Ok(JobOutcome {
        manifest: record.manifest.to_string(),
        fetched_bytes: Some(fetched.bytes),
        touches: None,
        exit_code: None,
    })
}
