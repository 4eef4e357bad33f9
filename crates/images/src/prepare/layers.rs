//! Indexes every layer of an image: from a kept index, from its table of contents, or by streaming.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use tarpon_blob::{BlobSource, Paced};
use tarpon_layer::toc::Claim;
use tarpon_layer::{Allowance, Node};
use tarpon_oci::{Blob, Digest, ImageConfig, Verified};
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::{LayerKind, Store, Verification};

use super::layer::{Extent, Layer, Wanted, step, wanted};
use super::shared::{self, Copy, SharedLayers, Turn};
use super::stream::{StreamError, stream};
use super::stream_job::StreamJob;
use super::{kept, toc};
use crate::access;
use crate::error::{Error, ErrorKind, Result};
use crate::image::LayerLimits;
use crate::images::Images;
use crate::index::find;
use crate::index::search_result::{FoundPack, SearchResult, Usable};
use crate::progress::{LayerPlan, LayerWay, Progress};
use crate::tiers::{self, OpenedTier};

/// Tables of contents fetched and parsed at once: the initial limit of requests to a host.
const TABLES: usize = 16;

/// Layers that are streamed at the same time. Each inflates and hashes on two threads, so that three keep a few cores and
/// any link busy; more would only delay the first that is done.
pub const STREAMS: usize = 3;

/// What is known about an image's layers.
pub(super) struct Indexes {
    pub(super) config: ImageConfig,
    /// Lowest first.
    pub(super) layers: Vec<Layer>,
    /// A boot pack that came with an external index.
    pub(super) boot: Option<FoundPack>,
    /// Bytes received from index repositories.
    pub(super) fetched: u64,
    /// What is still copied to the tier.
    pub(super) shared: Option<SharedLayers>,
}

/// A layer that is to be streamed.
struct ToStream<'a> {
    layer: &'a Wanted,
    /// Why a layer with a table of contents is streamed.
    fallback: Option<String>,
    /// Whether an index of another host will do.
    by_index: bool,
}

impl<'a> ToStream<'a> {
    /// Every byte of it must be seen.
    fn whole(layer: &'a Wanted) -> Self {
        Self { layer, fallback: None, by_index: false }
    }
}

/// How a layer was obtained.
enum Obtained {
    Streamed(Box<Layer>),
    Indexed(Box<Usable>),
}

