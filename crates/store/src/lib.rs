//! The content-addressed store of this host: complete objects, partial objects, image records, and records of their use.
//!
//! ```text
//! objects/ab/cdef…    the content of a file, named by its sha256; complete, 0444, linked in atomically, never rewritten
//! partial/ab/cdef….LIST  an object of which some bytes are local (sparse), as split by one chunk list
//! partial/layers/HEX  the beginning of a layer whose streaming was interrupted
//! images/HEX/         the files to mount an image again: manifest, config, tree.erofs, chunks, objects, record.json
//! layers/HEX[.CLAIM]  the index of a layer, for the next image that has it with the same claim
//! refs/               reference and platform → manifest digest
//! traces/             what starts of images read, up to 32 MiB; hints, which no digest covers
//! mounts/  pins/      protection from eviction: live mounts, running imports
//! containers/NAME/    containers, each with its record, its log and its written data; never touched by the store
//! commits/HEX/        committed images, until they are pushed; never touched by the store either
//! tenants/HEX/        in an isolated store: objects, partial, images, layers, refs, traces and corrupt of one tenant
//! run/                lock, socket and scratch folders of the server
//! podman/ podman-layers/  mount points of Podman's image store and layer store
//! corrupt/            damaged objects, moved out of `objects` until they are deleted
//! settings            the size limit, and that images share content
//! version  state  clean  usage  scrub  one fact each
//! ```
//!
//! Several processes may work on one store concurrently. This is safe because nothing visible is ever changed in place:
//! files appear complete, by link or rename, and disappear by unlink. Locks only prevent wasted work (two evictions) or a
//! broken promise (two servers).
//!
//! The store knows neither registries nor trees nor the kernel's mounts. It trusts data on the disk only as far as a
//! digest covers it.

mod budget;
mod check;
mod clock;
mod damaged;
mod discard;
mod disk;
mod durability;
mod error;
mod evict;
mod file_lock;
mod files;
pub mod flock;
mod hashed;
mod health;
mod images;
mod intervals;
mod layer;
mod layer_indexes;
mod layer_parts;
mod layout;
mod lock;
mod locks;
mod maintain;
mod map;
mod mounts;
mod object_store;
mod objects;
mod partial;
mod pins;
pub mod private;
mod process;
mod record;
mod refs;
mod renew;
mod scrub;
mod sealed;
mod settings;
pub mod storage;
mod store;
mod tenants;
mod traces;
mod usage;
mod verify;
mod walk;
mod writer;

pub use check::ImageState;
pub use clock::{Clock, SystemClock};
pub use damaged::{DamagedObject, MendedFile};
pub use disk::Disk;
pub use error::OpenError;
pub use evict::Evicted;
pub use file_lock::FileLock;
pub use health::{Health, PROBE_INTERVAL};
pub use images::{ImageStaging, LoadedImage};
pub use layer::{LayerKind, Verification};
pub use layer_indexes::IndexKey;
pub use layer_parts::LayerPart;
pub use layout::in_user_namespace;
pub use lock::{LockError, ServerLock, record_holder};
pub use maintain::{RemoveError, Swept};
pub use map::MappedFile;
pub use mounts::{Mount, MountRecord};
pub use pins::Pin;
pub use process::ProcessId;
pub use record::{ImageRecord, LayerRecord, Part, PartRecord, RecordError, parse_record};
pub use refs::RefRecord;
pub use scrub::{SCRUB_INTERVAL, SCRUB_RATE, ScrubRecord, ScrubRun, Scrubber};
pub use sealed::SealError;
pub use store::{RenewTree, Store, StoreConfig};
pub use tarpon_blob::StoreError;
pub use tenants::{Isolation, IsolationError};
pub use traces::{StoredTrace, TRACE_BYTES};
pub use usage::Usage;
pub use verify::{Checked, Progress, UnreadableObject};
