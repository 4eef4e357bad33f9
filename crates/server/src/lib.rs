//! The server of a store: mounts prepared images, and answers their reads.
//!
//! There is one per store, ensured by a lock. It mounts images whose records are complete, and never resolves, indexes or merges:
//! so it starts in milliseconds and stays small. [`ServerSetup::sources`] decides which process
//! receives and decodes bytes of strangers: another one, unless a program that embeds the server wants it otherwise.
//! It ends with its last mount, unless it is permanent ([`PermanentServer`]).
//!
//! ```text
//! process, serve           the server from its start to its end; in_process: root file systems, without the socket
//! listen, answer           the requests of clients
//! mount_table              the mounts; mount_points: the stage that each path is in
//! images, endpoints, domain   the loaded images with the hosts that serve them, and which share content; sharing: whether they may share inodes
//! prepared_bytes           the bytes that came when an image was prepared, for the metrics
//! holding                  what outlives the server: connections and state, in a holder process
//! succession               what a server does for its successor, and with what its predecessor left
//! recover                  mounts that a dead server left: adopted with their connections, or made again
//! ready, early             what is done for an image before it is mounted: connections, the beginning of its boot pack
//! hints, backfill          what is fetched before a reader requests it; learning, start: what earlier starts read
//! bring                    what a start needs, fetched before its mount
//! scrub, damage, mend      damaged files: found, known, repaired
//! exhibit, host            content in another form than a mount, which another crate adds (Podman's stores)
//! status, why, metrics     what is reported; observer, changes: events
//! ```

mod answer;
mod backfill;
mod bring;
mod changes;
mod counters;
mod damage;
mod domain;
mod early;
mod elsewhere;
mod endpoints;
mod exhibit;
mod give_way;
mod hints;
mod holding;
mod host;
mod idle;
mod images;
mod in_process;
mod learning;
mod listen;
mod memory;
mod mend;
mod metrics;
mod mount_points;
mod mount_table;
mod observer;
mod prepared_bytes;
mod process;
mod ready;
mod recording;
mod recover;
mod scrub;
mod serve;
pub mod service;
mod setup;
mod sharing;
mod signals;
mod start;
mod status;
mod succession;
mod sync;
mod why;

pub use bring::StartBringer;
pub use changes::MountChange;
pub use exhibit::Exhibit;
pub use holding::hold;
pub use host::{ExhibitHost, cannot_mount, protected};
pub use idle::lower_priority;
pub use images::LoadedImage;
pub use observer::Observer;
pub use process::Server;
pub use serve::{BackgroundOptions, PermanentServer, ServerOptions, allow_open_files, keep_mount_privileges, serve};
pub use setup::{NewExhibit, ServerSetup};
pub use signals::Ended;
pub use status::exposed;
pub use tarpon_images::{Error, ErrorKind, Result, ResultExt};
