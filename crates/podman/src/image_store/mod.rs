//! [`PodmanImageStore`]: the images shown to Podman, in one mount on the store's `podman` folder.
//!
//! It is mounted with the first image and unmounted with the last one. Each image has a record among those of mounts, which protects it
//! from eviction and restores it after a restart. Adding an image shows its layers before the image, and removing an image keeps its layers
//! for a while, because Podman reads the two lists one after the other.
//!
//! After a restart all images are loaded before the mount of the dead server is taken over or a new one is made ([`restore`]).

mod entry;
mod exhibit;
mod names;
mod restore;
mod store;

pub(super) use store::PodmanImageStore;
