//! The layers of an image that was prepared before, as they were when its record was made.

use tarpon_layer::{Allowance, LayerIndex};
use tarpon_oci::{Digest, Hasher, ImageConfig, Manifest};
use tarpon_store::{ImageRecord, LayerRecord, Part, Store};
use tarpon_tree::{Tree, erofs, merge};

use super::layer::{self, Extent, Layer};
use super::preparation::rules;
use super::{kept, layers};
use crate::access;
use crate::admission;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::ImageRequest;
use crate::images::Images;
use crate::index::find::Choice;
use crate::index::places::IndexPlaces;
use crate::progress::Progress;

/// An image's layers.
pub struct KnownLayers {
    /// Lowest first, without their indexes.
    pub layers: Vec<Layer>,
    /// The indexes.
    pub indexes: Vec<LayerIndex>,
}

impl KnownLayers {
    fn of(layers: Vec<Layer>) -> Self {
        let taken = layers.into_iter().map(|mut layer| (std::mem::take(&mut layer.index), layer));
        let (indexes, layers) = taken.unzip();
        Self { layers, indexes }
    }

    /// The lowest of them, with their indexes.
    pub fn lowest(self, count: usize) -> Vec<Layer> {
        let Self { layers, indexes } = self;
        layers.into_iter().zip(indexes).take(count).map(|(layer, index)| Layer { index, ..layer }).collect()
    }
}

/// The layers, lowest first: from what is kept, or indexed again where they are no longer kept.
///
/// # Errors
/// [`ErrorKind::Refused`] if the layers differ from those that the record was made of: then they are not what is mounted of the image.
pub async fn known_layers(
    images: &Images,
    request: &ImageRequest,
    record: &ImageRecord,
    progress: &dyn Progress,
) -> Result<KnownLayers> {
    let (store, known) = (images.store().clone(), record.clone());
    let kept = blocking(move || {
        let kept = kept_layers(&store, &known)?.map(KnownLayers::of);
        Ok(kept.filter(|kept| fit(kept, &known)))
    });
    if let Some(kept) = kept.await? {
        return Ok(kept);
    }
    let repository = access::open(&request.text, &request.access).await?;
    let image = admission::resolve(&repository, &request.access, &request.platform).await?;
    if *image.manifest.digest() != record.manifest {
        let cause = "the name refers to another image now, and the indexes of this image's layers are no longer kept";
        return Err(Error::new(ErrorKind::Refused, "read the layers", cause).hint("add it with --pull always"));
    }
    // Content fetched here is needed until it is kept with the image's record, which protects it.
    let _pin = images.store().pin().context(ErrorKind::Store, "pin the import")?;
    let places = IndexPlaces::of(request)?;
    let rules = rules(request, &record.manifest, &places)?;
    let extent = Extent::Index(Choice { rules: &rules, places: &places }, None);
    let indexed = layers::index_all(images, &repository, &image, extent, request.limits, progress);
    let layers = indexed.await?.layers;
    let known = record.clone();
    blocking(move || {
        let layers = KnownLayers::of(layers);
        if fit(&layers, &known) {
            return Ok(layers);
        }
        let cause = "the layers differ from those of its record";
        Err(Error::new(ErrorKind::Refused, "read the layers", cause)
            .hint("remove the record with `tarpon cache rm`, then try again"))
    })
    .await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context(ErrorKind::Other, "read the layers")?
}

/// All layers, if all are kept.
fn kept_layers(store: &Store, record: &ImageRecord) -> Result<Option<Vec<Layer>>> {
    let step = "load the image's record";
    let gone = || Error::new(ErrorKind::Store, step, "it is not in the store, or damaged");
    let manifest = store.image_manifest(&record.manifest).context(ErrorKind::Store, step)?;
    let manifest = Manifest::parse(manifest.ok_or_else(gone)?).context(ErrorKind::Store, step)?;
    let config = store.image_config(&record.manifest).context(ErrorKind::Store, step)?;
    let config = ImageConfig::parse(config.ok_or_else(gone)?).context(ErrorKind::Store, step)?;
    let wanted = layer::wanted(&manifest.layers)?;
    let allowance = Allowance::default();
    let layer = |(number, descriptor): (usize, &tarpon_oci::Descriptor)| {
        let wanted = wanted.iter().find(|wanted| wanted.blob.digest == descriptor.digest)?;
        let kept = kept::load(store, wanted.blob, &wanted.claim, &allowance);
        kept.filter(|kept| kept.is_what_config_names(&config, number)).or_else(|| {
            let known = record.layers.get(number).filter(|known| known.verification.is_by_index())?;
            kept::claimed_layer(store, &record.manifest, wanted.blob, known)
        })
    };
    Ok(manifest.layers.iter().enumerate().map(layer).collect())
}

/// Whether the record was made of these layers: by their digests, or else because their merge is its tree.
fn fit(known: &KnownLayers, record: &ImageRecord) -> bool {
    let is_same = |(layer, recorded): (&Layer, &LayerRecord)| layer.packed.is_some() && layer.packed == recorded.index;
    if known.layers.len() == record.layers.len() && known.layers.iter().zip(&record.layers).all(is_same) {
        return true;
    }
    let tree = record.part(Part::Tree).map(|part| part.digest);
    tree.is_some() && tree == merge(&known.indexes).ok().and_then(|merged| digest(&merged))
}

/// The digest of the tree's EROFS image.
fn digest(tree: &Tree<'_>) -> Option<Digest> {
    let mut hasher = Hasher::new();
    erofs::write_to(tree, &mut hasher).ok()?;
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use tarpon_layer::decode::Compression;
    use tarpon_oci::Blob;
    use tarpon_store::{LayerKind, Verification};

    use super::*;

    fn known(packed: Option<Digest>) -> KnownLayers {
        let blob = Blob { digest: Digest::of(b"layer"), size: 1 };
        KnownLayers::of(vec![Layer {
            blob,
            compression: Compression::Gzip,
            format: LayerKind::TarGzip,
            verification: Verification::DiffId,
            diff_id: None,
            index: LayerIndex::default(),
            packed,
            prefetch: None,
            received: 1,
            fallback: None,
        }])
    }

    /// A record without a tree: no merge fits it.
    fn record(index: Option<Digest>) -> ImageRecord {
        let layer = LayerRecord {
            digest: Digest::of(b"layer"),
            size: 1,
            format: LayerKind::TarGzip,
            verification: Verification::DiffId,
            prefetch: None,
            index,
        };
        ImageRecord::new(Digest::of(b"manifest"), "image", "linux/amd64", vec![layer])
    }

    #[test]
    fn layers_fit_a_record_that_was_made_of_their_indexes_and_no_other() {
        let [this, other] = [b"this", b"that"].map(|index| Some(Digest::of(index)));
        assert!(fit(&known(this), &record(this)));
        assert!(!fit(&known(other), &record(this)));
        assert!(!fit(&known(None), &record(None)), "nothing is known of either");
    }
}
