//! An image in another format: every layer rewritten as eStargz or zstd:chunked on its way from source to destination.
//!
//! ```text
//! choose    what the source names: manifests and configs, all checked
//! layers    whether each layer is copied or rewritten, and the work, several at once
//!   rewrite   download | check | decode | check | write | upload, for one layer
//! document  configs, manifests and the index that name the result
//! toc_image the tables of contents of eStargz layers that keep their diffID
//! ```
//!
//! Blobs go up first. A manifest and its tag follow once everything that they name was checked and uploaded; a conversion that fails or is
//! dropped leaves neither.

mod choose;
mod document;
mod layers;
mod report;
mod rewrite;
mod toc_image;

use std::sync::Arc;

use bytes::Bytes;
use tarpon_images::Access;
use tarpon_images::access;
use tarpon_images::progress::Progress;
use tarpon_layer::LayerPath;
use tarpon_layer::toc::Format;
use tarpon_layer::write::{DEFAULT_ESTARGZ_CHUNK_BYTES, DEFAULT_GZIP_LEVEL, DEFAULT_ZSTD_LEVEL};
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Platform, Source};
use tarpon_registry::Destination;

use crate::{Error, ErrorKind, Result};
use choose::Chosen;
use layers::NewLayer;
pub use report::{Conversion, ConvertedImage, ConvertedLayer, Outcome, TocImage};
use rewrite::Recipe;

/// Default number of layers converted at once: enough to keep a link busy while one of them compresses.
const DEFAULT_JOBS: usize = 3;
/// Maximum number of layers converted at once. Each takes up to 50 MiB for data between its stages and for retries of its upload, and 10
/// MiB for each of its compressing threads, besides its table of contents.
pub const MAX_CONVERT_JOBS: usize = 32;

/// A request to convert.
#[derive(Debug, Clone)]
pub struct ConvertRequest {
    /// The image, as the user wrote it.
    pub source: String,
    /// Access to the source.
    pub source_access: Access,
    /// The destination, as the user wrote it: a registry or an OCI layout, with a tag.
    pub destination: String,
    /// Access to the destination.
    pub destination_access: Access,
    /// Format of the layers.
    pub format: Format,
    /// Which images of an index.
    pub platforms: Platforms,
    /// Level of gzip (0 to 9) or zstd (1 to 22); `None`: the format's default.
    pub level: Option<u8>,
    /// Layers at once, at most [`MAX_CONVERT_JOBS`]; `None`: a few.
    pub jobs: Option<usize>,
    /// Layers keep their diffIDs, and the image its config. For eStargz, tables of contents then go into an image of their
    /// own, beside the result. zstd:chunked never changes them.
    pub keep_diff_id: bool,
    /// Paths that come first in their layers, in this order: any bytes, with or without a leading slash. eStargz only. Rewrites
    /// layers that are eStargz already.
    pub prioritised: Vec<Vec<u8>>,
    /// Rewrites layers that are already in the format.
    pub force: bool,
}

/// Which images of an index are converted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Platforms {
    /// The one for this machine, which becomes a single manifest.
    #[default]
    Host,
    /// Those for these platforms: a single manifest if it is one, else an index.
    These(Vec<Platform>),
    /// All, as an index.
    All,
}

impl ConvertRequest {
    /// A conversion of `source` to `destination` for this machine's platform, with defaults for everything else.
    pub fn new(source: impl Into<String>, destination: impl Into<String>, format: Format) -> Self {
        Self {
            source: source.into(),
            source_access: Access::default(),
            destination: destination.into(),
            destination_access: Access::default(),
            format,
            platforms: Platforms::Host,
            level: None,
            jobs: None,
            keep_diff_id: false,
            prioritised: Vec::new(),
            force: false,
        }
    }

    fn jobs(&self) -> usize {
        self.jobs.unwrap_or(DEFAULT_JOBS).clamp(1, MAX_CONVERT_JOBS)
    }

    /// How layers are written.
    fn recipe(&self) -> Result<Recipe> {
        let wrong = |cause: String| Error::new(ErrorKind::Other, "read the options", cause);
        if self.format == Format::ZstdChunked && !self.prioritised.is_empty() {
            return Err(wrong("zstd:chunked has no order of priority: it goes with eStargz only".into()));
        }
        if self.keep_diff_id && !self.prioritised.is_empty() {
            return Err(wrong("files cannot come first in layers that keep their diffID".into()));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / self.jobs()).max(1);
        Ok(match self.format {
            Format::ZstdChunked => Recipe::ZstdChunked(tarpon_layer::write::ZstdChunkedOptions {
                level: self.level.map_or(DEFAULT_ZSTD_LEVEL, i32::from),
                threads,
            }),
            Format::Estargz => Recipe::Estargz {
                options: tarpon_layer::write::EstargzOptions {
                    chunk_bytes: DEFAULT_ESTARGZ_CHUNK_BYTES,
                    level: self.level.map_or(DEFAULT_GZIP_LEVEL, u32::from),
                    threads,
                    keep_diff_id: self.keep_diff_id,
                },
                prioritised: self.prioritised.iter().map(|path| priority(path)).collect::<Result<_>>()?,
            },
        })
    }

