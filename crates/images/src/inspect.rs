//! Describes an image, without mounting it and without fetching any of its files.

use bytes::Bytes;
use serde::Serialize;
use tarpon_layer::toc::Claim;
use tarpon_oci::{Digest, Manifest, MediaType, Verified};
use tarpon_registry::ResolvedImage;
use tarpon_store::LayerKind;

use crate::access;
use crate::admission;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::{ImageRequest, Pull};
use crate::images::Images;

/// The description of an image.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// The image, normalised.
    pub image: String,
    /// Digest of the manifest.
    pub manifest_digest: Digest,
    /// Digest of the index that the manifest was chosen from.
    pub index_digest: Option<Digest>,
    /// The manifest, byte for byte.
    #[serde(skip)]
    pub manifest_bytes: Bytes,
    /// The config, byte for byte.
    #[serde(skip)]
    pub config_bytes: Bytes,
    /// The manifest, verbatim.
    pub manifest: Box<serde_json::value::RawValue>,
    /// The config, verbatim.
    pub config: Box<serde_json::value::RawValue>,
    /// The layers, lowest first.
    pub layers: Vec<LayerInspection>,
    /// Compressed bytes of all layers.
    pub size: u64,
    /// Whether the store can mount it without contacting any source.
    pub in_store: bool,
}

/// The description of a layer.
#[derive(Debug, Clone, Serialize)]
pub struct LayerInspection {
    /// Digest of the blob.
    pub digest: Digest,
    /// Compressed bytes.
    pub size: u64,
    /// `eStargz`, `zstd:chunked`, `tar+gzip`, `tar+zstd` or `tar`.
    pub format: String,
    /// Whether its files can be fetched one by one. A plain layer is streamed once, when it is first mounted.
    pub lazy: bool,
}

impl Images {
    /// Describes the image that [`Images::prepare`] would prepare: the store's image of that name, or the current one of its source. Only
    /// the manifest and the config are requested from the source.
    pub async fn inspect(&self, request: &ImageRequest) -> Result<Inspection> {
        if let Some(found) = self.inspect_local(request)? {
            return Ok(found);
        }
        match (self.inspect_remote(request).await, request.pull) {
            (Err(error), Pull::Newer) if error.kind == ErrorKind::Unavailable => {
                let request = ImageRequest { pull: Pull::Missing, ..request.clone() };
                self.inspect_local(&request)?.ok_or(error)
            }
            (result, _) => result,
        }
    }

    /// The image in the store, if its source need not be contacted. A damaged record is not reported here: preparing repairs it.
    fn inspect_local(&self, request: &ImageRequest) -> Result<Option<Inspection>> {
        let step = "look in the store";
        let Some(record) = self.without_source(request)? else { return Ok(None) };
        let manifest = self.store().image_manifest(&record.manifest).context(ErrorKind::Store, step)?;
        let config = self.store().image_config(&record.manifest).context(ErrorKind::Store, step)?;
        let (Some(manifest), Some(config)) = (manifest, config) else {
            let damaged = || Error::new(ErrorKind::Store, "read the image's record", "it is damaged");
            return if request.pull == Pull::Never { Err(damaged()) } else { Ok(None) };
        };
        let manifest = Manifest::parse(manifest).context(ErrorKind::Refused, "read the manifest")?;
        let image = ResolvedImage { manifest, index_digest: None, name: request.source.to_string() };
        self.describe(request, &image, &config).map(Some)
    }

    async fn inspect_remote(&self, request: &ImageRequest) -> Result<Inspection> {
        if let Some(preparer) = self.preparer() {
            let found = preparer.documents(request).await?;
            let (step, name) = ("check the image's documents", request.source.to_string());
            let manifest = Verified::check(&found.digest, found.manifest).context(ErrorKind::Refused, step)?;
            let manifest = Manifest::parse(manifest).context(ErrorKind::Refused, "read the manifest")?;
            let config = Verified::check(&manifest.config.digest, found.config).context(ErrorKind::Refused, step)?;
            let image = ResolvedImage { manifest, index_digest: found.index_digest, name };
            return self.describe(request, &image, &config);
        }
        let repository = access::open(&request.text, &request.access).await?;
        let image = admission::resolve(&repository, &request.access, &request.platform).await?;
        let config = access::config(&repository, &image).await?;
        self.describe(request, &image, &config.bytes)
    }

    fn describe(&self, request: &ImageRequest, image: &ResolvedImage, config: &Bytes) -> Result<Inspection> {
        let layers = image.manifest.layers.iter().map(|layer| {
            let claim = Claim::of(&layer.media_type, &layer.annotations, layer.size);
            let claim = claim.map_err(|error| {
                Error::new(ErrorKind::Refused, format!("read the descriptor of layer {}", layer.digest), error)
            })?;
            let (format, lazy) = match claim {
                Claim::Toc(toc) => (toc.format().to_string(), true),
                Claim::Plain => (plain_format(&layer.media_type).to_owned(), false),
            };
            Ok(LayerInspection { digest: layer.digest, size: layer.size, format, lazy })
        });
        let manifest_digest = *image.manifest.digest();
        // An isolated store contains nothing that is in no registry.
        let part = self.for_image(&request.text, &request.access).ok();
        let known = part.map_or(Ok(None), |part| part.store().image(&manifest_digest));
        let known = known.context(ErrorKind::Store, "look in the store")?;
        Ok(Inspection {
            image: image.name.clone(),
            manifest_digest,
            index_digest: image.index_digest,
            manifest_bytes: Bytes::clone(&image.manifest.bytes),
            config_bytes: config.clone(),
            manifest: json(&image.manifest.bytes)?,
            config: json(config)?,
            layers: layers.collect::<Result<_>>()?,
            size: image.manifest.layers_size(),
            in_store: known.is_some(),
        })
    }
}

/// The format of a layer without a table of contents, by its media type.
fn plain_format(layer: &MediaType) -> &'static str {
    match layer {
        MediaType::Layer(compression) => LayerKind::plain(*compression).as_str(),
        // Rejected when it is read.
        _ => "unknown",
    }
}

fn json(bytes: &[u8]) -> Result<Box<serde_json::value::RawValue>> {
    serde_json::from_slice(bytes).context(ErrorKind::Refused, "read the manifest")
}
