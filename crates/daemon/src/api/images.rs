//! `/v1/images`.

use axum::extract::State as With;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tarpon_engine::store::{ImageRecord, LayerRecord};
use tarpon_engine::{Error, ErrorKind, Pulled};
use utoipa::ToSchema;

use super::Failure;
use super::answer::{Answer, found};
use super::image::{ImageOptions, ImageWish};
use super::said::{Said, patience};
use crate::feed::What;
use crate::jobs::{Job, Kind, Outcome, UnderWay};
use crate::progress::Told;
use crate::state::{For, State};

/// An image in the store.
#[derive(Serialize, ToSchema)]
pub(super) struct Image {
    /// Digest of its manifest.
    manifest: String,
    /// Names that it was found under, oldest first.
    references: Vec<String>,
    /// Its platform, as OS/ARCH[/VARIANT].
    platform: String,
    /// Compressed bytes of all layers.
    size: u64,
    /// Its layers, lowest first.
    layers: Vec<Layer>,
    /// When its record was made, in seconds since 1970.
    created: u64,
    /// When it was used last, in seconds since 1970.
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
    /// How far it was checked against the manifest: `diffID-verified`, `toc-verified`, …
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

/// An image to be made ready.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PrepareWish {
    /// The image: NAME[:TAG|@DIGEST], or `oci:`, `oci-archive:`, `docker-archive:` and an absolute path.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
    /// How long to wait for it, 1 to 3600; else 600.
    timeout_seconds: Option<u32>,
}

/// An image that is ready to be mounted.
#[derive(Serialize, ToSchema)]
pub(super) struct Prepared {
    /// It, as the store knows it.
    image: Image,
    /// What fell back to a slower way, in one line each.
    fallbacks: Vec<String>,
}

/// An image to be brought whole.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PrefetchWish {
    /// The image.
    #[schema(example = "docker.io/library/alpine:3.20")]
    image: String,
    #[serde(default)]
    image_options: ImageOptions,
}

/// Lists the images in the store.
#[utoipa::path(get, path = "/v1/images", tag = "images", operation_id = "listImages", responses(
    (status = 200, description = "All of them", body = [Image]),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn list(With(state): With<State>) -> Result<Answer<Vec<Image>>, Failure> {
    let images = state
        .call(|engine| engine.store().images().map_err(|error| Error::new(ErrorKind::Store, "list the images", error)));
    Ok(found(images.await?.into_iter().map(Image::from).collect()))
}

/// Makes an image ready to be mounted: tables of contents are fetched, layers without one streamed. Nothing is mounted.
#[utoipa::path(post, path = "/v1/images/prepare", tag = "images", operation_id = "prepareImage", request_body = PrepareWish, responses(
    (status = 200, description = "It is ready", body = Prepared),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn prepare(
    With(state): With<State>,
    Said(wish): Said<PrepareWish>,
) -> Result<Answer<Prepared>, Failure> {
    let patience = patience(wish.timeout_seconds)?;
    let wish = ImageWish::new(wish.image, wish.image_options);
    let prepared = state.prepare(wish, For::Later, patience).await?;
    Ok(found(Prepared { image: prepared.record.into(), fallbacks: prepared.fallbacks }))
}

/// Begins to bring an image whole, and to verify all of it, as `tarpon pull` does. Answers with the job that does so.
#[utoipa::path(post, path = "/v1/images/prefetch", tag = "images", operation_id = "prefetchImage", request_body = PrefetchWish, responses(
    (status = 202, description = "It has begun", body = Job),
    (status = "default", description = "It failed", body = Failure),
))]
pub(super) async fn prefetch(With(state): With<State>, Said(wish): Said<PrefetchWish>) -> Result<Answer<Job>, Failure> {
    let wish = ImageWish::new(wish.image, wish.image_options);
    // Invalid requests fail at once.
    wish.request()?;
    let entry = state.jobs.begin(Kind::Prefetch, wish.image.clone())?;
    let job = entry.job();
    let work = UnderWay::new(state.feed.clone(), entry.clone());
    tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = pull(&state, &wish) => outcome,
            () = entry.cancelled() => Err(Failure::cancelled("pull the image")),
        };
        work.end(outcome);
    });
    Ok(Answer(StatusCode::ACCEPTED, job))
}

async fn pull(state: &State, wish: &ImageWish) -> Result<Outcome, Failure> {
    let request = state.admit(wish).await?;
    let _turn = state.gates.pull().await;
    state.feed.tell(What::Preparing { image: wish.image.clone() });
    let Pulled { record, fetched } =
        state.engine.pull(&request, &Told::new(state.feed.clone(), wish.image.clone())).await?;
    Ok(Outcome {
        manifest: record.manifest.to_string(),
        fetched_bytes: Some(fetched.bytes),
        touches: None,
        exit_code: None,
    })
}
