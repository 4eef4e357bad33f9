//! From "these bytes of that object" to verified bytes: local store, read plan, singleflight, request, check, decode.
//!
//! This crate owns the two traits at its edges: [`BlobSource`] (where blobs come from) and [`ObjectStore`] (where
//! objects stay). [`Fetcher`] is the door; what leaves it is [`ObjectBytes`], which only verified bytes become. Start
//! reading at `read.rs`: it is the whole way of a read, step by step. [`trace`] stands beside it: what a start touched.

mod body;
mod breaker;
mod check;
mod clock;
mod config;
mod content;
mod contents;
mod decode;
mod dispute;
mod distrust;
mod early;
mod error;
mod failures;
mod fetcher;
mod flight;
mod gate;
mod gather;
mod governor;
mod hints;
mod host;
mod image;
mod inodes;
mod journal;
mod keep;
mod lanes;
mod local;
mod log_limit;
mod lru;
mod neighbours;
mod object;
mod object_store;
mod pack;
mod pieces;
mod plan;
mod read;
mod readahead;
mod request;
mod source;
mod stats;
mod stream;
pub mod trace;
mod under_way;

pub use config::{Config, READ_BYTES};
pub use content::ObjectBytes;
pub use early::Early;
pub use error::{PieceError, ReadError};
pub use fetcher::{Fetcher, ImageHandle};
pub use hints::{HINT_BYTES, Hint};
pub use journal::{
    Account, EVENTS, Event, Journal, Noted, REASON_BYTES, SLOWEST_STALLS, START, Stall, WaitSum, WaitedFor,
};
pub use local::LocalObject;
pub use log_limit::{LeftOut, LogLimit};
pub use object_store::{ObjectStore, ObjectWriter, Opened, PartialObject, StoreError};
pub use pack::{
    BOOT_FRAMES, BOOT_PIECES, BootFrame, BootIndex, BootPiece, BootWriter, FRAME_BYTES, InvalidBootIndex,
    PROFILE_BYTES, REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES, REPLAY_REQUESTS,
};
pub use source::{BlobSource, BlobStream, Fault, SourceError};
pub use stats::{Bucket, Histogram, STALL_MILLIS, Stats};
