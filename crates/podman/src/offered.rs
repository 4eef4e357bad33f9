//! [`Offered`]: an image's layers as Podman's store of layers exposes them, with their metadata.
//!
//! Up to version 5.0, Podman looks up a layer by the digest of its blob and trusts the reported diffID: layers that it pulls later, of any
//! image, are identified with this one if their diffIDs are equal. So by the rule of [`super::ids`] a layer that was not hashed locally is
//! not reported with the diffID that its image claims, unless the user wants that ([`DiffIds::Claimed`]). Nor is it ever reported as the
//! content of its blob: Podman would use it for that blob in other images.
//!
//! From version 5.1 on, Podman looks up layers by the digest of the table of contents, names the layer by that, and treats the claimed
//! diffID as a mere claim.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tarpon_client::protocol::DiffIds;
use tarpon_oci::Digest;
use tarpon_store::{Store, StoreError};

use super::documents;
use super::forms::{Forms, LayerForm};
use crate::diff_fs::DiffFs;
use crate::{Error, ErrorKind, Result, ResultExt};

/// The layers of an image.
pub(crate) struct Offered {
    /// Lowest first.
    layers: Vec<OfferedLayer>,
    /// The chunk table of content that no merged tree shows.
    pub(crate) hidden: Option<Bytes>,
}

/// A layer.
pub(crate) struct OfferedLayer {
    pub(crate) form: LayerForm,
    /// The layer by itself.
    pub(crate) diff: Arc<DiffFs<Bytes>>,
}

impl Offered {
    /// Reads the forms kept with the image's record.
    pub(crate) fn load(store: &Store, manifest: &Digest) -> Result<Self> {
        let step = "load the image's layers";
        let bytes = store
            .image_forms(manifest)
            .map_err(|error: StoreError| Error::new(ErrorKind::Store, step, error.to_string()))?;
        let bytes = bytes.map(Bytes::from_owner);
        let forms = bytes.and_then(|bytes| Some((Forms::read(&bytes).filter(|forms| forms.has_each)?, bytes)));
        let (forms, bytes) =
            forms.ok_or_else(|| Error::new(ErrorKind::Store, step, "what they are is not kept with it"))?;
        let hidden = forms.hidden(&bytes);
        let trees = (0..forms.layers.len()).map(|number| forms.by_itself(&bytes, number).unwrap_or_default());
        let trees: Vec<Bytes> = trees.collect();
        let layer = |(form, tree): (LayerForm, Bytes)| {
            let diff = DiffFs::alone(tree).context(ErrorKind::Store, step)?;
            Ok(OfferedLayer { form, diff: Arc::new(diff) })
        };
        let layers = forms.layers.into_iter().zip(trees).map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, hidden })
    }

    /// The layer that Podman looks up by this digest.
    pub(crate) fn find(&self, digest: &Digest) -> Option<&OfferedLayer> {
        let by_blob = self.layers.iter().find(|layer| layer.form.blob == *digest);
        by_blob.or_else(|| self.layers.iter().find(|layer| layer.form.toc.as_ref() == Some(digest)))
    }
}

impl OfferedLayer {
    /// The `info` for a lookup by `digest`.
    pub(crate) fn info(&self, digest: &Digest, diff_ids: DiffIds) -> Bytes {
        let form = &self.form;
        if form.blob == *digest {
            return documents::text(&ByBlob {
                compressed_diff_digest: form.is_hashed.then(|| form.blob.to_string()),
                compressed_size: form.blob_size,
                diff_digest: match diff_ids {
                    DiffIds::Hashed => form.diff_id.to_string(),
                    DiffIds::Claimed => form.claimed.to_string(),
                },
                diff_size: form.size,
                compression: form.compression,
            });
        }
        documents::text(&ByToc {
            toc_digest: digest.to_string(),
            diff_size: -1,
            compression: form.compression,
            flags: Flags { expected_layer_diffid: form.claimed.to_string() },
        })
    }
}

/// `info` as Podman reads it up to version 5.0.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ByBlob {
    /// Podman finds the layer for other images too by this.
    #[serde(skip_serializing_if = "Option::is_none")]
    compressed_diff_digest: Option<String>,
    compressed_size: u64,
    diff_digest: String,
    diff_size: u64,
    compression: u8,
}

/// `info` as Podman reads it from version 5.1 on.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ByToc {
    toc_digest: String,
    /// Unknown.
    diff_size: i64,
    compression: u8,
    flags: Flags,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Flags {
    expected_layer_diffid: String,
}

#[cfg(test)]
impl Offered {
    /// An image whose layers have these contents. Each has a table of contents and was not hashed.
    pub(crate) fn test(contents: &[&str]) -> Self {
        use tarpon_testkit::entries::{file, layer};
        let layer = |content: &&str| {
            let tree = [layer([file("f", content)])];
            let tree = Bytes::from(tarpon_tree::erofs::write(&tarpon_tree::merge(&tree).unwrap()));
            let digest = |what: &str| Digest::of(format!("{what} {content}").as_bytes());
            let mut form = LayerForm::test(digest("id"), digest("stands in"), false);
            (form.blob, form.claimed, form.toc) = (digest("blob"), digest("claimed"), Some(digest("toc")));
            OfferedLayer { form, diff: Arc::new(DiffFs::alone(tree).unwrap()) }
        };
        Self { layers: contents.iter().map(layer).collect(), hidden: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(what: &str) -> Digest {
        Digest::of(format!("{what} a").as_bytes())
    }

    fn info_of(key: &str, diff_ids: DiffIds) -> String {
        let image = Offered::test(&["a", "b"]);
        let layer = image.find(&digest(key)).unwrap();
        String::from_utf8(layer.info(&digest(key), diff_ids).to_vec()).unwrap()
    }

    #[test]
    fn by_the_digest_of_the_blob_it_is_what_podman_4_reads() {
        let expected = |diff_id: &str| {
            format!(r#"{{"compressed-size":7,"diff-digest":"{}","diff-size":1024,"compression":2}}"#, digest(diff_id))
        };
        assert_eq!(info_of("blob", DiffIds::Hashed), expected("stands in"), "it was not hashed");
        assert_eq!(info_of("blob", DiffIds::Claimed), expected("claimed"));
    }

    #[test]
    fn only_a_layer_that_was_hashed_gets_the_digest_of_its_blob() {
        let mut image = Offered::test(&["a"]);
        let layer = &mut image.layers[0];
        let has_digest = |layer: &OfferedLayer| {
            let info: serde_json::Value =
                serde_json::from_slice(&layer.info(&digest("blob"), DiffIds::Claimed)).unwrap();
            info.get("compressed-diff-digest")
                .is_some_and(|digest_of_blob| *digest_of_blob == digest("blob").to_string())
        };
        assert!(!has_digest(layer), "other images would get it for their blob");
        layer.form.is_hashed = true;
        assert!(has_digest(layer));
    }

    #[test]
    fn by_the_digest_of_the_table_of_contents_it_is_what_podman_5_reads() {
        let expected = format!(
            r#"{{"toc-digest":"{}","diff-size":-1,"compression":2,"flags":{{"expected-layer-diffid":"{}"}}}}"#,
            digest("toc"),
            digest("claimed")
        );
        assert_eq!(info_of("toc", DiffIds::Hashed), expected);
        assert_eq!(info_of("toc", DiffIds::Claimed), expected);
    }

    #[test]
    fn no_other_digest_leads_to_a_layer() {
        assert!(Offered::test(&["a"]).find(&digest("claimed")).is_none());
    }
}
