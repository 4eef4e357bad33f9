//! The server of a store: holds its mounts and answers their reads.
//!
//! One per store, ensured by a lock. It never resolves, indexes or merges. It mounts finished records only, so it starts in milliseconds
//! and stays small. It ends with its last mount. Only an image with background completion (`backfill`) is streamed and merged here, after
//! it was mounted.

mod answer;
mod backfill;
mod changes;
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
mod setup;
mod sharing;
mod signals;
mod status;
mod why;

pub use changes::MountChange;
pub(crate) use exhibit::Exhibit;
pub(crate) use host::{ExhibitHost, cannot_mount, protected};
pub(crate) use images::Image;
pub use observer::Observer;
pub use process::Server;
pub(crate) use setup::NewExhibit;
pub use setup::ServerSetup;
pub use signals::Ended;
pub(crate) use signals::Signals as StopSignals;
pub(crate) use status::exposed;
