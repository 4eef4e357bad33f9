//! The server of a store: holds its mounts and answers their reads.
//!
//! One per store, ensured by a lock. It never resolves, indexes or merges. It mounts finished records only, so it starts in milliseconds
//! and stays small. It ends with its last mount. Only an image with background completion (`backfill`) is streamed and merged here, after
//! it was mounted.

mod answer;
mod backfill;
mod changes;
mod damage;
mod domain;
mod early;
mod exhibit;
mod hints;
mod host;
mod idle;
mod images;
mod in_process;
mod listen;
mod mend;
mod metrics;
mod mount_points;
mod mount_table;
mod observer;
mod process;
mod recording;
mod recover;
mod scrub;
mod serve;
pub mod service;
mod setup;
mod sharing;
mod signals;
mod status;
mod why;

pub use changes::MountChange;
pub use exhibit::Exhibit;
pub use host::{ExhibitHost, cannot_mount, protected};
pub use images::LoadedImage;
pub use observer::Observer;
pub use process::Server;
pub use serve::{Equipment, ForGood, allow_open_files, serve};
pub use setup::{NewExhibit, ServerSetup};
pub use signals::Ended;
pub use status::exposed;
pub use tarpon_images::{Error, ErrorKind, Result, ResultExt};
