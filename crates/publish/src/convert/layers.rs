//! Converts every layer of every image once: kept if it is already in the format, else rewritten; several at once.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use tarpon_blob::BlobSource;
use tarpon_images::access;
use tarpon_images::prepare::toc::{self, TocFailure};
use tarpon_images::progress::{LayerPlan, LayerWay, Progress, counted};
use tarpon_layer::toc::{Claim, Format};
use tarpon_layer::write::ExternalToc;
use tarpon_layer::{Allowance, LayerPath};
use tarpon_oci::{Blob, Compression, Descriptor, Digest, MediaType, NewDescriptor, Reference};
use tarpon_registry::Destination;

use super::choose::{Chosen, Image};
use super::failure::{advised, outward};
use super::report::Outcome;
use super::rewrite::{self, Recipe, Rewrite};
use crate::{Error, ErrorKind, Result};

/// Annotations of a layer that describe how its blob is packed: they are dropped when it is packed in another way.
const PACKING_ANNOTATIONS: [&str; 5] = [
    "containerd.io/snapshot/stargz/",
    "io.containers.estargz.",
    "io.github.containers.zstd-chunked.",
    "io.containers.zstd-chunked.",
    // containerd's annotation for the diffID.
    "containerd.io/uncompressed",
];

/// What is done to layers, with source and destination.
pub(super) struct Work<'a> {
    pub(super) source: Arc<dyn BlobSource>,
    /// A repository from which the destination may mount blobs.
    pub(super) mount_from: Option<Reference>,
    pub(super) destination: &'a Destination,
    pub(super) recipe: Recipe,
    pub(super) format: Format,
    /// Whether layers that are already in the format stay unchanged.
    pub(super) reuses: bool,
    pub(super) jobs: usize,
    pub(super) progress: Arc<dyn Progress>,
}

/// A layer of the result.
pub(super) struct NewLayer {
    from: Wanted,
    pub(super) descriptor: NewDescriptor,
    pub(super) diff_id: Digest,
    pub(super) outcome: Outcome,
    pub(super) external_toc: Option<ExternalToc>,
    not_prioritised: Vec<LayerPath>,
}

impl NewLayer {
    /// Whether its blob is the source's.
    pub(super) fn is_copy(&self) -> bool {
        self.outcome != Outcome::Converted
    }
}

/// A layer of the source, as the manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    descriptor: Descriptor,
    diff_id: Digest,
}

/// What is done to a layer.
enum Way {
    Keep,
    Rewrite,
}

/// The layers of `image`, lowest first.
pub(super) fn of<'a>(image: &Image, layers: &'a [NewLayer]) -> Result<Vec<&'a NewLayer>> {
    let find = |wanted| layers.iter().find(|layer| layer.from == wanted);
    let found: Option<_> = wanted(image).map(find).collect();
    found.ok_or_else(|| Error::new(ErrorKind::Other, "convert the layers", "one was lost"))
}

fn wanted(image: &Image) -> impl Iterator<Item = Wanted> {
    let layers = image.manifest.layers.iter().zip(&image.config.diff_ids);
    layers.map(|(descriptor, diff_id)| Wanted { descriptor: descriptor.clone(), diff_id: *diff_id })
}

/// A line about the prioritised paths that no layer puts first.
pub(super) fn unmoved(layers: &[NewLayer], paths: &[Vec<u8>]) -> Option<String> {
    let is_nowhere = |path: &&Vec<u8>| {
        let path = LayerPath::from_tar_name(path).ok();
        path.is_some_and(|path| layers.iter().all(|layer| layer.not_prioritised.contains(&path)))
    };
    let count = paths.iter().filter(is_nowhere).count();
    (count > 0).then(|| format!("{count} of {} paths to come first are in no layer, or cannot be moved", paths.len()))
}

