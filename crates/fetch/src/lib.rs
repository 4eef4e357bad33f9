//! From "these bytes of that object" to verified bytes: local store, read plan, singleflight, request, check, decode.
//!
//! The two traits at its edges are those of `tarpon-blob`: [`tarpon_blob::BlobSource`] and [`tarpon_blob::ObjectStore`].
//! [`Fetcher`] is the entry point; it returns [`ObjectBytes`], which hold verified bytes only. Start reading at `read.rs`,
//! the path of a read step by step. The module `prefetch` decides what may be fetched before a reader requests it.

mod body;
mod breaker;
mod bypass;
mod check;
mod checks;
mod chunk;
mod clock;
mod config;
mod content;
mod contents;
mod decode;
mod dispute;
mod disputes;
mod distrust;
mod early;
mod error;
mod failures;
mod fetcher;
mod first_chunk;
mod flight;
mod gate;
mod gather;
mod held_inodes;
mod host;
mod ids;
mod image;
mod inodes;
mod journal;
mod keep;
mod lanes;
mod ledger;
mod local;
mod lru;
mod object;
mod observed;
mod pack;
mod pieces;
mod plan;
mod prefetch;
mod presence;
mod read;
mod request;
mod rounds;
mod runtime;
mod settle;
mod stats;
mod stream;
mod sync;

pub use config::{Config, READ_BYTES};
pub use content::ObjectBytes;
pub use error::{PieceError, ReadError};
pub use fetcher::{Fetcher, ImageHandle};
pub use journal::{Account, Event, Journal, Noted, START, Stall, WaitSum, WaitedFor};
pub use local::LocalObject;
pub use observed::ReadObserver;
pub use pack::places::PackOrigin;
pub use pack::{
    BOOT_FRAMES, BOOT_PIECES, BootFrame, BootIndex, BootPiece, BootWriter, InvalidBootIndex, PROFILE_BYTES,
};
pub use prefetch::bring::{Brought, StartContent};
pub use prefetch::hints::Hint;
pub use prefetch::replay::{EARLY_REQUESTS, REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES};
pub use prefetch::rules::Background;
pub use stats::{Bucket, Early, Histogram, STALL_MILLIS, Stats};
