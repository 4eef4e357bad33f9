//! [`Base`]: the image that a new one is based on: its manifest and its config, without its layers.

use bytes::Bytes;
use tarpon_images::Access;
use tarpon_images::{Admission, ImageRequest, Images, Pull};
use tarpon_images::{access, admission, commits};
use tarpon_oci::{Digest, ImageConfig, Manifest, Source, Verified};
use tarpon_registry::{Repository, ResolvedImage};

use crate::{ErrorKind, Result, ResultExt};

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
        let source = image.parse().context(ErrorKind::NotFound, "read the image's name")?;
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
            let (name, platform) = (request.source.to_string(), request.platform.to_string());
            let known = images.store().reference(&name, &platform).context(ErrorKind::Store, "look in the store")?;
            let admission = Admission::of(&request.source, &request.access)?;
            if let Some(known) = known
                && admission.is_noted(images.store(), &known.manifest)?
                && let Some(base) = stored(images, &request.source, &known.manifest)?
            {
                return Ok(base);
            }
        }
        let repository = access::open(&request.text, &request.access).await?;
        let resolved = admission::resolve(&repository, &request.access, &request.platform).await?;
        described(&repository, request.source.clone(), resolved.manifest).await
    }
}

async fn described(repository: &Repository, source: Source, manifest: Manifest) -> Result<Base> {
    manifest.check_image().context(ErrorKind::Refused, "read the manifest")?;
    let resolved = ResolvedImage { manifest, index_digest: None, name: String::new() };
    let config = access::config(repository, &resolved).await?;
    Ok(Base { source, manifest: resolved.manifest, config })
}

/// The image from the store; `None` if it is damaged.
fn stored(images: &Images, source: &Source, manifest: &Digest) -> Result<Option<Base>> {
    let step = "look in the store";
    let store = images.store();
    let bytes = (
        store.image_manifest(manifest).context(ErrorKind::Store, step)?,
        store.image_config(manifest).context(ErrorKind::Store, step)?,
    );
    let (Some(manifest), Some(config)) = bytes else { return Ok(None) };
    let manifest = parsed(manifest)?;
    let step = "read the image's config";
    manifest.check_image().context(ErrorKind::Refused, step)?;
    let config = ImageConfig::parse(config).context(ErrorKind::Refused, step)?;
    manifest.check_config(&config).context(ErrorKind::Refused, step)?;
    Ok(Some(Base { source: source.clone(), manifest, config }))
}

fn parsed(bytes: Verified<Bytes>) -> Result<Manifest> {
    Manifest::parse(bytes).context(ErrorKind::Refused, "read the manifest")
}
