//! SOCI indexes: indexes that AWS's tools put beside an image, with a ztoc for each of its larger gzip layers.
//!
//! | | found | as sure as |
//! |---|---|---|
//! | version 2 | by the digest in an annotation of the image's manifest | that manifest: no consent of the user is needed |
//! | version 1 | in the registry's list of referrers of the image | the registry's list: only if the user allows it |
//! | any | by the digest that the user pinned | its author |

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use tarpon_layer::Allowance;
use tarpon_layer::decode::Compression;
use tarpon_layer::soci::{Options, index_within};
use tarpon_oci::{Blob, Descriptor, Digest, Manifest, MediaType, Verified, limits};
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::{LayerKind, Verification};

use super::artifact::Indexed;
use super::search_result::{CANDIDATES, SearchResult, Usable};
use super::whole::whole;

const V1: &str = "application/vnd.amazon.soci.index.v1+json";
const V2: &str = "application/vnd.amazon.soci.index.v2+json";
/// Annotation on the manifest of an image: its index.
pub const INDEX_DIGEST: &str = "com.amazon.soci.index-digest";
/// Annotation on a ztoc: the layer that it describes.
const LAYER_DIGEST: &str = "com.amazon.soci.image-layer-digest";
/// Annotation on a ztoc: the layer has no xattrs that matter.
const DISABLE_XATTRS: &str = "com.amazon.soci.disable-xattrs";

/// Ztocs fetched and parsed at the same time. Each is held in memory as a whole.
const ZTOCS: usize = 4;

/// Whether the image names an index of its own.
pub(super) fn is_named(image: &ResolvedImage) -> bool {
    image.manifest.annotations.contains_key(INDEX_DIGEST)
}

/// The index that the image names itself.
pub(super) async fn named(
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
    allowance: &Allowance,
) -> SearchResult {
    let Some(text) = image.manifest.annotations.get(INDEX_DIGEST) else { return SearchResult::default() };
    let Ok(digest) = text.parse::<Digest>() else {
        return SearchResult::without(
            "the SOCI index that the image names is not used: its name is no digest".to_owned(),
        );
    };
    let fetched = async {
        let index = SociIndex::fetch(repository, &digest).await?;
        match index.kind() {
            V2 => index.layers(repository, wanted, Verification::Soci, allowance).await,
            other => Err(format!("it is a {other}")),
        }
    };
    match fetched.await {
        Ok(found) => found.because(&digest, "", "as the image names it"),
        Err(reason) => {
            SearchResult::without(format!("the SOCI index {digest} that the image names is not used: {reason}"))
        }
    }
}

/// An index of version 1 that the registry lists for the image.
pub(super) async fn listed(
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
    allowance: &Allowance,
) -> SearchResult {
    // A failure to fetch the list was reported when it was queried for other indexes.
    let list = repository.referrers(image.manifest.digest(), V1).await.unwrap_or_default();
    let mut found = SearchResult::default();
    for candidate in list.iter().rev().take(CANDIDATES) {
        let fetched = async {
            let index = SociIndex::fetch(repository, &candidate.digest).await?;
            index.check_subject(image)?;
            index.layers(repository, wanted, Verification::IndexTrusted, allowance).await
        };
        match fetched.await {
            Ok(found) => return found.because(&candidate.digest, "", "because the registry lists it"),
            Err(reason) => {
                found = SearchResult::without(format!("the SOCI index {} is not used: {reason}", candidate.digest))
            }
        }
    }
    found
}

/// A manifest that is a SOCI index.
pub(super) struct SociIndex(Manifest);

impl SociIndex {
    /// The index, if `manifest` is one.
    pub(super) fn of(manifest: &Verified<Bytes>) -> Option<Self> {
        let index = Self(Manifest::parse(manifest.clone()).ok()?);
        [V1, V2].contains(&index.kind()).then_some(index)
    }

    async fn fetch(repository: &Repository, digest: &Digest) -> Result<Self, String> {
        let bytes = repository.manifest(digest).await.map_err(|error| error.to_string())?;
        Self::of(&bytes).ok_or_else(|| "it is no SOCI index".to_owned())
    }

    /// The index that the user pinned.
    pub(super) async fn pinned(
        &self,
        repository: &Repository,
        image: &ResolvedImage,
        wanted: &[Blob],
        allowance: &Allowance,
    ) -> Result<SearchResult, String> {
        if self.kind() == V1 {
            self.check_subject(image)?;
        }
        self.layers(repository, wanted, Verification::IndexPinned, allowance).await
    }

    /// The kind of the index, which its writers put in the type of the config, as was usual before a field for it existed.
    fn kind(&self) -> &str {
        match (&self.0.artifact_type, &self.0.config.media_type) {
            (Some(kind), _) | (None, MediaType::Other(kind)) => kind,
            _ => "",
        }
    }

    fn check_subject(&self, image: &ResolvedImage) -> Result<(), String> {
        let subject = self.0.subject.as_ref().map(|subject| subject.digest);
        let is_this = subject == Some(*image.manifest.digest());
        if is_this { Ok(()) } else { Err("it is about another image".to_owned()) }
    }

    /// Fetches the ztocs of these layers. An unusable one costs its layer, and a line.
    async fn layers(
        &self,
        repository: &Repository,
        wanted: &[Blob],
        verification: Verification,
        allowance: &Allowance,
    ) -> Result<SearchResult, String> {
        let of = |layer: &Blob| self.0.layers.iter().find(|ztoc| is_about(ztoc, layer));
        let ztocs = wanted.iter().filter_map(|layer| Some((*layer, of(layer)?)));
        let fetches =
            ztocs.map(|(layer, ztoc)| async move { (layer, fetch(repository, layer, ztoc, allowance).await) }.boxed());
        // Collected: otherwise the compiler rejects the returned future as not `Send`.
        let fetches: Vec<_> = fetches.collect();
        let mut fetches = stream::iter(fetches).buffer_unordered(ZTOCS);
        let mut found = SearchResult::default();
        while let Some((layer, fetched)) = fetches.next().await {
            match fetched {
                Ok(indexed) => found.layers.push(Usable {
                    indexed,
                    index: *self.0.digest(),
                    verification,
                    format: LayerKind::Soci,
                }),
                Err(reason) => {
                    found.notes.push(format!("the ztoc of layer {} is not used: {reason}", layer.digest));
                }
            }
        }
        if found.layers.is_empty() && found.notes.is_empty() {
            return Err("it covers no layer that needs one".to_owned());
        }
        Ok(found)
    }
}

fn is_about(ztoc: &Descriptor, layer: &Blob) -> bool {
    ztoc.annotations.get(LAYER_DIGEST).is_some_and(|digest| *digest == layer.digest.to_string())
}

async fn fetch(
    repository: &Repository,
    layer: Blob,
    ztoc: &Descriptor,
    allowance: &Allowance,
) -> Result<Indexed, String> {
    if ztoc.size > limits::ZTOC_BYTES {
        return Err(format!("it has {} bytes, more than {}", ztoc.size, limits::ZTOC_BYTES));
    }
    let bytes = whole(repository, ztoc.blob()).await?;
    let without_xattrs = ztoc.annotations.get(DISABLE_XATTRS).is_some_and(|value| value == "true");
    allowance.receive(ztoc.size);
    let allowance = allowance.clone();
    let parsing =
        tokio::task::spawn_blocking(move || index_within(&bytes, layer, Options { without_xattrs }, &allowance));
    let index = parsing.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    Ok(Indexed { blob: layer, compression: Compression::Gzip, index })
}
