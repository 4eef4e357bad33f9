//! Who may read the contents of an image, and who may read an index repository.

use tarpon_images::index::places::shown;
use tarpon_images::{ImageRequest, access};
use tarpon_oci::{Digest, Source};

use crate::{Error, ErrorKind, Result};

/// Whether two sources are in the same repository or layout.
pub(super) fn is_same_repository(one: &Source, other: &Source) -> bool {
    match (one, other) {
        (Source::Registry(one), Source::Registry(other)) => {
            (one.registry(), one.repository()) == (other.registry(), other.repository())
        }
        (Source::OciLayout { directory: one, .. }, Source::OciLayout { directory: other, .. }) => one == other,
        _ => false,
    }
}

/// Refuses contents that not everybody may read, unless they stay in their repository.
pub(super) async fn check_readers(image: &ImageRequest, manifest: &Digest, place: &Source) -> Result<()> {
    if is_same_repository(&image.source, place) {
        return Ok(());
    }
    let Err(why) = access::is_public(&image.text, manifest, &image.access).await? else { return Ok(()) };
    let place = shown(&place.to_string()).to_owned();
    let cause = format!("the image needs credentials, and {place} may have other readers ({why})");
    Err(Error::new(ErrorKind::Forbidden, "publish its contents", cause)
        .hint("without --index-repo they go to the image's own repository; --publish-private publishes them anyway"))
}
