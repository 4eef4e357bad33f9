//! Everything about the kernel: FUSE sessions, EROFS and overlayfs mounts, unmounting, and detecting what this machine supports.
//!
//! ```text
//! Host::mount(MountSpec) ──► Maker ──► native: overlayfs ( [upper] : EROFS tree :: objects/ :: ObjectFs over FUSE )
//!                                  └─► fuse:   ImageFs over FUSE, below overlayfs if it is to be writable
//! ```
//!
//! Invariant: mounts are built detached and attached last, so a kill at any moment leaves no half-made mount. A [`ConnectionHolder`]
//! may hold the FUSE connections beyond the death of this process: then its successor adopts them ([`Host::adopt`]), and
//! their readers wait meanwhile. Without a holder, a kill leaves no waiting reader.
//!
//! `tarpon_fs` decides what is served; only the adapter and the connection here use `fuser`.

mod adapter;
mod adopt;
mod connection;
mod device;
mod erofs;
mod error;
mod fusectl;
mod fusermount;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod holder;
mod host;
mod in_use;
mod kernel;
mod loop_device;
mod make;
mod mounted;
mod mountpoint;
mod opening;
mod overlay;
mod page_cache;
mod place;
mod pool;
mod probe;
mod protected;
mod spec;
mod table;
mod takeover;
#[cfg(test)]
mod tests;
mod upper;
mod watchdog;

pub use adapter::Counters;
pub use error::MountError;
pub use holder::{ConnectionHolder, Inheritance};
pub use host::Host;
pub use in_use::{below_overlays, bound_elsewhere};
pub use kernel::StepError;
pub use mounted::{KernelMount, Mounted, Unmounted};
pub use mountpoint::{clear, clear_dead, is_mounted};
pub use overlay::sees_trusted;
pub use probe::{Capability, Feature, probe};
pub use protected::Protected;
pub use spec::{Mode, ModeChoice, MountSpec, TreeFile, Watch, Writable};
pub use table::{TableEntry, mount_at, mounts};
