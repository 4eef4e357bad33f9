//! Assembles the bytes of a read from arrived and local chunks.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use tarpon_oci::Verified;

use crate::content::{Assembly, ObjectBytes};
use crate::host::FetchHost;
use crate::object::{Numbered, Object, Trust};

/// Chunks that arrived for one read: by number, because the store may not have taken them.
pub(crate) type Arrived = HashMap<u32, Verified<Bytes>>;

impl FetchHost {
    /// The bytes of the read, if all of its chunks are available.
    pub(crate) fn gather(&self, object: &Object, range: &Range<u64>, arrived: &Arrived) -> Option<ObjectBytes> {
        if missing(object, range, arrived).next().is_some() {
            return None;
        }
        let bytes = assemble(object, range, arrived, Trust::Bits)?;
        // While an object is being published its partial file may turn out to differ from its name, and be emptied concurrently.
        // Checked after reading, because the publisher sets the mark before it empties the file.
        if self.in_doubt(object) { assemble(object, range, arrived, Trust::Digests) } else { Some(bytes) }
    }
}

/// The chunks of the read that are not available.
pub(crate) fn missing<'a>(
    object: &'a Object,
    range: &Range<u64>,
    arrived: &'a Arrived,
) -> impl Iterator<Item = Numbered> + 'a {
    let wanted = move |numbered: &Numbered| !arrived.contains_key(&numbered.0) && !object.has(numbered);
    object.chunks_of(range.clone()).filter(wanted)
}

/// Exactly the bytes of the read.
fn assemble(object: &Object, range: &Range<u64>, arrived: &Arrived, trust: Trust) -> Option<ObjectBytes> {
    let length = usize::try_from(range.end - range.start).ok()?;
    let mut chunks = object.chunks_of(range.clone()).peekable();
    // Most reads are inside one chunk: no copy then.
    if let Some((number, chunk)) = chunks.peek()
        && let Some(bytes) = arrived.get(number)
        && range.end <= chunk.object_offset.saturating_add(chunk.size)
    {
        return ObjectBytes::of_chunk(bytes, usize::try_from(range.start - chunk.object_offset).ok()?, length);
    }
    let mut assembly = Assembly::new(range.start, length);
    for numbered in chunks {
        match arrived.get(&numbered.0) {
            Some(bytes) => assembly.fill(numbered.1.object_offset, bytes),
            None => object.fill(&mut assembly, &numbered, trust).then_some(())?,
        }
    }
    Some(assembly.finish())
}
