//! Labels in which containerd describes the layer that it is about to unpack into a snapshot.

use tarpon_oci::{Digest, Reference};

use crate::pull_credentials::name_of;
use crate::record::Labels;

/// Chain ID of the layers up to this one: the name by which containerd will look up the snapshot.
pub(crate) const REF: &str = "containerd.io/snapshot.ref";

/// The image, as it is pulled. This and the next two are set by the CRI plugin of containerd 1.4 and newer, by nerdctl, by Docker with
/// containerd's image store and, if so configured, by the transfer service.
const IMAGE: &str = "containerd.io/snapshot/cri.image-ref";

/// Digest of the manifest.
const MANIFEST: &str = "containerd.io/snapshot/cri.manifest-digest";

/// Digest of the layer.
const LAYER: &str = "containerd.io/snapshot/cri.layer-digest";

/// Set by tarpon: the layers of an image that the snapshot mounts.
pub(crate) const LAZY: &str = "tarpon/lazy";

/// Set by tarpon: the reason why a layer was unpacked although it could have been mounted.
pub(crate) const UNPACKED: &str = "tarpon/unpacked-because";

/// Limit of containerd on the length of a label, name and value together.
const LABEL_BYTES: usize = 4096;

/// A layer of an image that is being pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PulledLayer {
    /// Chain ID of this layer and all layers below.
    pub(crate) chain_id: Digest,
    /// The name by which the image is pulled.
    pub(crate) name: Reference,
    /// The image, pinned to its manifest.
    pub(crate) image: Reference,
    /// Digest of the manifest.
    pub(crate) manifest: Digest,
}

/// The layer that the labels describe. `None` if they describe none, as with `ctr images pull`. An error if they are invalid.
pub(crate) fn pulled_layer(labels: &Labels) -> Option<Result<PulledLayer, String>> {
    let label = |name: &str| labels.get(name);
    let (chain_id, image) = (label(REF)?, label(IMAGE)?);
    let read = || {
        let digest = |text: &str| text.parse::<Digest>().map_err(|error| error.to_string());
        let manifest = label(MANIFEST).ok_or_else(|| format!("there is no label {MANIFEST}"))?;
        let manifest = digest(manifest)?;
        label(LAYER).map(|layer| digest(layer)).transpose()?;
        let image: Reference = image.parse().map_err(|error| format!("{image:?} is no image: {error}"))?;
        let (chain_id, pinned) = (digest(chain_id)?, image.pinned(manifest));
        Ok(PulledLayer { chain_id, name: name_of(image), image: pinned, manifest })
    };
    Some(read())
}

/// The image that the labels name, for the policy: pinned like that of [`pulled_layer`] if they can be read, else as they name it.
pub(crate) fn image(labels: &Labels) -> Option<String> {
    let layer = pulled_layer(labels)?;
    layer.map_or_else(|_| labels.get(IMAGE).cloned(), |layer| Some(layer.image.to_string()))
}

/// Digest of the layer according to the labels.
pub(crate) fn layer(labels: &Labels) -> Option<&String> {
    labels.get(LAYER)
}

/// Adds a label.
pub(crate) fn with(mut labels: Labels, name: &str, value: &str) -> Labels {
    let mut end = value.len().min(LABEL_BYTES - name.len());
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    labels.insert(name.to_owned(), value[..end].to_owned());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, String)]) -> Labels {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn a_pulled_layer_is_known_by_its_labels() {
        let (chain, manifest) = (Digest::of(b"chain"), Digest::of(b"manifest"));
        let mut all = labels(&[
            (REF, chain.to_string()),
            (IMAGE, "docker.io/library/redis:7".to_owned()),
            (MANIFEST, manifest.to_string()),
            (LAYER, Digest::of(b"layer").to_string()),
        ]);
        let layer = pulled_layer(&all).unwrap().unwrap();
        assert_eq!((layer.chain_id, layer.manifest), (chain, manifest));
        assert_eq!(layer.image.to_string(), format!("docker.io/library/redis@{manifest}"));
        assert_eq!(layer.name.to_string(), "docker.io/library/redis:7");
        for (name, value) in [(MANIFEST, "sha512:00"), (IMAGE, "no image"), (REF, "7"), (LAYER, "x")] {
            let wrong = with(all.clone(), name, value);
            assert!(pulled_layer(&wrong).unwrap().is_err(), "{name}");
        }
        assert_eq!(image(&all), Some(layer.image.to_string()));
        let unknown = "localhost:5000/app@sha512:00";
        assert_eq!(image(&with(all.clone(), IMAGE, unknown)).as_deref(), Some(unknown), "for the policy as it is");
        all.remove(MANIFEST);
        assert!(pulled_layer(&all).unwrap().unwrap_err().contains(MANIFEST));
        all.remove(IMAGE);
        assert!(pulled_layer(&all).is_none());
    }

    #[test]
    fn our_labels_are_no_longer_than_containerd_takes() {
        let long = with(Labels::new(), UNPACKED, &"ä".repeat(4000));
        let length = long[UNPACKED].len();
        assert!(UNPACKED.len() + length <= LABEL_BYTES && length > 4000, "{length}");
    }
}
