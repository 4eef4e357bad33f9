//! Random access into layers that were compressed without a thought of it.
//!
//! While a layer is decoded from its beginning, places are noted from which decoding can start again. Between two of them
//! lies a **span**; whoever wants a file of the layer later fetches and decodes the spans that it lies in.
//!
//! | compression | a span starts at | and needs |
//! |---|---|---|
//! | gzip | a member | nothing |
//! | gzip | a deflate block | the bits before it in its first byte, and the last 32 KiB before it ([`Checkpoint`]) |
//! | zstd | a frame | nothing |
//!
//! A layer that is one huge zstd frame has one span, which is no random access: its chunks stay [`Codec::Stream`].
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

pub use checkpoint::{Checkpoint, InvalidWindow, WINDOW_BYTES};
pub(crate) use checkpoint::{FAST_WINDOW_LEVEL, pack, unpack};
pub(crate) use gzip::skip_header;
pub use reader::{SpanReader, Spans};
pub use starts::SpanStarts;

/// Decoded bytes of a span, from which on it ends where ending costs least. Reading 4 KiB decodes at most about so much
/// (4 ms), and windows, one for each span, are what keeps spans from being shorter: an index is to stay below 1 % of its layer.
pub const SPAN_BYTES: u64 = 1 << 20;
