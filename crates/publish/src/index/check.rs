//! Checks a published index against the layers themselves.

use serde::Serialize;
use tarpon_images::index::compare::{Verdict, compare};
use tarpon_images::index::find;
use tarpon_images::index::places::IndexPlaces;
use tarpon_images::index::search_result::Usable;
use tarpon_images::prepare::layer::Layer;
use tarpon_images::prepare::preparation::index_layers;
use tarpon_images::progress::Progress;
use tarpon_images::{ImageRequest, Images, access, admission};
use tarpon_oci::Digest;
use tarpon_store::{LayerKind, Store, StoreError};

use crate::{Error, ErrorKind, Result, ResultExt};

/// The result of checking a published index.
#[derive(Debug, Clone, Serialize)]
pub struct IndexCheck {
    /// Digest of the index.
    pub index_digest: Digest,
    /// Digest of the image's manifest.
    pub manifest_digest: Digest,
    /// Layers that the index covers.
    pub layers: usize,
    /// False claims of the index about layers, one line each.
    pub differences: Vec<String>,
    /// What could not be compared, one line each: files that it cuts differently, and that the store does not keep.
    pub unchecked: Vec<String>,
}

/// Compares a published index with the layers themselves, which are all read for it.
///
/// It compares the index's names, attributes, contents and the digests of their chunks, however it cuts them. Places are not compared:
/// a wrong place leads to bytes that no digest matches, which are never served. Places of zeros are, as they are fetched from nowhere.
pub async fn check_index(
    images: &Images,
    request: &ImageRequest,
    index: &Digest,
    progress: &dyn Progress,
) -> Result<IndexCheck> {
    let repository = access::open(&request.text, &request.access).await?;
    let image = admission::resolve(&repository, &request.access, &request.platform).await?;
    // Objects of files that the index cuts differently must stay until they have been compared.
    let part = images.for_image(&request.text, &request.access)?;
    let pin = part.store().pin().context(ErrorKind::Store, "pin the layers")?;
    let layers = index_layers(&part, &repository, &image, progress).await?;
    let wanted: Vec<_> = layers.iter().map(|layer| layer.blob).collect();
    let places = IndexPlaces::of(request)?;
    let found = find::with_digest(index, &places, &repository, &image, &wanted).await;
    let step = "check the index";
    if found.layers.is_empty() {
        return Err(Error::new(ErrorKind::Refused, step, found.notes.join("; ")));
    }
    if found.layers.iter().any(|layer| layer.format == LayerKind::Soci) {
        let cause = "it is a SOCI index, which has no digests of contents to compare";
        return Err(Error::new(ErrorKind::Refused, step, cause).hint("`tarpon pull` compares everything else of it"));
    }
    let mut check = IndexCheck {
        index_digest: *index,
        manifest_digest: *image.manifest.digest(),
        layers: found.layers.len(),
        differences: Vec::new(),
        unchecked: Vec::new(),
    };
    let store = part.store().clone();
    let comparing = tokio::task::spawn_blocking(move || {
        let _pin = pin;
        check.compare(&store, &found.layers, &layers).map(|()| check)
    });
    let compared = comparing.await.context(ErrorKind::Other, step)?;
    compared.context(ErrorKind::Store, step)
}

impl IndexCheck {
    fn compare(&mut self, store: &Store, claims: &[Usable], layers: &[Layer]) -> std::result::Result<(), StoreError> {
        for Usable { indexed: claimed, .. } in claims {
            let Some(is) = layers.iter().find(|layer| layer.blob == claimed.blob) else { continue };
            let layer = claimed.blob.digest;
            match compare(store, &claimed.index, &is.index)? {
                Verdict::True => {}
                Verdict::Lie(path) => self.differences.push(format!("layer {layer}: the index is wrong about {path}")),
                Verdict::Unchecked(path) => {
                    self.unchecked.push(format!("layer {layer}: {path} and perhaps others are not in the store"));
                }
            }
        }
        Ok(())
    }
}