/// Indexes all layers, lowest first. A blob that the image has twice is indexed once.
pub(super) async fn index_all(
    images: &Images,
    repository: &Repository,
    image: &ResolvedImage,
    extent: Extent<'_>,
    limits: LayerLimits,
    progress: &dyn Progress,
) -> Result<Indexes> {
    let store = images.store();
    let shared = shared_layers(images.tier(), extent, progress);
    let is_whole = matches!(extent, Extent::Whole);
    let choice = match extent {
        Extent::Index(choice, pack) => Some((choice, pack)).filter(|(choice, _)| choice.may_have(image)),
        Extent::Own | Extent::Whole => None,
    };
    let wanted = wanted(&image.manifest.layers)?;
    let allowance = Allowance::default();
    let mut found: HashMap<Digest, Layer> = HashMap::new();
    for layer in &wanted {
        if let Some(kept) = kept::load(store, layer.blob, &layer.claim, &allowance) {
            found.insert(layer.blob.digest, kept);
        }
    }
    let plain =
        wanted.iter().filter(|layer| matches!(layer.claim, Claim::Plain) && !found.contains_key(&layer.blob.digest));
    let plain: Vec<Blob> = plain.map(|layer| layer.blob).collect();
    let in_tier = shared.as_ref().filter(|shared| shared.trusts_indexes);
    // Finding an index takes as long as the config, without which no layer can be streamed.
    let (early, by_index) = if plain.is_empty() || (choice.is_none() && in_tier.is_none()) {
        (None, SearchResult::default())
    } else {
        let finding = async {
            let mut found = SearchResult::default();
            if let Some((choice, pack)) = choice {
                let sought = find::Wanted { layers: &plain, pack, allowance: &allowance };
                found = find::find(choice, repository, image, sought).boxed().await;
            }
            if let Some(shared) = in_tier {
                found.add(shared.find(&found.rest(&plain), &allowance).boxed().await);
            }
            found
        };
        let (config, by_index) = futures::join!(access::config(repository, image), finding);
        (Some(config?), by_index)
    };
    let mut lacking = if is_whole { lacking(store, &wanted, &found) } else { HashSet::new() };
    if let Some(shared) = shared.as_ref().filter(|_| is_whole) {
        // A pull also makes the tier complete.
        lacking.extend(shared.lacks(wanted.iter().map(|layer| layer.blob)).await);
    }
    progress.resolved(image.manifest.digest(), &plan(&wanted, &found, &by_index, &lacking));
    by_index.notes.iter().for_each(|note| progress.note(note));
    let blobs = tiers::blobs(repository, shared.as_ref().map(SharedLayers::tier));
    let blobs = at_rate(blobs, limits.rate);
    let missing: Vec<&Wanted> = wanted.iter().filter(|layer| !found.contains_key(&layer.blob.digest)).collect();
    // The config and the tables of contents share one round trip.
    let tocs: Vec<_> = missing.iter().map(|layer| through_toc(layer, &*blobs, &allowance, progress).boxed()).collect();
    let tocs = stream::iter(tocs).buffered(TABLES).try_collect::<Vec<_>>();
    let config = async {
        match early {
            Some(config) => Ok(config),
            None => access::config(repository, image).await,
        }
    };
    // If no layer needs an index, only this step waits for a boot pack.
    let boot = async {
        match choice.filter(|_| plain.is_empty()) {
            Some((choice, pack)) => {
                let sought = find::Wanted { layers: &[], pack, allowance: &allowance };
                find::find(choice, repository, image, sought).boxed().await
            }
            None => SearchResult::default(),
        }
    };
    let (tables, only_boot) = futures::join!(async { futures::try_join!(config, tocs) }, boot);
    let (config, tocs) = tables?;
    only_boot.notes.iter().for_each(|note| progress.note(note));
    let mut to_stream = Vec::new();
    // Kept for an image whose config names another diffID: one of the two configs is wrong. Streaming decides.
    for layer in &wanted {
        if found.get(&layer.blob.digest).is_some_and(|kept| !kept.is_what_config_names(&config, layer.number)) {
            found.remove(&layer.blob.digest);
            to_stream.push(ToStream::whole(layer));
        } else if found.contains_key(&layer.blob.digest) && lacking.contains(&layer.blob.digest) {
            to_stream.push(ToStream::whole(layer));
        }
    }
    for (layer, outcome) in missing.into_iter().zip(tocs) {
        match (outcome, by_index.of(&layer.blob)) {
            (ByToc::Indexed(indexed), _) => {
                keep(store, &mut found, layer, *indexed);
                if is_whole {
                    to_stream.push(ToStream::whole(layer));
                }
            }
            // Not kept for other images: it is trusted for this one only.
            (ByToc::MustStream { .. }, Some(usable)) => {
                progress.layer_done(layer.number);
                found.insert(layer.blob.digest, claimed(store, image, usable));
            }
            (ByToc::MustStream { fallback }, None) => {
                let by_index = matches!(layer.claim, Claim::Plain) && in_tier.is_some();
                to_stream.push(ToStream { layer, fallback, by_index });
            }
        }
    }
    if let Some(first) = to_stream.first().filter(|_| !limits.may_stream) {
        return Err(must_stream(first.layer, to_stream.len()));
    }
    let at_once = match &shared {
        None => STREAMS,
        Some(shared) => {
            to_stream.sort_by_key(|layer| shared.order_of(&layer.layer.blob.digest));
            shared::WATCHED
        }
    };
    // Boxed and collected: otherwise the compiler rejects the returned future as not `Send`.
    let streams: Vec<_> = to_stream
        .into_iter()
        .map(|layer| {
            let into = Into { store: store.clone(), allowance: allowance.clone() };
            obtained(layer, &config, blobs.clone(), into, shared.as_ref(), progress).boxed()
        })
        .collect();
    let mut streams = stream::iter(streams).buffer_unordered(at_once);
    while let Some((wanted, obtained)) = streams.try_next().await? {
        let streamed = match obtained {
            Obtained::Streamed(layer) => *layer,
            Obtained::Indexed(usable) => {
                found.insert(wanted.blob.digest, claimed(store, image, &usable));
                continue;
            }
        };
        // Every reader reads the layer through its table of contents. Streaming only proved that the layer is correct.
        let layer = match found.remove(&wanted.blob.digest) {
            Some(by_toc) => by_toc.proved_by(&streamed),
            None => streamed,
        };
        keep(store, &mut found, wanted, layer);
    }
    drop(streams);
    if let Some(shared) = &shared {
        shared.note_uses(wanted.iter().map(|layer| layer.blob));
    }
    if let Some(problem) = shared.as_ref().and_then(SharedLayers::problem) {
        progress.note(&problem);
    }
    let mut layers = Vec::with_capacity(image.manifest.layers.len());
    for (number, layer) in image.manifest.layers.iter().enumerate() {
        // An index may be large: it is copied only for a blob that the image has again.
        let is_last = image.manifest.layers[number + 1..].iter().all(|later| later.digest != layer.digest);
        let found = if is_last { found.remove(&layer.digest) } else { found.get(&layer.digest).cloned() };
        let found = found.ok_or_else(|| Error::new(ErrorKind::Other, "index the layers", "one was lost"))?;
        // A blob that the image has twice was compared with the first of its diffIDs.
        if !found.is_what_config_names(&config, number) {
            let cause = "the config has two diffIDs for one blob";
            return Err(Error::new(ErrorKind::Refused, step(number, &layer.digest), cause));
        }
        layers.push(found);
    }
    let fetched = by_index.fetched + only_boot.fetched;
    Ok(Indexes { config, layers, boot: by_index.boot.or(only_boot.boot), fetched, shared })
}

