//! Who may read the contents of an image, and who may read an index repository.

use tarpon_images::index::places::shown;
use tarpon_images::{ImageRequest, access};
use tarpon_oci::{Digest, Source};

use crate::{Error, ErrorKind, Result};

/// Refuses contents that not everybody may read, unless they stay in their repository.
pub(super) async fn check_readers(image: &ImageRequest, manifest: &Digest, place: &Source) -> Result<()> {
    let is_own = match (&image.source, place) {
        (Source::Registry(image), Source::Registry(place)) => {
            (image.registry(), image.repository()) == (place.registry(), place.repository())
        }
        (Source::OciLayout { directory: image, .. }, Source::OciLayout { directory: place, .. }) => image == place,
        _ => false,
    };
    if is_own {
        return Ok(());
    }
    let Err(why) = access::is_public(&image.text, manifest, &image.access).await? else { return Ok(()) };
    let place = shown(&place.to_string()).to_owned();
    let cause = format!("the image needs credentials, and {place} may have other readers ({why})");
    Err(Error::new(ErrorKind::Forbidden, "publish its contents", cause)
        .hint("without --index-repo they go to the image's own repository; --publish-private publishes them anyway"))
}
