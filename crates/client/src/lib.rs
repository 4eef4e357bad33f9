//! The client of a store's server, and what both sides have in common. Nothing is served here: a client sends requests, and the
//! server mounts.
//!
//! ```text
//! client          sends requests to the server; starts it if none runs
//! bring           has the server fetch what a start needs
//! protocol        requests, responses, the status of mounts
//! wire            one JSON object per line on a Unix socket
//! mount_record    the description of a mount in the store, from which a server mounts it again
//! rootfs          root file systems that are mounted as long as their owner holds them
//! early_server    notifies the server of a boot pack while the image is still being prepared
//! traces          traces that a client passes to the server
//! mountpoint      paths of mount points; namespaces: whether two processes see the same mounts
//! container_name  names of containers
//! child           child processes that report in one line; server_log: the log of a server
//! ```

mod bring;
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
pub mod server_version;
pub mod traces;
pub mod wire;

pub use client::{Client, Hold, REPLACE, settled, unexpected};
pub use container_name::{ContainerName, ROOTFS, random_id};
pub use early_server::prepare_to_mount;
pub use mountpoint::{is_directory, resolve_mountpoint, resolve_upper, store_of_mount};
pub use namespaces::Namespaces;
pub use tarpon_images::{Error, ErrorKind, Result, ResultExt};