impl Work<'_> {
    /// Converts all layers of `chosen`. A layer that occurs more than once is converted once.
    pub(super) async fn convert(&self, chosen: &Chosen) -> Result<Vec<NewLayer>> {
        let mut all: Vec<Wanted> = Vec::new();
        for layer in chosen.images.iter().flat_map(wanted) {
            if !all.contains(&layer) {
                all.push(layer);
            }
        }
        let ways: Vec<BoxFuture<'_, Result<Way>>> =
            all.iter().enumerate().map(|(number, layer)| self.way(number, layer).boxed()).collect();
        let ways: Vec<Way> = stream::iter(ways).buffered(self.jobs).try_collect().await?;
        self.progress.resolved(&chosen.digest(), &plan(&all));
        let layers: Vec<BoxFuture<'_, Result<NewLayer>>> = all
            .iter()
            .zip(ways)
            .enumerate()
            .map(|(number, (layer, way))| self.one(number, layer, way).boxed())
            .collect();
        stream::iter(layers).buffered(self.jobs).try_collect().await
    }

    /// Decides what to do. The claims of a layer's descriptor are trusted if its table of contents matches the claimed one and can be read.
    async fn way(&self, number: usize, layer: &Wanted) -> Result<Way> {
        let refused = |cause: String| {
            let step = step("read", number, &layer.descriptor.digest);
            Error::new(ErrorKind::Refused, step, cause)
        };
        let Descriptor { media_type, annotations, size, .. } = &layer.descriptor;
        let claim = Claim::of(media_type, annotations, *size).map_err(|error| refused(error.to_string()))?;
        let Claim::Toc(claim) = claim else { return Ok(Way::Rewrite) };
        if !self.reuses || claim.format() != self.format {
            return Ok(Way::Rewrite);
        }
        match toc::fetch(&claim, layer.descriptor.blob(), &*self.source, &Allowance::default(), |_| ()).await {
            Ok(_) => Ok(Way::Keep),
            Err(TocFailure::NotLazy(_)) => Ok(Way::Rewrite),
            Err(TocFailure::Refused(error)) => {
                let error = refused(error.to_string());
                Err(error.hint("--force rewrites the layer from its tar and ignores its table of contents"))
            }
            Err(TocFailure::Source(error)) => {
                Err(advised(access::source(step("read", number, &layer.descriptor.digest), error)))
            }
        }
    }

    async fn one(&self, number: usize, layer: &Wanted, way: Way) -> Result<NewLayer> {
        let done = match way {
            Way::Keep => self.keep(number, layer).await,
            Way::Rewrite => self.rewrite(number, layer).await,
        };
        if done.is_ok() {
            self.progress.layer_done(number);
        }
        done
    }

    async fn keep(&self, number: usize, layer: &Wanted) -> Result<NewLayer> {
        let blob = layer.descriptor.blob();
        let failed = |error| outward(step("copy", number, &blob.digest), error);
        let is_there = self.destination.has_blob(blob).await.map_err(failed)?
            || match &self.mount_from {
                Some(from) => self.destination.mount_blob(blob, from).await.map_err(failed)?,
                None => false,
            };
        if !is_there {
            let source = counted(self.source.clone(), self.progress.clone(), number);
            self.destination.copy_blob(blob, source).await.map_err(failed)?;
        }
        let compression = match layer.descriptor.media_type {
            MediaType::Layer(compression) => compression,
            _ => Compression::None,
        };
        let mut descriptor = NewDescriptor::new(compression.layer_media_type(), blob);
        descriptor.annotations.clone_from(&layer.descriptor.annotations);
        Ok(NewLayer {
            from: layer.clone(),
            descriptor,
            diff_id: layer.diff_id,
            outcome: if is_there { Outcome::Reused } else { Outcome::Copied },
            external_toc: None,
            not_prioritised: Vec::new(),
        })
    }

    async fn rewrite(&self, number: usize, layer: &Wanted) -> Result<NewLayer> {
        let blob = layer.descriptor.blob();
        let job = Rewrite { blob, diff_id: layer.diff_id, source: &*self.source, recipe: &self.recipe };
        let written = rewrite::rewrite(job, self.destination, |bytes| self.progress.received(number, bytes)).await;
        let written = written.map_err(|error| error.outward(step("convert", number, &blob.digest)))?;
        let mut descriptor = NewDescriptor::new(written.compression.layer_media_type(), written.blob);
        let is_packing = |name: &str| PACKING_ANNOTATIONS.iter().any(|packing| name.starts_with(packing));
        let kept = layer.descriptor.annotations.iter().filter(|(name, _)| !is_packing(name));
        descriptor.annotations = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        descriptor.annotations.extend(written.annotations);
        Ok(NewLayer {
            from: layer.clone(),
            descriptor,
            diff_id: written.diff_id,
            outcome: Outcome::Converted,
            external_toc: written.external_toc,
            not_prioritised: written.not_prioritised,
        })
    }
}

/// The plan of all layers: copies take time too, so they are shown as well.
fn plan(layers: &[Wanted]) -> Vec<LayerPlan> {
    let plan = |(number, layer): (usize, &Wanted)| {
        let Blob { digest, size } = layer.descriptor.blob();
        LayerPlan { number, digest, size, way: LayerWay::Stream }
    };
    layers.iter().enumerate().map(plan).collect()
}

/// "convert layer 3 (sha256:…)", counted from one.
fn step(doing: &str, number: usize, digest: &Digest) -> String {
    format!("{doing} layer {} ({digest})", number + 1)
}
