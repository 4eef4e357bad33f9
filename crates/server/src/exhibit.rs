//! [`Exhibit`]: content that the server exposes in a mount of its own, in another form than an image's root file system.

use std::path::Path;
use std::sync::Arc;

use tarpon_client::protocol::{MountRequest, MountStatus};
use tarpon_oci::Digest;

use super::images::LoadedImage;
use crate::Result;

/// A store of exposed images, with one mount for all of them. Mount requests and paths name the store to which they belong.
pub trait Exhibit: Send + Sync {
    /// The directory on which it is mounted.
    fn folder(&self) -> &Path;

    /// Whether the request is one to expose something here.
    fn accepts(&self, request: &MountRequest) -> bool;

    /// Whether the path is the mount, or belongs to an image in it, exposed or not.
    fn holds(&self, mountpoint: &Path) -> bool {
        mountpoint.starts_with(self.folder())
    }

    /// Whether the image with this manifest is exposed.
    fn shows(&self, manifest: &Digest) -> bool;

    /// The image exposed at this path.
    fn image(&self, mountpoint: &Path) -> Option<Arc<LoadedImage>>;

    /// Exposes what the request names, and mounts if nothing is mounted yet.
    fn mount(&self, request: MountRequest) -> Result<()>;

    /// Exposes again what a dead server exposed here. Called once, first, with the requests of all records of this store, none included:
    /// the mount of the dead server, if it is taken over, must show all images at once. Users remove images explicitly, so these are shown
    /// whether or not the mount still exists: after a reboot it does not. Returns the outcome of each request, in their order.
    fn restore(&self, requests: Vec<MountRequest>) -> Vec<Result<()>>;

    /// Stops exposing what is at this path, or removes only the name of an image that has others. `force`: even if it is in use. `None`:
    /// nothing is exposed there; else the manifests of images that are no longer exposed.
    fn unmount(&self, mountpoint: &Path, name: Option<&str>, force: bool) -> Result<Option<Vec<Digest>>>;

    /// # Errors
    /// [`crate::ErrorKind::CannotMount`] if anything exposed is in use.
    fn refuse_if_used(&self) -> Result<()>;

    /// The mount and all images in it.
    fn status(&self) -> Vec<MountStatus>;

    /// Periodic cleanup. Returns the manifests of images that are no longer exposed.
    fn tidy(&self) -> Vec<Digest>;

    /// The name of its mounts as a mode, and the number of exposed images.
    fn count(&self) -> (&'static str, u64);
}
