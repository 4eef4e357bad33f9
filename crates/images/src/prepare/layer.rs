//! A layer of an image: as its manifest describes it, and indexed.

use tarpon_layer::LayerIndex;
use tarpon_layer::decode::Compression;
use tarpon_layer::toc::Claim;
use tarpon_oci::{Blob, Descriptor, Digest, ImageConfig};
use tarpon_store::{LayerKind, Verification};

use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::index::artifact::Indexed;
use crate::index::find::Choice;
use crate::index::pack::PackWanted;
use crate::index::places::IndexPlace;

/// An indexed layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The layer's blob.
    pub blob: Blob,
    /// How it is compressed.
    pub compression: Compression,
    /// How it is read.
    pub(crate) format: LayerKind,
    /// What it was checked against.
    pub verification: Verification,
    /// The hash of its tar, if every byte was seen.
    pub diff_id: Option<Digest>,
    /// Its files and their places.
    pub index: LayerIndex,
    /// Digest of the index in its packed form, if it is kept.
    pub packed: Option<Digest>,
    /// End of the range to prefetch, as the layer declares it: everything that begins before this byte of the blob.
    pub(crate) prefetch: Option<u64>,
    /// Bytes received from its source to make the index.
    pub(crate) received: u64,
    /// Why a layer with a table of contents still had to be streamed.
    pub(crate) fallback: Option<String>,
}

impl Layer {
    /// The layer as an external index describes it, of which no byte was seen.
    pub(crate) fn by_index(indexed: Indexed, format: LayerKind, verification: Verification) -> Self {
        let Indexed { blob, compression, index } = indexed;
        Self {
            blob,
            compression,
            format,
            verification,
            diff_id: None,
            index,
            packed: None,
            prefetch: None,
            received: 0,
            fallback: None,
        }
    }

    /// Whether its content and places are known from an index only: it has no readable table of contents.
    pub fn needs_index(&self) -> bool {
        self.format.is_plain()
    }

    /// Whether every byte of it was seen locally.
    pub fn was_streamed(&self) -> bool {
        self.verification == Verification::DiffId
    }
}

/// How much of the layers is fetched.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent<'a> {
    /// Enough to know their content. The index may come from the sources that the choice allows, together with the wanted boot pack.
    Index(Choice<'a>, Option<PackWanted<'a>>),
    /// The same, from the layers alone.
    Own,
    /// Every byte that is missing: afterwards all objects are in the store and all layers are verified.
    Whole,
}

impl<'a> Extent<'a> {
    /// The index repositories that are searched.
    pub(crate) fn places(&self) -> &'a [IndexPlace] {
        match self {
            Self::Index(choice, _) => choice.places.list(),
            Self::Own | Self::Whole => &[],
        }
    }
}

/// A layer as the manifest describes it.
pub(crate) struct Wanted {
    pub(crate) number: usize,
    pub(crate) blob: Blob,
    pub(crate) claim: Claim,
}

impl Layer {
    /// The layer, read through its table of contents as before, after its bytes were seen.
    pub(crate) fn proved_by(self, streamed: &Self) -> Self {
        Self { verification: streamed.verification, diff_id: streamed.diff_id, ..self }
    }

    /// Whether the config is consistent with the layer being the one with this number.
    pub(crate) fn is_what_config_names(&self, config: &ImageConfig, number: usize) -> bool {
        self.diff_id.is_none_or(|diff_id| config.diff_ids.get(number) == Some(&diff_id))
    }
}

/// Each blob once, with the claims of its descriptor.
pub(crate) fn wanted(layers: &[Descriptor]) -> Result<Vec<Wanted>> {
    let mut wanted: Vec<Wanted> = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let claim = Claim::of(&layer.media_type, &layer.annotations, layer.size)
            .context(ErrorKind::Refused, step(number, &layer.digest))?;
        match wanted.iter().find(|other| other.blob.digest == layer.digest) {
            None => wanted.push(Wanted { number, blob: layer.blob(), claim }),
            Some(other) if other.claim == claim && other.blob == layer.blob() => {}
            Some(other) => {
                let cause = format!("layer {} is the same blob and claims something else of it", other.number + 1);
                return Err(Error::new(ErrorKind::Refused, step(number, &layer.digest), cause));
            }
        }
    }
    Ok(wanted)
}

/// "read layer 3 (sha256:…)", counted from one.
pub(crate) fn step(number: usize, digest: &Digest) -> String {
    format!("read layer {} ({digest})", number + 1)
}
