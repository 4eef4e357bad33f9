//! [`starts_with`]: how many starts in a row touched equal contents.

use std::collections::HashSet;

use tarpon_oci::Digest;

use crate::model::Trace;

/// Percentage of the contents that two equal starts have in common. The rest is what chance adds: a log file that was rotated, a locale, a
/// plugin that is loaded late.
pub const EQUAL_PERCENT: usize = 90;

/// The highest count. More starts prove nothing more, and each would write the trace again.
pub const MOST_STARTS: u32 = 100;

/// The count of a trace that continues `earlier`: `now` is the union of both. A start of another manifest, or one that touched other
/// contents, is the first.
pub fn starts_with(earlier: Option<&Trace>, now: &Trace) -> u32 {
    match earlier {
        Some(earlier) if are_equal(earlier, now) => earlier.header.starts.saturating_add(1).min(MOST_STARTS),
        _ => 1,
    }
}

fn are_equal(earlier: &Trace, now: &Trace) -> bool {
    if earlier.header.manifest != now.header.manifest {
        return false;
    }
    let (earlier, now) = (contents(earlier), contents(now));
    let common = earlier.intersection(&now).count();
    let all = earlier.len() + now.len() - common;
    common.saturating_mul(100) >= all.saturating_mul(EQUAL_PERCENT)
}

fn contents(trace: &Trace) -> HashSet<&Digest> {
    trace.touches.iter().map(|touch| &touch.object).collect()
}
