//! Indexes every layer of an image: from a kept index, from its table of contents, by an index that is attached to the image or shared by
//! another host, or by streaming.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use tarpon_blob::{BlobSource, Paced};
use tarpon_layer::toc::Claim;
use tarpon_layer::{Allowance, Node};
use tarpon_oci::{Blob, Descriptor, Digest, ImageConfig};
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::Store;

use super::kept;
use super::layer::{Extent, Layer, Wanted, step, wanted};
use super::obtain::{ByToc, Into, Obtained, ToStream, obtain, through_toc};
use super::shared::{self, SharedLayers};
use crate::access;
use crate::error::{Error, ErrorKind, Result};
use crate::image::LayerLimits;
use crate::images::Images;
use crate::index::find::{self, Choice};
use crate::index::pack::PackWanted;
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

/// The layers that are indexed so far, by the digests of their blobs.
type Indexed = HashMap<Digest, Layer>;

/// Indexes all layers, lowest first. A blob that the image has twice is indexed once.
pub(super) async fn index_all(
    images: &Images,
    repository: &Repository,
    image: &ResolvedImage,
    extent: Extent<'_>,
    limits: LayerLimits,
    progress: &dyn Progress,
) -> Result<Indexes> {
    let wanted = wanted(&image.manifest.layers)?;
    let indexing = Indexing::new(images, repository, image, extent, limits, &wanted, progress);
    let mut found = indexing.kept();
    let plain = indexing.plain(&found);
    let (early, by_index) = indexing.search(&plain).await?;
    let lacking = indexing.lacking(&found).await;
    progress.resolved(image.manifest.digest(), &plan(&wanted, &found, &by_index, &lacking));
    by_index.notes.iter().for_each(|note| progress.note(note));
    let missing: Vec<&Wanted> = wanted.iter().filter(|layer| !found.contains_key(&layer.blob.digest)).collect();
    let Tables { config, outcomes, only_boot } = indexing.tables(&missing, &plain, early).await?;
    only_boot.notes.iter().for_each(|note| progress.note(note));
    let mut to_stream = indexing.to_prove(&mut found, &config, &lacking);
    to_stream.extend(indexing.without_table(&mut found, missing.into_iter().zip(outcomes), &by_index));
    indexing.stream(to_stream, &config, &mut found).await?;
    let layers = indexing.in_order(found, &config)?;
    let fetched = by_index.fetched + only_boot.fetched;
    Ok(Indexes { config, layers, boot: by_index.boot.or(only_boot.boot), fetched, shared: indexing.shared })
}

/// What the steps of [`index_all`] have in common.
struct Indexing<'a> {
    store: &'a Store,
    repository: &'a Repository,
    image: &'a ResolvedImage,
    /// The distinct layers.
    wanted: &'a [Wanted],
    /// The indexes and the boot pack that may be used, if the image may have some.
    choice: Option<(Choice<'a>, Option<PackWanted<'a>>)>,
    /// Whether every byte must have been seen.
    is_whole: bool,
    limits: LayerLimits,
    allowance: Allowance,
    shared: Option<SharedLayers>,
    blobs: Arc<dyn BlobSource>,
    progress: &'a dyn Progress,
}

/// What one round trip returns.
struct Tables {
    config: ImageConfig,
    /// Of each layer that is not kept.
    outcomes: Vec<ByToc>,
    /// The boot pack of an image without plain layers.
    only_boot: SearchResult,
}

impl<'a> Indexing<'a> {
    fn new(
        images: &'a Images,
        repository: &'a Repository,
        image: &'a ResolvedImage,
        extent: Extent<'a>,
        limits: LayerLimits,
        wanted: &'a [Wanted],
        progress: &'a dyn Progress,
    ) -> Self {
        let shared = shared_layers(images.tier(), extent, progress);
        let choice = match extent {
            Extent::Index(choice, pack) => Some((choice, pack)).filter(|(choice, _)| choice.may_have(image)),
            Extent::Own | Extent::Whole => None,
        };
        let blobs = at_rate(tiers::blobs(repository, shared.as_ref().map(SharedLayers::tier)), limits.rate);
        Self {
            store: images.store(),
            repository,
            image,
            wanted,
            choice,
            is_whole: matches!(extent, Extent::Whole),
            limits,
            allowance: Allowance::default(),
            shared,
            blobs,
            progress,
        }
    }

