//! Timeouts. Counts and sizes are in [`tarpon_oci::limits`].

use std::time::Duration;

/// To connect, TLS included. Ten round trips to the other side of the earth.
pub(crate) const CONNECT: Duration = Duration::from_secs(4);
/// From sending a request to the head of its answer.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(5);
/// As [`FIRST_BYTE`], for a host that was slow before. It leaves time for one more attempt within [`REQUEST`].
pub(crate) const FIRST_BYTE_LONGEST: Duration = Duration::from_secs(20);
/// From the last byte that an upload accepted to the answer, and the longest time in which it may accept none: registries write to
/// object stores in large parts, and copy and hash the blob when it is complete.
pub(crate) const COMMIT: Duration = Duration::from_secs(60);
/// A request with all its attempts, redirects and tokens, until the head of the final answer.
pub(crate) const REQUEST: Duration = Duration::from_secs(30);
/// The single attempt at a mirror. It is shorter than [`REQUEST`], because the next endpoint is to answer within the same read.
pub(crate) const MIRROR: Duration = Duration::from_secs(5);
/// All attempts at the mirrors of one request: two that do not answer. The others are tried if the registry fails.
pub(crate) const MIRRORS: Duration = Duration::from_secs(10);
/// As [`REQUEST`], at a registry with mirrors: with [`MIRRORS`] before it and [`MIRROR`] behind it, it fits into one.
pub(crate) const AFTER_MIRRORS: Duration = Duration::from_secs(13);
/// How long a mirror is not asked after its first failure. Doubles each time: a mirror that restarts is back soon.
pub(crate) const MIRROR_PAUSE: Duration = Duration::from_secs(1);
/// The pause is at least this many times as long as the failed attempt: a mirror that is silent costs a fifth of the time at most.
pub(crate) const MIRROR_PAUSE_TIMES: u32 = 4;
/// The longest such pause. One request in this time finds out whether a dead mirror is back.
pub(crate) const MIRROR_PAUSE_LONGEST: Duration = Duration::from_secs(60);
/// The span over which a body must deliver [`STALL_BYTES`].
pub(crate) const STALL: Duration = Duration::from_secs(10);
/// Less than this in [`STALL`] (1 KiB/s) is a stalled body.
pub(crate) const STALL_BYTES: u64 = 10 << 10;
/// A body that delivered this much since its last failure gets its attempts back: a large layer over a bad link arrives as long as
/// it makes progress.
pub(crate) const PROGRESS_BYTES: u64 = 1 << 20;
/// First pause before another attempt; doubles each time.
pub(crate) const BACKOFF: Duration = Duration::from_millis(100);
/// A longer pause requested by a server counts as a refusal.
pub(crate) const RETRY_AFTER_LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The most that is added to a pause requested by a server. Requests of hundreds of clients that come back over two seconds are no burst,
/// and a reader hardly notices them.
pub(crate) const RETRY_AFTER_SPREAD: Duration = Duration::from_secs(2);
/// The longest pause of all requests to a host that one answer can cause: it may have been meant for one user or one image.
pub(crate) const HOST_PAUSE_LONGEST: Duration = Duration::from_secs(300);
/// How long a request waits for the address of a blob that another request is fetching. That normally takes one round trip.
pub(crate) const ADDRESS: Duration = Duration::from_secs(1);
/// To read the body of an error for its message, or a short body so that its connection can be used again.
pub(crate) const DRAIN: Duration = Duration::from_secs(1);
/// When a registry may speak plain HTTP and has answered so: how long the HTTPS attempt may still take.
pub(crate) const HTTPS_GRACE: Duration = Duration::from_secs(1);
/// Lifetime of a token without one: the distribution project's default.
pub(crate) const TOKEN: Duration = Duration::from_secs(60);
/// Longest accepted lifetime: no issuer uses longer ones, and sums with it cannot overflow.
pub(crate) const TOKEN_LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// A token is renewed this long before it expires (or a fifth of its life, if that is less).
pub(crate) const TOKEN_MARGIN: Duration = Duration::from_secs(10);
/// Credentials that were refused once are not tried again for this long, unless they change. Registries also answer 401 by mistake,
/// when one of several servers does not know a token yet, or when clocks differ.
pub(crate) const DENIED_FIRST: Duration = Duration::from_secs(1);
/// Requests wait for the end of a pause of at most this; during a longer one they fail at once.
pub(crate) const DENIED_WAIT: Duration = Duration::from_secs(2);
/// The pause doubles with each refusal, up to this: wrong credentials stay wrong until a user changes them.
pub(crate) const DENIED_LONGEST: Duration = Duration::from_secs(300);
/// Longer, because a credential helper may query the user's keyring.
pub(crate) const HELPER: Duration = Duration::from_secs(10);
/// TCP keep-alive probes.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(30);
/// An idle connection is closed after this: less than the usual 75 s of servers and load balancers.
pub(crate) const IDLE: Duration = Duration::from_secs(55);
