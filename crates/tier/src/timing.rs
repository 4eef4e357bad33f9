//! Limits that several parts share.

use std::time::Duration;

/// How long a small request may take, with its repetitions: a listing, an index, the refresh of a claim.
pub(crate) const REQUEST: Duration = Duration::from_secs(3);
/// How long the creation of a claim may take: hosts that start together create theirs at once, and a folder syncs each to the disk. One that
/// takes longer may still appear, without an owner that refreshes it. Together with the first refresh it is shorter than the lease.
pub(crate) const CREATE: Duration = Duration::from_secs(8);
/// How long a body may be silent. A store in the same data centre takes a millisecond.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);
/// How long a part may take, with its repetitions: slower than a megabit per second is no store. Also how long the last request of an
/// object in parts may.
pub(crate) const PART: Duration = Duration::from_secs(60);
