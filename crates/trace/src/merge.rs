//! [`merge`]: the union of the traces of several starts.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use tarpon_oci::Digest;

use crate::model::{Header, TOUCHES, Touch, Trace};
use crate::ranges::Ranges;

/// Why traces cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// There are no traces.
    #[error("there is no trace to merge")]
    Nothing,
    /// Two traces contradict each other.
    #[error("{object} has {first} bytes in one trace and {second} in another")]
    Sizes {
        /// The object.
        object: Digest,
        /// The smaller of the two sizes.
        first: u64,
        /// The larger of the two sizes.
        second: u64,
    },
}

/// All bytes that any of the traces touched, each at its earliest time. The result does not depend on the order of the traces, except for
/// its header, which is that of the first.
///
/// Stalls and origins belong to one start: the result has none.
pub fn merge(traces: &[Trace]) -> Result<Trace, MergeError> {
    let first = traces.first().ok_or(MergeError::Nothing)?;
    let mut objects: HashMap<Digest, Object<'_>> = HashMap::new();
    for touch in traces.iter().flat_map(|trace| &trace.touches) {
        objects.entry(touch.object).or_insert_with(|| Object::new(touch.size)).add(touch)?;
    }
    let mut touches: Vec<Touch> = objects.into_iter().flat_map(|(id, object)| object.touches(id)).collect();
    touches.sort_by_key(|touch| (touch.at, touch.object, touch.range.start));
    let truncated = traces.iter().any(|trace| trace.header.truncated) || touches.len() > TOUCHES;
    touches.truncate(TOUCHES);
    Ok(Trace { header: Header { truncated, ..first.header.clone() }, touches })
}

/// The touches of one object in all traces.
struct Object<'a> {
    size: u64,
    touches: Vec<(Duration, Range<u64>)>,
    hint: Hint<'a>,
}

/// Whether there is no path, the path and the layer. The smallest one is used, so that the choice does not depend on the order.
type Hint<'a> = (bool, Option<&'a str>, Option<Digest>);

impl<'a> Object<'a> {
    fn new(size: u64) -> Self {
        Self { size, touches: Vec::new(), hint: (true, None, None) }
    }

    fn add(&mut self, touch: &'a Touch) -> Result<(), MergeError> {
        if self.size != touch.size {
            let (first, second) = (self.size.min(touch.size), self.size.max(touch.size));
            return Err(MergeError::Sizes { object: touch.object, first, second });
        }
        let hint = (touch.path.is_none(), touch.path.as_deref(), touch.layer);
        self.hint = if self.touches.is_empty() { hint } else { self.hint.min(hint) };
        self.touches.push((touch.at, touch.range.clone()));
        Ok(())
    }

    /// The object's touches: ranges that meet and have the same time are joined.
    fn touches(mut self, object: Digest) -> Vec<Touch> {
        self.touches.sort_by_key(|(at, range)| (*at, range.start));
        let (mut seen, mut parts) = (Ranges::default(), Vec::new());
        for (at, range) in self.touches {
            parts.extend(seen.add(range).into_iter().map(|part| (at, part)));
        }
        parts.sort_by_key(|(at, range)| (*at, range.start));
        parts.dedup_by(|next, part| {
            let joined = (part.0, part.1.end) == (next.0, next.1.start);
            if joined {
                part.1.end = next.1.end;
            }
            joined
        });
        let (_, path, layer) = self.hint;
        let touch = |(at, range)| Touch {
            object,
            size: self.size,
            range,
            at,
            layer,
            path: path.map(str::to_owned),
            from: None,
            stall: Duration::ZERO,
        };
        parts.into_iter().map(touch).collect()
    }
}