    /// Whether a layer that is already in the format may stay unchanged.
    fn reuses(&self) -> bool {
        !self.force && self.prioritised.is_empty()
    }
}

fn priority(path: &[u8]) -> Result<LayerPath> {
    let parsed = LayerPath::from_tar_name(path);
    parsed.map_err(|error| Error::new(ErrorKind::Other, format!("read the path {:?}", path.escape_ascii()), error))
}

/// Converts an image. Dropping the future stops it: uploaded blobs stay, and nothing names them.
///
/// # Errors
/// `Refused` for images and layers that are malformed, unsupported, or contradict their digests, and for contents that the format cannot
/// hold; `NotFound`, `Denied` and `Unavailable` from source and destination. Nothing was tagged then.
pub async fn convert(request: &ConvertRequest, progress: Arc<dyn Progress>) -> Result<Conversion> {
    let recipe = request.recipe()?;
    let destination = access::destination(&request.destination, &request.destination_access)?;
    let tag = destination.tag().map(str::to_owned).ok_or_else(|| {
        Error::new(ErrorKind::Other, "read the destination's name", "it needs a tag: its digest comes from the result")
    })?;
    let toc_tag = toc_image::tag(&tag, &recipe)?;
    let repository = access::open(&request.source, &request.source_access).await?;
    let chosen = choose::images(&repository, &request.platforms).await?;
    chosen.notes.iter().for_each(|line| progress.note(line));

    let work = layers::Work {
        source: repository.blobs(),
        mount_from: match request.source.parse() {
            Ok(Source::Registry(reference)) => Some(reference),
            _ => None,
        },
        destination: &destination,
        recipe,
        format: request.format,
        reuses: request.reuses(),
        jobs: request.jobs(),
        progress,
    };
    let layers = work.convert(&chosen).await?;

    let images = push_images(&destination, &chosen, &layers, &tag).await?;
    let toc_image = toc_image::push(&destination, &chosen, &layers, &toc_tag).await?;
    let digest = name(&destination, &chosen, &images, &tag).await?;
    let notes = chosen.notes.iter().cloned().chain(layers::unmoved(&layers, &request.prioritised)).collect();
    Ok(Conversion {
        source: repository.name().to_owned(),
        source_digest: chosen.digest(),
        destination: destination.name().to_owned(),
        format: request.format.to_string(),
        digest,
        is_index: chosen.index.is_some(),
        external_toc: toc_image,
        images: images.into_iter().map(|image| image.report).collect(),
        notes,
    })
}

/// An image whose config is pushed, and its manifest too unless that gets the tag.
struct PushedImage {
    manifest: Bytes,
    report: ConvertedImage,
}

async fn push_images(
    destination: &Destination,
    chosen: &Chosen,
    layers: &[NewLayer],
    tag: &str,
) -> Result<Vec<PushedImage>> {
    let mut pushed = Vec::with_capacity(chosen.images.len());
    for image in &chosen.images {
        let layers = layers::of(image, layers)?;
        let config = document::config(image, &layers)?;
        let blob = destination.push_bytes(config).await.map_err(|error| outward("push the config", error))?;
        let manifest = document::manifest(image, blob, &layers)?;
        let report = report::image(image, &manifest, &layers);
        if chosen.index.is_some() {
            let push = destination.push_manifest(OCI_MANIFEST, manifest.clone(), None).await;
            push.map_err(|error| outward(format!("push a manifest for {tag}"), error))?;
        }
        pushed.push(PushedImage { manifest, report });
    }
    Ok(pushed)
}

/// Pushes the document that gets the tag: the last step, which makes the result visible.
async fn name(
    destination: &Destination,
    chosen: &Chosen,
    images: &[PushedImage],
    tag: &str,
) -> Result<tarpon_oci::Digest> {
    let (media_type, bytes) = match (&chosen.index, images) {
        (None, [image]) => (OCI_MANIFEST, image.manifest.clone()),
        (None, _) => return Err(Error::new(ErrorKind::Other, "push the manifest", "there is none")),
        (Some(index), images) => {
            let manifests: Vec<&Bytes> = images.iter().map(|image| &image.manifest).collect();
            (tarpon_oci::media_type::OCI_INDEX, document::index(index, chosen, &manifests)?)
        }
    };
    let push = destination.push_manifest(media_type, bytes, Some(tag)).await;
    push.map_err(|error| outward(format!("push the manifest as {tag}"), error))
}

/// An error of source or destination, with the advice that fits this command.
fn outward(step: impl Into<String>, error: tarpon_registry::Error) -> Error {
    advised(access::registry(step, error))
}

fn advised(error: Error) -> Error {
    match error.kind {
        ErrorKind::Denied => {
            error.hint("log in with podman login or docker login, or give --src-creds, --dest-creds or --authfile")
        }
        _ => error,
    }
}
