//! The lowest layers of an image, as an image of their own.
//!
//! Containerd identifies a stack of layers by its chain ID, whichever image it came with. A stack to mount may therefore end in the middle
//! of the known image: at the layers of the base that it was built on. Such a stack gets a manifest and a config, which are the image's own
//! with fewer layers, and with them an ordinary record, so that the code below needs no special case.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tarpon_oci::{Digest, ImageConfig, Manifest, Verified};
use tarpon_store::{ImageRecord, LayerRecord, Store};

use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::seen_whole;
use crate::image::{ImageRequest, Prepared};
use crate::images::Images;
use crate::prepare::assemble::{self, assemble};
use crate::prepare::known::{KnownLayers, known_layers};
use crate::progress::Progress;

/// A JSON object whose values are not parsed.
type Object = BTreeMap<String, Box<RawValue>>;

impl Images {
    /// The chain IDs of the image's layers by its config, lowest first: containerd's keys for each stack of layers.
    pub fn chain_ids(&self, prepared: &Prepared) -> Result<Vec<Digest>> {
        let mut chain: Vec<Digest> = Vec::new();
        for diff_id in self.config(prepared)?.diff_ids {
            let below = chain.last();
            chain.push(below.map_or(diff_id, |below| Digest::of(format!("{below} {diff_id}").as_bytes())));
        }
        Ok(chain)
    }

    /// The lowest `count` layers of a prepared image, prepared like an image of their own.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the layers are no longer kept and differ from those that the image's record was made of.
    pub async fn lowest_layers(
        &self,
        request: &ImageRequest,
        prepared: &Prepared,
        count: usize,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let part = self.for_image(&prepared.text, &prepared.access)?;
        let documents = Documents::of(part.store(), prepared.manifest(), count)?;
        let looked = part.believed(documents.manifest.digest());
        let known = looked.context(ErrorKind::Store, "look in the store")?.sound();
        let record = match known {
            Some(record) if follows(&record, &prepared.record) => record,
            _ => {
                let known = known_layers(&part, request, &prepared.record, progress).await?;
                let (store, name) = (part.store().clone(), format!("{} (lowest {count} layers)", request.source));
                let platform = request.platform.to_string();
                let made = tokio::task::spawn_blocking(move || documents.assemble(&store, name, platform, known));
                made.await.context(ErrorKind::Other, "merge the layers")??
            }
        };
        Ok(Prepared { record, ..prepared.clone() })
    }
}

/// Whether the record of the lowest layers is still what the image's record makes of them. The claims of an external index may have changed
/// meanwhile, and the image may have been verified; the tree of all others follows from the manifest.
fn follows(lowest: &ImageRecord, image: &ImageRecord) -> bool {
    let is_same = |(lowest, image): (&LayerRecord, &LayerRecord)| {
        // A refutation remains as long as it is mounted.
        lowest.verification.is_refuted()
            || lowest.verification == image.verification && !image.verification.is_by_index()
    };
    seen_whole(lowest) || lowest.layers.iter().zip(&image.layers).all(is_same)
}

/// Manifest and config of the lowest layers.
struct Documents {
    manifest: Manifest,
    config: ImageConfig,
}

impl Documents {
    fn of(store: &Store, image: &Digest, count: usize) -> Result<Self> {
        let step = "read the image's manifest";
        let gone = || Error::new(ErrorKind::Store, step, "it is not in the store, or damaged");
        let manifest = store.image_manifest(image).context(ErrorKind::Store, step)?.ok_or_else(gone)?;
        let config = store.image_config(image).context(ErrorKind::Store, step)?.ok_or_else(gone)?;
        let step = "cut the image's layers off";
        let config = Verified::seal(Bytes::from(cut_config(&config, count).context(ErrorKind::Refused, step)?));
        let manifest = cut_manifest(&manifest, &config, count).context(ErrorKind::Refused, step)?;
        let manifest = Manifest::parse(Verified::seal(Bytes::from(manifest)));
        let manifest = manifest.context(ErrorKind::Refused, step)?;
        let config = ImageConfig::parse(config).context(ErrorKind::Refused, step)?;
        if manifest.layers.len() != count || config.diff_ids.len() != count {
            return Err(Error::new(ErrorKind::Refused, step, format!("it has fewer than {count} layers")));
        }
        Ok(Self { manifest, config })
    }

    fn assemble(self, store: &Store, name: String, platform: String, known: KnownLayers) -> Result<ImageRecord> {
        let Self { manifest, config } = self;
        let layers = known.lowest(manifest.layers.len());
        assemble(store, assemble::Image { name, platform, manifest, config, layers, fetched: 0, boot: None })
    }
}

