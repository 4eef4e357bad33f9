//! Podman's view of a store: one file system that Podman reads as an additional store of images, in the format of containers/storage.
//!
//! ```text
//! add: prepare ─► layers as directories (forms) ─► record ──► server: images.json, layers.json, overlay/ID/diff … ─► StoreFs
//! ```
//!
//! Beside it, a store of layers, which Podman queries for each layer that it pulls. Podman keeps what it finds there ([`offer`],
//! [`offered`]):
//!
//! ```text
//! podman pull ─► server ─► offer: prepare ─► layers by themselves (forms) ─► server: LAYER/{diff,info,blob} ─► LayerStoreFs
//! ```
//!
//! Each change regenerates the served content from all added images ([`documents`], [`image_store`]) and exposes it at once. Podman may apply
//! what it reads to other images as well, so that contains only what was hashed as a whole ([`ids`]).

mod api;
mod clock;
mod diff_fs;
mod documents;
mod exhibits;
mod forms;
mod guard;
mod ids;
mod image_store;
mod in_use;
mod layer_store;
mod layer_store_fs;
mod listed;
mod offer;
mod offered;
mod place;
mod setup;
mod store_fs;
mod version;
mod view;

pub use api::{Podman, PodmanWish};
pub use exhibits::EXHIBITS;
pub use guard::guard;
pub use offer::offer;
pub use setup::Setup;
pub use tarpon_images::{Error, ErrorKind, Result};
pub use version::PodmanVersion;
