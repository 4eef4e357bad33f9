//! Statistics of requests, fetched bytes and served reads, per image and for the host: counters that only grow, and gauges that are
//! zero when idle.

mod counter;
mod counters;
mod histogram;

pub use self::counter::Early;
pub use self::counters::Stats;
pub(crate) use self::counters::{Counters, InFlight, Tally};
pub use self::histogram::{Bucket, Histogram, STALL_MILLIS};