/// The source, of which at most `rate` bytes per second are read.
fn at_rate(source: Arc<dyn BlobSource>, rate: Option<NonZeroU64>) -> Arc<dyn BlobSource> {
    if rate.is_none() { source } else { Arc::new(Paced::new(source, rate, |_| ())) }
}

/// The error of an image that can only be prepared by streaming this layer, of `count` such layers.
fn must_stream(layer: &Wanted, count: usize) -> Error {
    let others = if count > 1 { format!(", and neither for {} others", count - 1) } else { String::new() };
    let cause = format!("there is no table of contents and no index for it{others}: it would be fetched whole");
    Error::new(ErrorKind::Refused, step(layer.number, &layer.blob.digest), cause)
        .hint("make an index of the image with `tarpon index --push`, or let its layers be fetched whole")
}

/// The layers of which some bytes were not seen, or some objects are missing.
fn lacking(store: &Store, wanted: &[Wanted], found: &HashMap<Digest, Layer>) -> HashSet<Digest> {
    let is_here = |layer: &Layer| {
        let mut files = layer.index.entries.iter().filter_map(|entry| match &entry.node {
            Node::File(content) if content.size > 0 => Some(content.object),
            _ => None,
        });
        layer.was_streamed() && files.all(|object| store.contains(&object))
    };
    let digests = wanted.iter().map(|layer| layer.blob.digest);
    digests.filter(|digest| !found.get(digest).is_some_and(is_here)).collect()
}

