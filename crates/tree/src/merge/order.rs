//! All entries of all layers in one order: by path, parents before children, then from the top layer down.
//!
//! Invariant: everything below a path follows it without a gap, and siblings ascend by bytes. Byte order alone is not sufficient:
//! `a-b` sorts between `a` and `a/b`.

use std::cmp::{Ordering, Reverse};
use std::ops::Range;

use tarpon_layer::{Entry, LayerIndex};

/// An entry and its layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed<'a> {
    pub(super) entry: &'a Entry,
    pub(super) layer: u32,
}

impl<'a> Placed<'a> {
    pub(super) fn path(&self) -> &'a [u8] {
        self.entry.path.as_bytes()
    }
}

/// The entries of all layers, sorted.
pub(super) struct Ordered<'a>(Vec<Placed<'a>>);

impl<'a> Ordered<'a> {
    pub(super) fn new(layers: &'a [LayerIndex]) -> Self {
        let with_layer =
            |(layer, index): (u32, &'a LayerIndex)| index.entries.iter().map(move |entry| Placed { entry, layer });
        let mut all: Vec<_> = (0..).zip(layers).flat_map(with_layer).collect();
        // Stable, because it is faster on the sorted runs that layers mostly are.
        all.sort_by(|a, b| by_path(a.path(), b.path()).then_with(|| Reverse(a.layer).cmp(&Reverse(b.layer))));
        Self(all)
    }

    /// Those of the entries for which this holds, by position and entry.
    pub(super) fn filtered(&self, keep: impl Fn(usize, &Placed<'a>) -> bool) -> Self {
        let entries = self.0.iter().enumerate().filter(|(position, placed)| keep(*position, placed));
        Self(entries.map(|(_, placed)| *placed).collect())
    }

    pub(super) fn all(&self) -> &[Placed<'a>] {
        &self.0
    }

    /// Runs of entries of one path, each from the top layer down, with the position of the first.
    pub(super) fn groups(&self) -> impl Iterator<Item = (usize, &[Placed<'a>])> {
        let groups = self.0.chunk_by(|a, b| a.path() == b.path());
        groups.scan(0, |next, group| {
            let first = *next;
            *next += group.len();
            Some((first, group))
        })
    }

    /// The positions of the entries of one path. Empty if there are none.
    pub(super) fn of_path(&self, path: &[u8]) -> Range<usize> {
        let first = self.0.partition_point(|placed| by_path(placed.path(), path) == Ordering::Less);
        let count = self.0[first..].iter().take_while(|placed| placed.path() == path).count();
        first..first + count
    }
}

/// A path and its ancestors, the root first.
pub(super) fn with_ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(slash, _)| slash);
    let ends = std::iter::once(0).chain(slashes).chain((!path.is_empty()).then_some(path.len()));
    ends.map(|end| &path[..end])
}

/// Pre-order of paths: a parent, then everything below it, then its next sibling.
pub(super) fn by_path(a: &[u8], b: &[u8]) -> Ordering {
    let common = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    // The end of a path comes before a slash, a slash before any other byte.
    let rank = |path: &[u8]| match path.get(common) {
        None => 0,
        Some(b'/') => 1,
        Some(byte) => 2 + u16::from(*byte),
    };
    rank(a).cmp(&rank(b))
}

/// Whether `path` is below `ancestor`.
pub(super) fn is_below(path: &[u8], ancestor: &[u8]) -> bool {
    ancestor.is_empty() && !path.is_empty()
        || path.len() > ancestor.len() && path.starts_with(ancestor) && path[ancestor.len()] == b'/'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_path_follows_it_without_a_gap() {
        let mut paths = ["a-b", "b", "a/b/c", "", "a\u{1}", "a/b", "a", "a/b-c", "a.d/x"].map(str::as_bytes);
        paths.sort_by(|a, b| by_path(a, b));
        assert_eq!(paths, ["", "a", "a/b", "a/b/c", "a/b-c", "a\u{1}", "a-b", "a.d/x", "b"].map(str::as_bytes));
    }

    #[test]
    fn ancestors_begin_with_the_root_and_end_with_the_path() {
        let of = |path: &'static str| with_ancestors(path.as_bytes()).collect::<Vec<_>>();
        assert_eq!(of("a/b/c"), ["", "a", "a/b", "a/b/c"].map(str::as_bytes));
        assert_eq!(of(""), [b""]);
    }

    #[test]
    fn only_whole_components_count_as_ancestors() {
        assert!(is_below(b"a/b", b"a") && is_below(b"a", b""));
        assert!(!is_below(b"ab", b"a") && !is_below(b"a", b"a") && !is_below(b"", b""));
    }
}
