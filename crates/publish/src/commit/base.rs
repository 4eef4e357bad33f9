//! [`Base`]: the image that a new one is based on: its manifest and its config, without its layers.

use bytes::Bytes;
use tarpon_images::Access;
use tarpon_images::{ImageRequest, Images, Pull};
use tarpon_images::{access, commits};
use tarpon_oci::{Digest, ImageConfig, Manifest, Source, Verified};
use tarpon_registry::{Repository, ResolvedImage};

use crate::{Error, ErrorKind, Result};

/// An image to add a layer to.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) source: Source,
    pub(super) manifest: Manifest,
    pub(super) config: ImageConfig,
}

impl Base {
    /// The image that `manifest` names: from the store, or else from its source.
    pub(super) async fn of_manifest(images: &Images, image: &str, manifest: &Digest, way: &Access) -> Result<Self> {
        let source = image.parse().map_err(|error| Error::new(ErrorKind::NotFound, "read the image's name", error))?;
        if !images.is_isolated()?
            && let Some(base) = stored(images, &source, manifest)?
        {
            return Ok(base);
        }
        let repository = access::open(image, way).await?;
        let bytes =
            repository.manifest(manifest).await.map_err(|error| access::registry("read the manifest", error))?;
        described(&repository, source, parsed(bytes)?).await
    }

    /// The requested image.
    pub(super) async fn requested(images: &Images, request: &ImageRequest) -> Result<Self> {
        commits::check_not_only_here(images.store(), &request.source)?;
        let is_registry = matches!(request.source, Source::Registry(_));
        if is_registry && !images.is_isolated()? && matches!(request.pull, Pull::Missing | Pull::Never) {
            let failed = |error| Error::new(ErrorKind::Store, "look in the store", error);
            let (name, platform) = (request.source.to_string(), request.platform.to_string());
            let known = images.store().reference(&name, &platform).map_err(failed)?;
            if let Some(known) = known
                && let Some(base) = stored(images, &request.source, &known.manifest)?
            {
                return Ok(base);
            }
        }
        let repository = access::open(&request.text, &request.access).await?;
        let resolved = access::resolve(&repository, &request.platform).await?;
        described(&repository, request.source.clone(), resolved.manifest).await
    }
}

async fn described(repository: &Repository, source: Source, manifest: Manifest) -> Result<Base> {
    let refused = |error| Error::new(ErrorKind::Refused, "read the manifest", error);
    manifest.check_image().map_err(refused)?;
    let resolved = ResolvedImage { manifest, index_digest: None, name: String::new() };
    let config = access::config(repository, &resolved).await?;
    Ok(Base { source, manifest: resolved.manifest, config })
}

/// The image from the store; `None` if it is damaged.
fn stored(images: &Images, source: &Source, manifest: &Digest) -> Result<Option<Base>> {
    let failed = |error| Error::new(ErrorKind::Store, "look in the store", error);
    let store = images.store();
    let bytes = (store.image_manifest(manifest).map_err(failed)?, store.image_config(manifest).map_err(failed)?);
    let (Some(manifest), Some(config)) = bytes else { return Ok(None) };
    let manifest = parsed(manifest)?;
    let refused = |error| Error::new(ErrorKind::Refused, "read the image's config", error);
    manifest.check_image().map_err(refused)?;
    let config = ImageConfig::parse(config).map_err(refused)?;
    manifest.check_config(&config).map_err(refused)?;
    Ok(Some(Base { source: source.clone(), manifest, config }))
}

fn parsed(bytes: Verified<Bytes>) -> Result<Manifest> {
    Manifest::parse(bytes).map_err(|error| Error::new(ErrorKind::Refused, "read the manifest", error))
}
