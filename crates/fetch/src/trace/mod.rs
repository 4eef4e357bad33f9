//! What a start of a container touched: recorded, kept in a file, merged, drawn.
//!
//! A [`Trace`] names content (an object and a range of it), never a place in a layer. So it stays true when the image is
//! converted, and mostly when it is rebuilt. Nothing here reads or writes files, and nothing here is believed: a trace says
//! what to fetch first, and what is fetched is checked as everything is.

mod file;
mod merge;
mod pieces;
mod plot;
mod ranges;
mod recorder;
mod summary;

use std::ops::Range;
use std::time::Duration;

use tarpon_oci::Digest;

pub use file::{FILE_BYTES, InvalidTrace, LINE_BYTES, Problem};
pub use merge::{MergeError, merge};
pub use pieces::{PIECE_BYTES, Piece, WHOLE_BYTES, pieces};
pub use plot::plot;
pub use recorder::Recorder;
pub use summary::{Totals, TouchedFile};

/// Touches of one trace. A start of a large machine-learning image touches some 20,000 files.
pub const TOUCHES: usize = 1 << 18;
/// The last moment that a trace knows. What takes longer than a day is no start.
pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// What one start touched, or several that were merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Of what it is a trace.
    pub header: Header,
    /// What was touched, in the order of first touch; no byte of an object twice.
    pub touches: Vec<Touch>,
}

/// Of what a trace is a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The image's name, for people.
    pub image: String,
    /// The image.
    pub manifest: Digest,
    /// One image starts in several ways; this is the name of one.
    pub profile: String,
    /// What was started, if that is known.
    pub command: Vec<String>,
    /// When the start was over, if somebody said so.
    pub ready: Option<Duration>,
    /// More was touched than is in the trace.
    pub truncated: bool,
}

/// Bytes of an object that were touched for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// The content.
    pub object: Digest,
    /// How large all of it is.
    pub size: u64,
    /// What of it was touched; never empty.
    pub range: Range<u64>,
    /// When it was asked for, since the start.
    pub at: Duration,
    /// A layer that has it. A hint for people.
    pub layer: Option<Digest>,
    /// A path that it has in the image. A hint for people.
    pub path: Option<String>,
    /// Where the bytes came from, if that is known.
    pub from: Option<Origin>,
    /// How long the reader waited for them.
    pub stall: Duration,
}

/// Where touched bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// They were on this host.
    Local,
    /// They were fetched because somebody read them.
    Demand,
    /// They were fetched before anybody read them.
    Prefetch,
}

impl Origin {
    /// As it stands in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Demand => "demand",
            Self::Prefetch => "prefetch",
        }
    }
}

/// The time as it is kept: whole microseconds.
fn whole_micros(time: Duration) -> Duration {
    Duration::from_micros(micros(time))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