fn plan(
    wanted: &[Wanted],
    found: &HashMap<Digest, Layer>,
    by_index: &SearchResult,
    lacking: &HashSet<Digest>,
) -> Vec<LayerPlan> {
    let way = |layer: &Wanted| match &layer.claim {
        _ if lacking.contains(&layer.blob.digest) => LayerWay::Whole,
        _ if found.contains_key(&layer.blob.digest) => LayerWay::Local,
        Claim::Toc(_) => LayerWay::Toc,
        Claim::Plain if by_index.of(&layer.blob).is_some() => LayerWay::Index,
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

fn keep(store: &Store, found: &mut HashMap<Digest, Layer>, wanted: &Wanted, layer: Layer) {
    let packed = Some(kept::save(store, &wanted.claim, &layer));
    found.insert(layer.blob.digest, Layer { packed, ..layer });
}

pub(super) enum ByToc {
    Indexed(Box<Layer>),
    MustStream { fallback: Option<String> },
}

pub(super) async fn through_toc(
    layer: &Wanted,
    blobs: &dyn BlobSource,
    allowance: &Allowance,
    progress: &dyn Progress,
) -> Result<ByToc> {
    let Claim::Toc(claim) = &layer.claim else { return Ok(ByToc::MustStream { fallback: None }) };
    let received = AtomicU64::new(0);
    let count = |bytes| {
        received.fetch_add(bytes, Ordering::Relaxed);
        progress.received(layer.number, bytes);
    };
    let fetched = toc::fetch(claim, layer.blob, blobs, allowance, count).await;
    match fetched {
        Ok((index, prefetch)) => {
            progress.layer_done(layer.number);
            let compression = toc::compression(claim.format());
            Ok(ByToc::Indexed(Box::new(Layer {
                blob: layer.blob,
                compression,
                format: toc::kind(claim.format()),
                verification: Verification::Toc,
                diff_id: None,
                index,
                packed: None,
                prefetch,
                received: received.into_inner(),
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
        Err(toc::TocFailure::Source(error)) => Err(access::source(step(layer.number, &layer.blob.digest), error)),
    }
}

/// Where a layer is streamed to, and its allowance.
struct Into {
    store: Store,
    allowance: Allowance,
}

/// The tier of the image, as far as it can be used.
fn shared_layers(tier: Option<&OpenedTier>, extent: Extent<'_>, progress: &dyn Progress) -> Option<SharedLayers> {
    let trusts_indexes = matches!(extent, Extent::Index(choice, _) if choice.rules.trust_tier());
    match tier? {
        Ok(tier) => Some(SharedLayers::new(tier.clone(), trusts_indexes, matches!(extent, Extent::Whole), STREAMS)),
        Err(unusable) => {
            progress.note(&unusable.to_string());
            None
        }
    }
}

/// The layer as an index describes it, which is kept for this image only: it is not trusted for others.
fn claimed(store: &Store, image: &ResolvedImage, usable: &Usable) -> Layer {
    let claimed = Layer::by_index(usable.indexed.clone(), usable.format, usable.verification);
    let packed = Some(kept::save_claim(store, image.manifest.digest(), usable.index, &claimed));
    Layer { packed, ..claimed }
}

/// Streams the layer, or finds that another host has done so.
async fn obtained<'a>(
    ToStream { layer, fallback, by_index }: ToStream<'a>,
    config: &ImageConfig,
    source: Arc<dyn BlobSource>,
    into: Into,
    shared: Option<&SharedLayers>,
    progress: &dyn Progress,
) -> Result<(&'a Wanted, Obtained)> {
    let Some(shared) = shared else {
        let (streamed, _) = streamed(layer, fallback, config, source, into, None, progress).await?;
        return Ok((layer, Obtained::Streamed(Box::new(streamed))));
    };
    let (mut copy, _permit) = match shared.turn(layer.blob, by_index, &into.allowance).await {
        Turn::Indexed(usable) => {
            progress.layer_done(layer.number);
            return Ok((layer, Obtained::Indexed(usable)));
        }
        Turn::Stream { copy, permit } => (copy, permit),
    };
    let outcome = streamed(layer, fallback, config, source, into, copy.as_mut(), progress).await;
    match (outcome, copy) {
        (Ok((streamed, proof)), copy) => {
            if let Some(copy) = copy {
                shared.keep(copy, proof, &streamed, matches!(layer.claim, Claim::Plain));
            }
            Ok((layer, Obtained::Streamed(Box::new(streamed))))
        }
        (Err(error), copy) => {
            if let Some(copy) = copy {
                copy.release().await;
            }
            Err(error)
        }
    }
}

async fn streamed(
    layer: &Wanted,
    fallback: Option<String>,
    config: &ImageConfig,
    source: Arc<dyn BlobSource>,
    Into { store, allowance }: Into,
    copy: Option<&mut Copy>,
    progress: &dyn Progress,
) -> Result<(Layer, Verified<()>)> {
    let step = step(layer.number, &layer.blob.digest);
    let diff_id = *config
        .diff_ids
        .get(layer.number)
        .ok_or_else(|| Error::new(ErrorKind::Refused, step.clone(), "the config has no diffID for it"))?;
    let job = StreamJob {
        blob: layer.blob,
        diff_id,
        hides_toc_files: matches!(layer.claim, Claim::Toc(_)),
        source,
        store,
        must_keep: false,
        allowance,
    };
    let indexed = seen(job, copy, |bytes| progress.received(layer.number, bytes)).await;
    let (indexed, proof) = indexed.map_err(|error| super::stream::outward(step, error))?;
    progress.layer_done(layer.number);
    Ok((Layer { fallback, ..indexed }, proof))
}

/// The layer, every byte of which was seen, with the proof of its blob.
pub(super) async fn seen(
    job: StreamJob,
    copy: Option<&mut Copy>,
    received: impl Fn(u64) + Send + Sync,
) -> std::result::Result<(Layer, Verified<()>), StreamError> {
    let (blob, diff_id) = (job.blob, job.diff_id);
    let streamed = stream(job, copy, received).await?;
    let layer = Layer {
        blob,
        compression: streamed.compression,
        format: LayerKind::plain(streamed.compression),
        verification: Verification::DiffId,
        diff_id: Some(diff_id),
        index: streamed.index,
        packed: None,
        prefetch: None,
        received: blob.size,
        fallback: None,
    };
    Ok((layer, streamed.proof))
}
