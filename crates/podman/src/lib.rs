//! Podman's view of a store, as two file systems in the formats of containers/storage. [`Podman`] is the entry point.
//!
//! The *image store* shows prepared images as if they had been pulled:
//!
//! ```text
//! tarpon podman add: prepare ─► layers as directories (forms) ─► record ─► server: images.json, layers.json, overlay/ID/diff … ─► StoreFs
//! ```
//!
//! The *layer store* is asked for each layer that `podman pull` needs. Podman keeps what it finds there as a link:
//!
//! ```text
//! podman pull ─► server ─► offer: prepare, in a process of its own ─► layers by themselves (forms) ─► server: LAYER/{diff,info,blob} ─► LayerStoreFs
//! ```
//!
//! Each change generates the image store's documents from all added images ([`documents`]), and shows them at once
//! ([`image_store`]). Podman may use what it reads for other images as well, so a layer's digests are given only if it was hashed as
//! a whole here ([`ids`], [`offered`]).

mod api;
mod clock;
mod diff_fs;
mod documents;
mod exhibits;
mod forms;
mod ids;
mod image_store;
mod in_use;
mod layer_numbers;
mod layer_store;
mod layer_store_fs;
mod listed;
mod offer;
mod offered;
mod place;
mod saved_state;
mod setup;
mod store_fs;
mod take_over;
mod version;
mod view;

pub use api::{Podman, PodmanRequest};
pub use exhibits::EXHIBITS;
pub use offer::offer;
pub use setup::Setup;
pub use tarpon_images::{Error, ErrorKind, Result, ResultExt};
pub use version::PodmanVersion;
