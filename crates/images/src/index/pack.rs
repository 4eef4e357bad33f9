//! The boot pack of an image, as a reader of its index wants it.

use std::fmt::Debug;

use tarpon_oci::Blob;

/// Receives the place of a boot pack while the image is still being prepared.
pub trait PackListener: Debug + Send + Sync {
    /// The image is about to be requested from its registry, and may have a boot pack. Must not block.
    fn requested(&self) {}

    /// The registry has the image, which may have a boot pack. Must not block.
    fn expected(&self) {}

    /// A boot pack of the image is in this blob: in the index repository with this number, or in the image's repository. It is
    /// called once the registry's list shows the place, and again once the index's manifest does. Must not block.
    fn found(&self, pack: Blob, place: Option<usize>);
}

/// The boot pack wanted with an index.
#[derive(Debug, Clone, Copy)]
pub struct PackWanted<'a> {
    /// The profile of the start.
    pub profile: &'a str,
    /// As [`ImageRequest::starts`](crate::ImageRequest::starts).
    pub starts: bool,
    /// Receives the place of the pack as soon as it is known.
    pub listener: Option<&'a dyn PackListener>,
}
