//! [`Trace`]: the ranges of objects that a start touched, in order.

use std::ops::Range;
use std::time::Duration;

use tarpon_oci::Digest;

/// Maximum number of touches in a trace. A start of a large machine-learning image touches about 20,000 files.
pub const TOUCHES: usize = 1 << 18;
/// Latest time that a trace can hold. A start does not take longer than a day.
pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The touches of one start, or of several merged starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The traced image and start.
    pub header: Header,
    /// The touched ranges, in the order of first touch; each byte of an object at most once.
    pub touches: Vec<Touch>,
}

/// The image and the start that a trace describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The image's name, for display.
    pub image: String,
    /// Digest of the image's manifest.
    pub manifest: Digest,
    /// The name of this way to start the image; an image may have several.
    pub profile: String,
    /// The command, if known.
    pub command: Vec<String>,
    /// When the start was complete, if that was reported.
    pub ready: Option<Duration>,
    /// The trace is incomplete: its limits were reached.
    pub truncated: bool,
    /// How many starts of this manifest in a row touched equal contents. 0: unknown.
    pub starts: u32,
}

impl Header {
    /// The header of a complete trace of an image, of whose command, end and number of starts nothing is known. Change the fields that
    /// should differ.
    pub fn new(image: impl Into<String>, manifest: Digest, profile: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            manifest,
            profile: profile.into(),
            command: Vec::new(),
            ready: None,
            truncated: false,
            starts: 0,
        }
    }
}

/// Bytes of an object that were touched for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// The content.
    pub object: Digest,
    /// Size of the whole object in bytes.
    pub size: u64,
    /// The touched range; never empty.
    pub range: Range<u64>,
    /// Time of the read, since the start.
    pub at: Duration,
    /// A layer that contains it, for display.
    pub layer: Option<Digest>,
    /// One of its paths in the image, for display.
    pub path: Option<String>,
    /// Where the bytes came from, if known.
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
    /// They were fetched for a reader.
    Demand,
    /// They were fetched before the first read.
    Prefetch,
}

impl Origin {
    /// Its spelling in the trace file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Demand => "demand",
            Self::Prefetch => "prefetch",
        }
    }
}

/// `time` at the precision of the trace file: whole microseconds.
pub(crate) fn whole_micros(time: Duration) -> Duration {
    Duration::from_micros(micros(time))
}

/// `time` in whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