    /// The layers whose indexes the store has.
    fn kept(&self) -> Indexed {
        let load = |layer: &Wanted| {
            let kept = kept::load(self.store, layer.blob, &layer.claim, &self.allowance)?;
            Some((layer.blob.digest, kept))
        };
        self.wanted.iter().filter_map(load).collect()
    }

    /// The layers that have no table of contents and no kept index.
    fn plain(&self, found: &Indexed) -> Vec<Blob> {
        let is_plain = |layer: &&Wanted| matches!(layer.claim, Claim::Plain) && !found.contains_key(&layer.blob.digest);
        self.wanted.iter().filter(is_plain).map(|layer| layer.blob).collect()
    }

    /// The tier, if its indexes may be used.
    fn trusted_tier(&self) -> Option<&SharedLayers> {
        self.shared.as_ref().filter(|shared| shared.trusts_indexes)
    }

    /// Looks for indexes of these layers. That takes as long as the config, without which no layer can be streamed: the config comes along.
    async fn search(&self, plain: &[Blob]) -> Result<(Option<ImageConfig>, SearchResult)> {
        if plain.is_empty() || (self.choice.is_none() && self.trusted_tier().is_none()) {
            return Ok((None, SearchResult::default()));
        }
        let finding = async {
            let mut found = self.attached(plain).await;
            if let Some(shared) = self.trusted_tier() {
                found.add(shared.find(&found.rest(plain), &self.allowance).boxed().await);
            }
            found
        };
        let (config, by_index) = futures::join!(access::config(self.repository, self.image), finding);
        Ok((Some(config?), by_index))
    }

    /// What the chosen repositories have: indexes of these layers, and the boot pack.
    async fn attached(&self, layers: &[Blob]) -> SearchResult {
        let Some((choice, pack)) = self.choice else { return SearchResult::default() };
        let sought = find::Wanted { layers, pack, allowance: &self.allowance };
        find::find(choice, self.repository, self.image, sought).boxed().await
    }

    /// The layers that a pull of the whole image has to stream: those that are incomplete here, and those that the tier lacks.
    async fn lacking(&self, found: &Indexed) -> HashSet<Digest> {
        if !self.is_whole {
            return HashSet::new();
        }
        let mut lacking = incomplete(self.store, self.wanted, found);
        if let Some(shared) = &self.shared {
            lacking.extend(shared.lacks(self.wanted.iter().map(|layer| layer.blob)).await);
        }
        lacking
    }

    /// Fetches the config, the tables of contents of these layers, and the boot pack if nothing else needs an index: in one round trip.
    async fn tables(&self, missing: &[&Wanted], plain: &[Blob], early: Option<ImageConfig>) -> Result<Tables> {
        let tables =
            missing.iter().map(|layer| through_toc(layer, &*self.blobs, &self.allowance, self.progress).boxed());
        let tables = stream::iter(tables.collect::<Vec<_>>()).buffered(TABLES).try_collect::<Vec<_>>();
        let config = async {
            match early {
                Some(config) => Ok(config),
                None => access::config(self.repository, self.image).await,
            }
        };
        let boot = async { if plain.is_empty() { self.attached(&[]).await } else { SearchResult::default() } };
        let (tables, only_boot) = futures::join!(async { futures::try_join!(config, tables) }, boot);
        let (config, outcomes) = tables?;
        Ok(Tables { config, outcomes, only_boot })
    }

