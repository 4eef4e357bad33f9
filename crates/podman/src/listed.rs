//! [`Listed`]: an image exposed to Podman, with everything needed for that.

use std::sync::Arc;

use bytes::Bytes;
use tarpon_oci::{Digest, ImageConfig};
use tarpon_store::{Store, StoreError};

use super::documents::{self, Originals};
use super::forms::Forms;
use crate::diff_fs::DiffFs;
use crate::{Error, ErrorKind, Result, ResultExt};

/// The parts of an image that come from its record.
pub(crate) struct Listed {
    pub(crate) originals: Originals,
    pub(crate) created: Option<String>,
    pub(crate) forms: Forms,
    /// Each layer by itself, lowest first.
    pub(crate) alone: Vec<Arc<DiffFs<Bytes>>>,
    /// The topmost layer merged with all below.
    pub(crate) merged: Arc<DiffFs<Bytes>>,
    /// The chunk table of content that no merged tree shows.
    pub(crate) hidden: Option<Bytes>,
}

impl Listed {
    /// Reads the image's record. `tree` is its merged tree.
    pub(crate) fn load(store: &Store, manifest: &Digest, tree: Bytes) -> Result<Self> {
        let step = "load the image's record";
        let gone = || Error::new(ErrorKind::Store, step, "it is not in the store, or damaged");
        let io = |error: StoreError| Error::new(ErrorKind::Store, step, error.to_string());
        let text = store.image_manifest(manifest).map_err(io)?.ok_or_else(gone)?;
        let config = store.image_config(manifest).map_err(io)?.ok_or_else(gone)?;
        let originals = Originals {
            manifest: (*text).clone(),
            manifest_digest: *text.digest(),
            config: (*config).clone(),
            id: *config.digest(),
        };
        let config = ImageConfig::parse(config).context(ErrorKind::Store, step)?;
        let bytes = store.image_forms(manifest).map_err(io)?.map(Bytes::from_owner);
        let forms = bytes.and_then(|bytes| Some((Forms::read(&bytes)?, bytes)));
        let (forms, bytes) = forms.ok_or_else(|| {
            Error::new(ErrorKind::Store, step, "what its layers are is not kept with it")
                .hint("add the image again: tarpon podman add")
        })?;
        let damaged = |error: tarpon_tree::erofs::ImageError| Error::new(ErrorKind::Store, step, error.to_string());
        let alone = (0..forms.layers.len()).map(|number| DiffFs::alone(forms.image(&bytes, number)).map(Arc::new));
        let alone: Vec<_> = alone.collect::<std::result::Result<_, _>>().map_err(damaged)?;
        // A single layer equals the merged tree.
        let merged = match &alone[..] {
            [only] => only.clone(),
            _ => {
                let below = forms.names_below.iter().map(|name| name.clone().into_boxed_slice());
                Arc::new(DiffFs::merged(tree, below).map_err(damaged)?)
            }
        };
        let created = config.created.as_deref().and_then(documents::created);
        let hidden = forms.hidden(&bytes);
        Ok(Self { originals, created, forms, alone, merged, hidden })
    }

    /// The image's id in Podman.
    pub(crate) fn id(&self) -> Digest {
        self.originals.id
    }
}

#[cfg(test)]
impl Listed {
    /// An image named `name` whose layers have these contents: images with the same lowest contents share these layers.
    pub(crate) fn test(name: &str, layers: &[&str]) -> Self {
        use tarpon_testkit::entries::{file, layer};
        let tree = |content: &str| {
            let layers = [layer([file("f", content)])];
            Bytes::from(tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap()))
        };
        let alone = layers.iter().map(|content| Arc::new(DiffFs::alone(tree(content)).unwrap())).collect();
        let below = [Box::<[u8]>::from(&b"old"[..])];
        let config = Bytes::copy_from_slice(name.as_bytes());
        let id = Digest::of(&config);
        let originals = Originals { manifest: config.clone(), manifest_digest: id, config, id };
        let diff_ids: Vec<_> = layers.iter().map(|content| Digest::of(content.as_bytes())).collect();
        let merged = Arc::new(DiffFs::merged(tree("merged"), below).unwrap());
        Self { originals, created: None, forms: Forms::test(&diff_ids), alone, merged, hidden: None }
    }
}
