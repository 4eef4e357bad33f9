//! Checks that an image was built for the requested platform. An index promises that; an image without one makes no promise.

use tarpon_oci::{ImageConfig, Platform};
use tarpon_store::{ImageRecord, Store};

use crate::error::{Error, ErrorKind, Result};
use crate::image::ImageRequest;

/// Compares the requested platform with the one in the config.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the user named a platform and this is another. If this machine's is only the default, the image may still be
/// wanted, and the line is a warning.
pub(super) fn check(request: &ImageRequest, config: &ImageConfig) -> Result<Option<String>> {
    let (asked, built) = (&request.platform, &config.platform);
    let is_stated = !built.os().is_empty() && !built.architecture().is_empty();
    if !is_stated || is_same_machine(asked, built) {
        return Ok(None);
    }
    if request.platform_named {
        let cause = format!("the image is for {built} only, not for {asked}");
        return Err(Error::new(ErrorKind::NotFound, "choose the platform", cause));
    }
    Ok(Some(format!("the image is for {built}, this machine is {asked}: its programs may not run here")))
}

/// Variants are left to the index: configs often omit them.
fn is_same_machine(asked: &Platform, built: &Platform) -> bool {
    (asked.os(), asked.architecture()) == (built.os(), built.architecture())
}

/// The same for an image in the store. An unreadable config is reported elsewhere.
pub(super) fn check_record(store: &Store, request: &ImageRequest, record: &ImageRecord) -> Result<Option<String>> {
    let config = store.image_config(&record.manifest).ok().flatten();
    match config.and_then(|config| ImageConfig::parse(config).ok()) {
        Some(config) => check(request, &config),
        None => Ok(None),
    }
}
