//! Random access into layers that were compressed without support for it.
//!
//! While a layer is decoded from its beginning, places are recorded where decoding can restart. A **span** is the part between two
//! of them. A later read of a file fetches and decodes the spans that contain it.
//!
//! | compression | a span starts at | and needs |
//! |---|---|---|
//! | gzip | a member | nothing |
//! | gzip | a deflate block | the bits before it in its first byte, and the last 32 KiB before it ([`Checkpoint`]) |
//! | zstd | a frame | nothing |
//!
//! A layer that is one huge zstd frame has one span and so no random access: its chunks stay [`Codec::Stream`].
//!
//! [`Codec::Stream`]: crate::Codec::Stream

mod checkpoint;
mod counted;
mod gzip;
mod place;
mod reader;
mod recorder;
mod sparse;
mod starts;
mod zstd;

pub use checkpoint::{Checkpoint, WINDOW_BYTES};
pub(crate) use checkpoint::{FAST_WINDOW_LEVEL, pack, unpack};
pub(crate) use gzip::skip_header;
pub use reader::{SpanReader, Spans};
pub use starts::SpanStarts;

/// Decoded bytes after which a span ends where ending costs least. Reading 4 KiB decodes at most about this much (4 ms). Windows,
/// one for each span, prevent shorter spans: an index must stay below 1 % of its layer.
pub const SPAN_BYTES: u64 = 1 << 20;
