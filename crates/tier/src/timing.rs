//! Limits that several parts share.

use std::time::Duration;

/// How long a small request may take, with its repetitions: a listing, an index, a claim.
pub(crate) const REQUEST: Duration = Duration::from_secs(3);
/// How long a body may be silent. A store in the same data centre takes a millisecond.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);
/// How long a part may take, with its repetitions: slower than a megabit per second is no store. Also how long the last request of an
/// object in parts may.
pub(crate) const PART: Duration = Duration::from_secs(60);
