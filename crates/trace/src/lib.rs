//! Traces: which parts of an image the start of a container touches. Recorded, stored in a file, merged, drawn.
//!
//! A [`Trace`] names content (an object and a range of it), never a position in a layer. It stays valid when the image is
//! converted, and mostly when it is rebuilt. This crate does no I/O, and a trace is untrusted input: it only selects the bytes to
//! fetch first, and all fetched bytes are verified.

mod file;
mod journal;
mod merge;
mod model;
mod pieces;
mod plot;
mod ranges;
mod recorder;
mod starts;
mod summary;

pub use file::{FILE_BYTES, InvalidTrace, LINE_BYTES, Problem};
pub use journal::{InvalidJournal, JOURNAL_BYTES, Journal};
pub use merge::{MergeError, merge};
pub use model::{Header, LONGEST, Origin, TOUCHES, Touch, Trace};
pub use pieces::{PIECE_BYTES, Piece, WHOLE_BYTES, pieces};
pub use plot::plot;
pub use recorder::Recorder;
pub use starts::{EQUAL_PERCENT, MOST_STARTS, starts_with};
pub use summary::{Totals, TouchedFile};
