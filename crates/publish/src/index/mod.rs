//! Index artifacts: made locally, published, found and checked.
//!
//! A layer without a table of contents must be read once from beginning to end. The result can be stored beside the image in its registry
//! ([`artifact`](tarpon_images::index::artifact)), so that all others mount lazily from then on.

mod boot;
mod check;
mod learned;
mod make;
mod manage;
mod newest;
mod packs;
mod readers;
mod sign;
mod sync;
#[cfg(test)]
pub(crate) mod tests;

pub use self::boot::{BootPack, TraceCoverage};
pub use self::check::{IndexCheck, check_index};
pub use self::learned::{
    DEFAULT_STARTS, Failed, LearnedImage, LearnedRequest, LearnedStart, LearnedState, learned_images, publish_learned,
};
pub use self::make::{
    ImageIndexArtifact, IndexedLayer, destination, make_index, make_index_from, make_plain_index, make_predicted_index,
    publish_index,
};
pub use self::manage::{
    IndexSignature, KnownIndex, KnownIndexes, KnownPack, RemovedIndexes, Unwanted, known_indexes, remove_indexes,
};
pub use self::sign::sign;
pub use self::sync::{MAX_SYNC_JOBS, SYNC_LIST_BYTES, SyncEntry, SyncOptions, SyncState, Synced, sync_indexes};
