//! The rules of the policy as data: a row for each prefetcher.

use std::fmt;

use crate::lanes::{Lane, Lanes};

/// Work of an image that fetches bytes before a reader requests them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefetcher {
    /// The bytes that follow in an object that is read in sequence.
    ReadAhead,
    /// The small files behind a small piece that a reader waits for.
    Neighbours,
    /// The bytes that a trace or a landmark names.
    Hints,
    /// The frames of a boot pack.
    BootPack,
    /// The rest of an image whose readers wait too much.
    WholeImage,
}

/// Work that fetches outside of this crate, and asks for its turn before each request ([`crate::Fetcher::turn`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// Completes an image while nothing else uses the link.
    IdleBackfill,
    /// Completes an image beside the other prefetchers.
    PromptBackfill,
    /// Fetches the beginning of a boot pack before its image is mounted.
    EarlyPack,
}

/// What a prefetcher is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start to work, because of an event: a read, an index, hints.
    Begin,
    /// Send its first request.
    First,
    /// Send a later request.
    Next,
}

/// A reason not to prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The store refused bytes recently: bytes that cannot be kept must not be fetched on suspicion.
    StoreRefuses,
    /// The source fails.
    SourceFails,
    /// The source is on this host: there is no round trip to save.
    SourceIsLocal,
    /// The image has a boot pack, even if it is not used any more.
    HasPack,
    /// The image has a recorded boot pack, even if it is not used any more.
    HasRecordedPack,
    /// A recorded boot pack is in use: it predicts better.
    PackInUse,
    /// The boot pack in use has the chunk.
    PackHasChunk,
    /// A boot pack is replayed or hints are followed.
    PredictionRuns,
    /// The rest of the image is being fetched.
    DownloadRuns,
    /// A reader's request is on the wire: the link does not idle.
    DemandOnWire,
    /// No reader of the image has waited for a while.
    ReadersQuiet,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StoreRefuses => "the store accepts nothing",
            Self::SourceFails => "the source fails",
            Self::SourceIsLocal => "the source is local",
            Self::HasPack | Self::HasRecordedPack | Self::PackInUse => "the image has a boot pack",
            Self::PackHasChunk => "the boot pack has the chunk",
            Self::PredictionRuns => "a boot pack or hints are being fetched",
            Self::DownloadRuns => "the rest of the image is being fetched",
            Self::DemandOnWire => "a reader's request is on the wire",
            Self::ReadersQuiet => "no reader has waited for a while",
        })
    }
}

/// A row of the table: what keeps the prefetcher from each step, and the lane of its requests.
pub(super) struct Rules {
    begin: &'static [Obstacle],
    first: &'static [Obstacle],
    next: &'static [Obstacle],
    lane: Lane,
}

impl Rules {
    pub(super) fn at(&self, step: Step) -> &'static [Obstacle] {
        match step {
            Step::Begin => self.begin,
            Step::First => self.first,
            Step::Next => self.next,
        }
    }
}

/// What makes neighbours useless: there is a better prediction, the link does not idle, or nothing would be kept.
const NO_NEIGHBOURS: &[Obstacle] = &[
    Obstacle::PackInUse,
    Obstacle::PredictionRuns,
    Obstacle::DownloadRuns,
    Obstacle::SourceIsLocal,
    Obstacle::SourceFails,
    Obstacle::DemandOnWire,
    Obstacle::StoreRefuses,
];

impl Prefetcher {
    #[inline]
    pub(super) const fn rules(self) -> Rules {
        use Obstacle::{
            HasPack, HasRecordedPack, PackHasChunk, PredictionRuns, ReadersQuiet, SourceFails, SourceIsLocal,
            StoreRefuses,
        };
        match self {
            // The boot pack contains what the recorded start read ahead.
            Self::ReadAhead => {
                Rules { begin: &[PackHasChunk], first: &[StoreRefuses], next: &[StoreRefuses], lane: Lane::Ahead }
            }
            Self::Neighbours => {
                Rules { begin: NO_NEIGHBOURS, first: NO_NEIGHBOURS, next: NO_NEIGHBOURS, lane: Lane::Ahead }
            }
            // The first request after a failure tries the source again, and that may be this one.
            Self::Hints => Rules {
                begin: &[HasRecordedPack],
                first: &[StoreRefuses],
                next: &[StoreRefuses, SourceFails],
                lane: Lane::Trace,
            },
            Self::BootPack => {
                Rules { begin: &[HasPack], first: &[StoreRefuses], next: &[StoreRefuses], lane: Lane::Trace }
            }
            // Readers try a failing source again. Each of them that waits would start the download otherwise.
            Self::WholeImage => Rules {
                begin: &[PredictionRuns, SourceIsLocal, StoreRefuses, SourceFails],
                first: &[PredictionRuns, SourceFails],
                next: &[StoreRefuses, SourceFails, ReadersQuiet],
                lane: Lane::Whole,
            },
        }
    }

    /// The lane of its requests. The bytes of neighbours are in this lane, their request is the reader's.
    pub(crate) const fn lane(self) -> Lane {
        self.rules().lane
    }
}

impl Background {
    /// Returns when it may send its next request.
    pub(crate) async fn turn(self, lanes: &Lanes) {
        match self {
            Self::IdleBackfill | Self::EarlyPack => lanes.quiet().await,
            Self::PromptBackfill => lanes.no_demand().await,
        }
    }
}
