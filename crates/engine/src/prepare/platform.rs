//! Is the image that was found for a platform built for it? An index promises that; an image without one is whatever it is.

use tarpon_oci::{ImageConfig, Platform};
use tarpon_store::{ImageRecord, Store};

use crate::image::ImageRequest;
use crate::{Error, ErrorKind, Result};

/// Compares what was asked for with what the config says.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the user named a platform and this is another. If this machine's was taken because nobody
/// named one, the image may still be wanted, and the line is a warning.
pub(super) fn check(request: &ImageRequest, config: &ImageConfig) -> Result<Option<String>> {
    let (asked, built) = (&request.platform, &config.platform);
    let is_told = !built.os().is_empty() && !built.architecture().is_empty();
    if !is_told || is_same_machine(asked, built) {
        return Ok(None);
    }
    if request.platform_named {
        let cause = format!("the image is for {built} only, not for {asked}");
        return Err(Error::new(ErrorKind::NotFound, "choose the platform", cause));
    }
    Ok(Some(format!("the image is for {built}, this machine is {asked}: its programs may not run here")))
}

/// Variants are left to the index: configs often do not name them.
fn is_same_machine(asked: &Platform, built: &Platform) -> bool {
    (asked.os(), asked.architecture()) == (built.os(), built.architecture())
}

/// The same for an image in the store. A config that cannot be read is somebody else's error.
pub(super) fn check_record(store: &Store, request: &ImageRequest, record: &ImageRecord) -> Result<Option<String>> {
    let config = store.image_config(&record.manifest).ok().flatten();
    match config.and_then(|config| ImageConfig::parse(config).ok()) {
        Some(config) => check(request, &config),
        None => Ok(None),
    }
}
