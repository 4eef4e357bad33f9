//! Selects from lists of the referrers of a manifest.

use tarpon_oci::{Descriptor, MediaType};

/// Those of `found` that are of kind `artifact_type`. `filtered`: the author of the list omitted all others, and so may omit the
/// kind of each entry.
pub(crate) fn of_kind(found: Vec<Descriptor>, artifact_type: &str, filtered: bool) -> Vec<Descriptor> {
    let is_wanted = |referrer: &Descriptor| match &referrer.artifact_type {
        Some(kind) => kind == artifact_type,
        None => filtered,
    };
    found.into_iter().filter(|referrer| referrer.media_type == MediaType::Manifest && is_wanted(referrer)).collect()
}
