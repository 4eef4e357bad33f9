//! The store keeps under a name only what has it.

use tarpon_oci::Digest;
use tarpon_testkit::source::MemoryStore;

use crate::contents::Contents;

/// Complete objects are those that they are named after. What was written of partial ones is right, or what the hostile image states.
/// `partials`: only the fetcher wrote to these.
pub(crate) fn is_right(contents: &Contents, store: &MemoryStore, partials: bool, seed: u64) {
    let content = |name: &Digest| contents.objects.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes);
    for (name, bytes) in store.objects() {
        // A lie that is one chunk is named after itself.
        let is_right = content(&name).is_some_and(|content| **content == *bytes) || Digest::of(&bytes) == name;
        // A damaged one is found when it is hashed.
        assert!(is_right || !store.is_checked(&name), "seed {seed}: the store keeps wrong bytes as {name}");
    }
    for (name, bytes, written) in store.partials().iter().filter(|_| partials) {
        let agrees = |content: &Vec<u8>| {
            content.len() == bytes.len()
                && bytes.iter().zip(content).zip(written).all(|((byte, right), written)| !written || byte == right)
        };
        let is_right = content(name).is_some_and(agrees) || contents.lies.get(name).is_some_and(agrees);
        assert!(is_right, "seed {seed}: the store keeps wrong bytes of a part of {name}");
    }
}
