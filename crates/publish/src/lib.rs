//! New images and indexes, and their way to registries.
//!
//! ```text
//! commit   an image of what a container or a mount wrote, and its push
//! convert  an image in another format
//! index    indexes and boot packs of an image: made, published, checked
//! edit     changes a document of an image in few places, and keeps the rest byte for byte
//! upload   a blob that is uploaded while it is written
//! ```
//!
//! The tag is written last: what fails or is stopped leaves blobs without a name, and no image or index.

mod commit;
mod convert;
mod edit;
mod index;
mod upload;

pub use commit::{
    Change, CommitReport, CommitRequest, CommitSource, PushRequest, Pushed, PushedLayer, PushedOutcome, commit, push,
};
pub use convert::{
    Conversion, ConvertRequest, ConvertedImage, ConvertedLayer, MAX_CONVERT_JOBS, Outcome, Platforms, TocImage, convert,
};
pub use index::{
    BootPack, DEFAULT_STARTS, Failed, ImageIndexArtifact, IndexCheck, IndexSignature, IndexedLayer, KnownIndex,
    KnownIndexes, KnownPack, LearnedImage, LearnedRequest, LearnedStart, LearnedState, MAX_SYNC_JOBS, RemovedIndexes,
    SYNC_LIST_BYTES, SyncEntry, SyncOptions, SyncState, Synced, TraceCoverage, Unwanted, check_index,
    destination as index_destination, known_indexes, learned_images, make_index, make_index_from, make_plain_index,
    make_predicted_index, publish_index, publish_learned, remove_indexes, sign, sync_indexes,
};
use tarpon_images::{Cause, Error, ErrorKind, Result, ResultExt};
