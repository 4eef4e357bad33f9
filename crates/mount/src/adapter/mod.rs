//! Adapter between fuser and [`Operations`]: the only module that speaks FUSE.
//!
//! Every operation has the same shape: count it as in flight, call the file system, reply. Session threads answer from
//! memory and local files. A read that needs the network moves its reply to the async runtime, so no session thread ever
//! waits for the network. A panic in an operation becomes `EIO` for its caller and a log line; it does not end the mount.

mod convert;
mod filesystem;
mod fuse_adapter;
mod guarded;
mod in_flight;
mod open_record;
mod opens;
mod page_in;
mod registry;
mod reply;

#[cfg(test)]
pub(crate) use self::fuse_adapter::HIDDEN;
pub(crate) use self::fuse_adapter::{Adapter, OpenPolicy};
pub use self::guarded::Counters;
pub(crate) use self::in_flight::InFlight;
pub(crate) use self::opens::Opens;
pub(crate) use self::page_in::PageIn;