fn cut_config(config: &[u8], count: usize) -> serde_json::Result<Vec<u8>> {
    let mut config: Object = serde_json::from_slice(config)?;
    let mut rootfs: Object = field(&config, "rootfs")?;
    let mut diff_ids: Vec<Box<RawValue>> = field(&rootfs, "diff_ids")?;
    diff_ids.truncate(count);
    set(&mut rootfs, "diff_ids", &diff_ids)?;
    set(&mut config, "rootfs", &rootfs)?;
    serde_json::to_vec(&config)
}

fn cut_manifest(manifest: &[u8], config: &Verified<Bytes>, count: usize) -> serde_json::Result<Vec<u8>> {
    let mut manifest: Object = serde_json::from_slice(manifest)?;
    let mut descriptor: Object = field(&manifest, "config")?;
    set(&mut descriptor, "digest", config.digest())?;
    set(&mut descriptor, "size", &config.len())?;
    set(&mut manifest, "config", &descriptor)?;
    let mut layers: Vec<Box<RawValue>> = field(&manifest, "layers")?;
    layers.truncate(count);
    set(&mut manifest, "layers", &layers)?;
    serde_json::to_vec(&manifest)
}

fn field<T: serde::de::DeserializeOwned>(object: &Object, name: &str) -> serde_json::Result<T> {
    serde_json::from_str(object.get(name).map_or("null", |value| value.get()))
}

fn set(object: &mut Object, name: &str, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
    object.insert(name.to_owned(), to_raw_value(value)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tarpon_store::LayerKind;

    use super::*;

    const CONFIG: &str = r#"{"os":"linux","architecture":"amd64","history":[{},{}],"config":{"Env":["A=1"]},
        "rootfs":{"type":"layers","diff_ids":["sha256:aa","sha256:bb"]}}"#;

    #[test]
    fn the_documents_of_the_lowest_layers_are_the_image_s_with_fewer_layers() {
        let config = cut_config(CONFIG.as_bytes(), 1).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(read["rootfs"], serde_json::json!({"type": "layers", "diff_ids": ["sha256:aa"]}));
        assert_eq!(read["config"]["Env"][0], "A=1");
        let config = Verified::seal(Bytes::from(config));
        let manifest = r#"{"schemaVersion":2,"config":{"mediaType":"c","digest":"old","size":1},
            "layers":[{"digest":"l1","annotations":{"toc":"t"}},{"digest":"l2"}]}"#;
        let cut = cut_manifest(manifest.as_bytes(), &config, 1).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&cut).unwrap();
        assert_eq!(read["config"]["digest"], config.digest().to_string());
        assert_eq!(read["config"]["size"], config.len());
        assert_eq!(read["config"]["mediaType"], "c");
        assert_eq!(read["layers"], serde_json::json!([{"digest": "l1", "annotations": {"toc": "t"}}]));
        assert_eq!(cut, cut_manifest(manifest.as_bytes(), &config, 1).unwrap(), "the same each time");
    }

    fn record(states: &[&str]) -> ImageRecord {
        let layer = |state: &&str| {
            let (verification, format) = (state.parse().unwrap(), LayerKind::TarGzip);
            LayerRecord { digest: Digest::of(b"layer"), size: 1, format, verification, prefetch: None, index: None }
        };
        ImageRecord::new(Digest::of(b"image"), "image", "linux/amd64", states.iter().map(layer).collect())
    }

    #[test]
    fn a_record_of_the_lowest_layers_is_used_as_long_as_the_image_s_makes_the_same_of_them() {
        let image = record(&["toc-verified", "toc-verified"]);
        for (lowest, image, is_used) in [
            (&["toc-verified"][..], &image, true),
            (&["diffID-verified"], &image, true),
            (&["toc-verified"], &record(&["diffID-verified", "diffID-verified"]), false),
            (&["index-pinned"], &image, false),
            (&["index-pinned"], &record(&["index-pinned", "toc-verified"]), false),
            (&["toc-verified", "index-refuted"], &record(&["toc-verified", "index-pinned"]), true),
        ] {
            assert_eq!(follows(&record(lowest), image), is_used, "{lowest:?} of {:?}", image.layers);
        }
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        assert!(cut_config(b"{}", 1).is_err());
        assert!(cut_manifest(br#"{"config":{}}"#, &Verified::seal(Bytes::new()), 1).is_err());
    }
}
