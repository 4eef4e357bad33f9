//! The content-addressed store of this host: complete objects, partial objects, image records, and who uses them.
//!
//! ```text
//! objects/ab/cdef…    the content of a file, named by its sha256; complete, 0444, linked in at once, never rewritten
//! partial/ab/cdef….LIST  an object of which some bytes are here (sparse), as one chunk list splits it
//! partial/layers/HEX  the beginning of a layer whose streaming broke off
//! images/HEX/         what mounts an image again: manifest, config, tree.erofs, chunks, objects, record.json
//! layers/HEX[.CLAIM]  the index of a layer, for the next image that has it and claims the same of it
//! refs/               reference and platform → manifest digest
//! mounts/  pins/      what must not be evicted: live mounts, imports in progress
//! containers/NAME/    containers, each with its record, its log and what it wrote; nothing here is the store's to touch
//! commits/HEX/        committed images, until they are pushed; not the store's to touch either
//! tenants/HEX/        in an isolated store: objects, partial, images, layers, refs and corrupt of one tenant
//! run/                lock, socket and scratch folders of the server
//! version  state  clean  usage  scrub  one fact each; see the modules of these names
//! ```
//!
//! Several processes may work on one store at once. What makes that safe is that nothing visible is ever changed in
//! place: files appear whole, by link or rename, and disappear whole, by unlink. Locks only keep out what would waste
//! work (two evictions) or break a promise (two servers).
//!
//! The store knows neither registries nor trees nor the kernel's mounts. It never trusts what it finds on the disk
//! further than a digest says.

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
mod objects;
mod partial;
mod pins;
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
pub use layer_parts::{LayerPart, RESUMED_LAYER_BYTES};
pub use lock::{LockError, ServerLock};
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
pub use usage::Usage;
pub use verify::{Checked, Progress, UnreadableObject};
