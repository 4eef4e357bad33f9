//! Prefetching: fetches bytes before a reader requests them. One policy decides for all prefetchers.
//!
//! Six prefetchers share the link with readers. None of them knows the others: each checks with [`policy::Prefetch`] before each [`rules::Step`].
//! The rules are the table below, which `rules.rs` holds as data. A new prefetcher is one variant and one row there.
//!
//! | prefetcher | does not begin | sends no first request | sends no later request | lane | bytes, requests at a time |
//! |---|---|---|---|---|---|
//! | read-ahead | at a chunk that the boot pack has | while the store refuses | as the first | `Ahead` | half of the sequence, 128 KiB to 32 MiB; 4 on the host |
//! | neighbours | while a recorded boot pack is in use, a prediction or a whole download runs, the source is local or fails, a reader's request is on the wire, or the store refuses | as to begin | as to begin | the reader's request, then `Ahead` | one round trip, 1 MiB, as much as readers requested; none of its own |
//! | hints | if there is a recorded boot pack; behind a predicted one | while the store refuses | while the store refuses or the source fails | `Trace` | 256 MiB; 8 |
//! | boot pack | if there is another | while the store refuses | as the first | `Trace` | the pack; 2 |
//! | whole image | while a prediction runs, the store refuses, or the source is local | while a prediction runs | while the store refuses, the source fails, or no reader has waited for 5 s | `Whole` | the rest; 4 |
//! | backfill, idle (and the early part of a boot pack) | | while any request is on the wire | as the first | none | a request lasts 25 ms or four round trips |
//! | backfill, now | | while a reader's request is on the wire | as the first | none | the same |
//!
//! A boot pack or hints that are [brought](bring) before anything reads the image follow the same rows.
//!
//! A *prediction* is a boot pack that is replayed or hints that are followed. The first request of a whole download is the
//! decision for it. Hints, boot packs and whole downloads run as one task each per image.
//!
//! Readers come first in every row: the lanes (`lanes.rs`) pause the requests of prefetchers while a reader's request is on the
//! wire, and give demand room of its own. The policy never holds up a reader's request: that is the part of `gate.rs` and `lanes.rs`.

pub(crate) mod allowance;
pub(crate) mod bring;
pub(crate) mod governor;
pub(crate) mod hints;
mod neighbours;
mod open_requests;
pub(crate) mod policy;
pub(crate) mod read_ahead;
pub(crate) mod replay;
pub(crate) mod rules;
