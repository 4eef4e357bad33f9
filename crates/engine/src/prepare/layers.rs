//! Every layer of an image to its index: kept from before, from its table of contents, or streamed.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use tarpon_fetch::{BlobSource, ObjectStore};
use tarpon_layer::LayerIndex;
use tarpon_layer::decode::Compression;
use tarpon_layer::toc::Claim;
use tarpon_oci::{Blob, Descriptor, Digest, ImageConfig};
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::Store;

use super::stream::{StreamJob, stream};
use super::{kept, toc};
use crate::progress::{LayerPlan, LayerWay, Progress};
use crate::{Error, ErrorKind, Result, access};

/// Layers that are streamed at the same time. Each inflates and hashes on two threads, so that three keep a few cores and
/// any link busy; more would only delay the first that is done.
const STREAMS: usize = 3;

/// Every byte of the layer was seen and is what the image config says.
pub(super) const DIFF_ID_VERIFIED: &str = "diffID-verified";
/// The table of contents is the one that the manifest names; what it names is checked as it is read.
pub(super) const TOC_VERIFIED: &str = "toc-verified";

/// An indexed layer.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) blob: Blob,
    pub(super) compression: Compression,
    pub(super) format: String,
    pub(super) verification: String,
    pub(super) index: LayerIndex,
    /// Why a layer with a table of contents had to be streamed all the same.
    pub(super) fallback: Option<String>,
}

/// A layer as the manifest has it.
struct Wanted {
    number: usize,
    blob: Blob,
    claim: Claim,
}

/// Indexes all layers, lowest first. A blob that the image has twice is indexed once.
pub(super) async fn index_all(
    store: &Store,
    repository: &Repository,
    image: &ResolvedImage,
    progress: &dyn Progress,
) -> Result<(ImageConfig, Vec<Layer>)> {
    let wanted = wanted(&image.manifest.layers)?;
    let mut found: HashMap<Digest, Layer> = HashMap::new();
    for layer in &wanted {
        if let Some(kept) = kept::load(store, layer.blob) {
            found.insert(layer.blob.digest, kept);
        }
    }
    progress.resolved(image.manifest.digest(), &plan(&wanted, &found));
    let blobs = repository.blobs();
    let missing: Vec<&Wanted> = wanted.iter().filter(|layer| !found.contains_key(&layer.blob.digest)).collect();
    // The config and the tables of contents are one round trip together.
    let tocs = missing.iter().map(|layer| through_toc(layer, &*blobs, progress));
    let (config, tocs) = futures::try_join!(access::config(repository, image), try_join_all(tocs))?;
    let mut to_stream = Vec::new();
    for (layer, outcome) in missing.into_iter().zip(tocs) {
        match outcome {
            ByToc::Indexed(indexed) => keep(store, &mut found, *indexed),
            ByToc::MustStream { fallback } => to_stream.push((layer, fallback)),
        }
    }
    let streams = to_stream
        .into_iter()
        .map(|(layer, fallback)| streamed(layer, fallback, &config, blobs.clone(), Arc::new(store.clone()), progress));
    let mut streams = stream::iter(streams).buffer_unordered(STREAMS);
    while let Some(layer) = streams.try_next().await? {
        keep(store, &mut found, layer);
    }
    drop(streams);
    let layers = image.manifest.layers.iter().map(|layer| found.get(&layer.digest).cloned());
    let layers = layers.collect::<Option<Vec<Layer>>>();
    let layers = layers.ok_or_else(|| Error::new(ErrorKind::Other, "index the layers", "one was lost"))?;
    Ok((config, layers))
}

/// Each blob once, with what its descriptor claims about it.
fn wanted(layers: &[Descriptor]) -> Result<Vec<Wanted>> {
    let mut wanted: Vec<Wanted> = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let claim = Claim::of(&layer.media_type, &layer.annotations, layer.size)
            .map_err(|error| Error::new(ErrorKind::Refused, step(number, &layer.digest), error))?;
        if !wanted.iter().any(|other| other.blob.digest == layer.digest) {
            wanted.push(Wanted { number, blob: layer.blob(), claim });
        }
    }
    Ok(wanted)
}

fn plan(wanted: &[Wanted], found: &HashMap<Digest, Layer>) -> Vec<LayerPlan> {
    let way = |layer: &Wanted| match &layer.claim {
        _ if found.contains_key(&layer.blob.digest) => LayerWay::Local,
        Claim::Toc(_) => LayerWay::Toc,
        Claim::Plain => LayerWay::Stream,
    };
    wanted
        .iter()
        .map(|layer| LayerPlan {
            number: layer.number,
            digest: layer.blob.digest,
            size: layer.blob.size,
            way: way(layer),
        })
        .collect()
}

fn keep(store: &Store, found: &mut HashMap<Digest, Layer>, layer: Layer) {
    kept::save(store, &layer);
    found.insert(layer.blob.digest, layer);
}

enum ByToc {
    Indexed(Box<Layer>),
    MustStream { fallback: Option<String> },
}

async fn through_toc(layer: &Wanted, blobs: &dyn BlobSource, progress: &dyn Progress) -> Result<ByToc> {
    let Claim::Toc(claim) = &layer.claim else { return Ok(ByToc::MustStream { fallback: None }) };
    let fetched = toc::fetch(claim, layer.blob, blobs, |bytes| progress.received(layer.number, bytes)).await;
    match fetched {
        Ok(index) => {
            progress.layer_done(layer.number);
            let compression = toc::compression(claim.format());
            Ok(ByToc::Indexed(Box::new(Layer {
                blob: layer.blob,
                compression,
                format: claim.format().to_string(),
                verification: TOC_VERIFIED.into(),
                index,
                fallback: None,
            })))
        }
        Err(toc::TocFailure::NotLazy(reason)) => {
            let line = format!("layer {} is streamed, not read lazily: {reason}", layer.number + 1);
            progress.note(&line);
            Ok(ByToc::MustStream { fallback: Some(line) })
        }
        Err(toc::TocFailure::Refused(error)) => {
            Err(Error::new(ErrorKind::Refused, step(layer.number, &layer.blob.digest), error))
        }
        Err(toc::TocFailure::Source(error)) => Err(access::source(step(layer.number, &layer.blob.digest), &error)),
    }
}

async fn streamed(
    layer: &Wanted,
    fallback: Option<String>,
    config: &ImageConfig,
    source: Arc<dyn BlobSource>,
    store: Arc<dyn ObjectStore>,
    progress: &dyn Progress,
) -> Result<Layer> {
    let step = step(layer.number, &layer.blob.digest);
    let diff_id = *config
        .diff_ids
        .get(layer.number)
        .ok_or_else(|| Error::new(ErrorKind::Refused, step.clone(), "the config has no diffID for it"))?;
    let hides_toc_files = matches!(layer.claim, Claim::Toc(_));
    let job = StreamJob { blob: layer.blob, diff_id, hides_toc_files, source, store };
    let streamed = stream(job, |bytes| progress.received(layer.number, bytes)).await;
    let streamed = streamed.map_err(|error| super::stream::outward(step, error))?;
    progress.layer_done(layer.number);
    Ok(Layer {
        blob: layer.blob,
        compression: streamed.compression,
        format: crate::inspect::format_name(streamed.compression).into(),
        verification: DIFF_ID_VERIFIED.into(),
        index: streamed.index,
        fallback,
    })
}

/// "read layer 3 (sha256:…)", as people count.
fn step(number: usize, digest: &Digest) -> String {
    format!("read layer {} ({digest})", number + 1)
}
