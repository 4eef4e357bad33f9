//! The stores of this crate, for the server.

use std::sync::Arc;

use tarpon_server::{Exhibit, NewExhibit};

use super::image_store::PodmanImageStore;
use super::layer_store::LayerStore;

/// The stores that a server exposes to Podman.
pub const EXHIBITS: [NewExhibit; 2] = [
    |host| -> Arc<dyn Exhibit> { Arc::new(PodmanImageStore::new(host)) },
    |host| -> Arc<dyn Exhibit> { LayerStore::new(host) },
];