    /// The kept layers of which every byte must be seen (again).
    fn to_prove(&self, found: &mut Indexed, config: &ImageConfig, lacking: &HashSet<Digest>) -> Vec<ToStream<'a>> {
        let mut to_stream = Vec::new();
        for layer in self.wanted {
            let Some(kept) = found.get(&layer.blob.digest) else { continue };
            // Kept for an image whose config names another diffID: one of the two configs is wrong. Streaming decides.
            let is_named = kept.is_what_config_names(config, layer.number);
            if !is_named {
                found.remove(&layer.blob.digest);
            }
            if !is_named || lacking.contains(&layer.blob.digest) {
                to_stream.push(ToStream::whole(layer));
            }
        }
        to_stream
    }

    /// Adds the layers that have a table of contents or an index, and returns those that must be streamed.
    fn without_table(
        &self,
        found: &mut Indexed,
        outcomes: impl Iterator<Item = (&'a Wanted, ByToc)>,
        by_index: &SearchResult,
    ) -> Vec<ToStream<'a>> {
        let mut to_stream = Vec::new();
        for (layer, outcome) in outcomes {
            match (outcome, by_index.of(&layer.blob)) {
                (ByToc::Indexed(indexed), _) => {
                    self.keep(found, layer, *indexed);
                    if self.is_whole {
                        to_stream.push(ToStream::whole(layer));
                    }
                }
                // Not kept for other images: it is trusted for this one only.
                (ByToc::MustStream { .. }, Some(usable)) => {
                    self.progress.layer_done(layer.number);
                    found.insert(layer.blob.digest, self.claimed(usable));
                }
                (ByToc::MustStream { fallback }, None) => {
                    let by_index = matches!(layer.claim, Claim::Plain) && self.trusted_tier().is_some();
                    to_stream.push(ToStream { layer, fallback, by_index });
                }
            }
        }
        to_stream
    }

    /// Streams these layers, unless another host shares an index of them meanwhile.
    async fn stream(&self, mut to_stream: Vec<ToStream<'a>>, config: &ImageConfig, found: &mut Indexed) -> Result<()> {
        if let Some(first) = to_stream.first().filter(|_| !self.limits.may_stream) {
            return Err(must_stream(first.layer, to_stream.len()));
        }
        if let Some(shared) = &self.shared {
            to_stream.sort_by_key(|layer| shared.order_of(&layer.layer.blob.digest));
        }
        let at_once = if self.shared.is_some() { shared::WATCHED } else { STREAMS };
        // Boxed and collected: otherwise the compiler rejects the returned future as not `Send`.
        let streams = to_stream.into_iter().map(|layer| {
            let into = Into { store: self.store.clone(), allowance: self.allowance.clone() };
            obtain(layer, config, self.blobs.clone(), into, self.shared.as_ref(), self.progress).boxed()
        });
        let mut streams = stream::iter(streams.collect::<Vec<_>>()).buffer_unordered(at_once);
        while let Some((wanted, obtained)) = streams.try_next().await? {
            match obtained {
                Obtained::Streamed(layer) => {
                    // Every reader reads the layer through its table of contents. Streaming only proved that the layer is correct.
                    let layer = match found.remove(&wanted.blob.digest) {
                        Some(by_toc) => by_toc.proved_by(&layer),
                        None => *layer,
                    };
                    self.keep(found, wanted, layer);
                }
                Obtained::Indexed(usable) => {
                    found.insert(wanted.blob.digest, self.claimed(&usable));
                }
            }
        }
        if let Some(shared) = &self.shared {
            shared.note_uses(self.wanted.iter().map(|layer| layer.blob));
            if let Some(problem) = shared.problem() {
                self.progress.note(&problem);
            }
        }
        Ok(())
    }

    /// Keeps the index for all images that have the layer.
    fn keep(&self, found: &mut Indexed, wanted: &Wanted, layer: Layer) {
        let packed = Some(kept::save(self.store, &wanted.claim, &layer));
        found.insert(layer.blob.digest, Layer { packed, ..layer });
    }

    /// The layer as an index describes it, which is kept for this image only: it is not trusted for others.
    fn claimed(&self, usable: &Usable) -> Layer {
        let claimed = Layer::by_index(usable.indexed.clone(), usable.format, usable.verification);
        let packed = Some(kept::save_claim(self.store, self.image.manifest.digest(), usable.index, &claimed));
        Layer { packed, ..claimed }
    }

    /// The layers as the manifest lists them.
    fn in_order(&self, mut found: Indexed, config: &ImageConfig) -> Result<Vec<Layer>> {
        let listed = &self.image.manifest.layers;
        let layer = |(number, layer): (usize, &Descriptor)| {
            // An index may be large: it is copied only for a blob that the image has again.
            let is_last = listed[number + 1..].iter().all(|later| later.digest != layer.digest);
            let found = if is_last { found.remove(&layer.digest) } else { found.get(&layer.digest).cloned() };
            let found = found.ok_or_else(|| Error::new(ErrorKind::Other, "index the layers", "one was lost"))?;
            // A blob that the image has twice was compared with the first of its diffIDs.
            if !found.is_what_config_names(config, number) {
                let cause = "the config has two diffIDs for one blob";
                return Err(Error::new(ErrorKind::Refused, step(number, &layer.digest), cause));
            }
            Ok(found)
        };
        listed.iter().enumerate().map(layer).collect()
    }
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
fn incomplete(store: &Store, wanted: &[Wanted], found: &Indexed) -> HashSet<Digest> {
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

fn plan(wanted: &[Wanted], found: &Indexed, by_index: &SearchResult, lacking: &HashSet<Digest>) -> Vec<LayerPlan> {
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
