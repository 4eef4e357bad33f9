//! Invariant: any bytes are refused or are an ordered trace that can be written, merged with itself and drawn, and whose
//! pieces contain what was accessed.

use tarpon_trace::{Trace, merge, pieces, plot};

/// Parses `data` as a trace.
pub fn trace_file(data: &[u8]) {
    let Ok(trace) = Trace::read(data) else { return };
    assert!(trace.touches.is_sorted_by_key(|touch| touch.at));
    assert_eq!(Trace::read(&trace.write()).as_ref(), Ok(&trace));
    let merged = merge(&[trace.clone(), trace.clone()]).expect("it agrees with itself");
    assert_eq!(merged.totals().touched, trace.totals().touched);
    let taken: u64 = pieces(&trace).iter().map(|piece| piece.range.end - piece.range.start).sum();
    assert!((trace.totals().touched..=trace.totals().size).contains(&taken));
    assert!(plot(&trace).ends_with("</svg>\n"));
}
