//! The client of a store's server, and what both sides have in common.
//!
//! ```text
//! client        requests to the server; starts it if none runs
//! protocol      requests, responses, the status of mounts
//! wire          one JSON object per line on a Unix socket
//! mount_record  the description of a mount in the store, from which a server mounts it again
//! rootfs        root file systems that are mounted as long as their owner holds them
//! early_server  fetches a boot pack while the image is still being prepared
//! traces        traces that a client passes to the server
//! ```
//!
//! Nothing is served here: a client sends requests, and the server mounts.

pub mod child;
mod client;
mod container_name;
mod early_server;
pub mod mount_record;
mod mountpoint;
mod namespaces;
pub mod protocol;
pub mod rootfs;
pub mod server_log;
pub mod traces;
pub mod wire;

pub use client::{Client, Hold, settled, unexpected};
pub use container_name::{ContainerName, ROOTFS, random_id};
pub use early_server::prepare_to_mount;
pub use mountpoint::{is_directory, resolve_mountpoint, resolve_upper, store_of_mount};
pub use namespaces::Namespaces;
pub use tarpon_images::{Error, ErrorKind, Result, ResultExt};
