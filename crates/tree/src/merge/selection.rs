//! The entries that decide what one layer changes.
//!
//! A layer with a few files touches a few directories, and the rest of the image need not be merged to compare it with those below.
//! Touched are the paths of its entries and all that are above them. Chosen are, of the layer and those below it:
//!
//! - the entries of touched paths, and of what is directly in touched directories;
//! - of what is deeper, for each name in a touched directory the first entry of each layer that is one: it implies the name. What is
//!   below a name that the layer does not touch is the same before and after;
//! - what hard links among these lead to, with the directories above, as if that was touched.

use std::cmp::Ordering;

use tarpon_layer::Node;

use super::layer_set::LayerSet;
use super::order::{Ordered, Placed, by_path, is_below, with_ancestors};
use super::visible::is_entry;

/// Times that links of chosen entries are followed. Links lead to files, and few to other links; with more, all entries are chosen.
const ROUNDS: usize = 4;
/// Part of the entries that a layer has, from which on none are selected.
const MOST: usize = 2;

/// For each entry, whether it has a part in the changes of a layer. None: selecting saves nothing.
pub(super) fn choose(ordered: &Ordered<'_>, layer: u32) -> Option<Vec<bool>> {
    let all = ordered.all();
    let count = |is: &dyn Fn(u32) -> bool| all.iter().filter(|placed| is(placed.layer)).count();
    if count(&|other| other == layer) * MOST >= count(&|other| other <= layer) {
        return None;
    }
    let mut touched: Vec<&[u8]> = vec![b""];
    for placed in all.iter().filter(|placed| placed.layer == layer) {
        touched.extend(with_ancestors(placed.path()));
    }
    for _ in 0..ROUNDS {
        touched.sort_by(|a, b| by_path(a, b));
        touched.dedup();
        let chosen = inside(all, layer, &touched);
        let targets = all.iter().zip(&chosen).filter(|(_, chosen)| **chosen).filter_map(|(placed, _)| target(placed));
        let is_known = |path: &[u8]| touched.binary_search_by(|other| by_path(other, path)).is_ok();
        let missing: Vec<&[u8]> = targets.flat_map(with_ancestors).filter(|path| !is_known(path)).collect();
        if missing.is_empty() {
            return Some(chosen);
        }
        touched.extend(missing);
    }
    None
}

fn target<'a>(placed: &Placed<'a>) -> Option<&'a [u8]> {
    match &placed.entry.node {
        Node::HardLink(target) => Some(target.as_bytes()),
        _ => None,
    }
}

/// The entries of touched paths, which are sorted, of what is directly in them, and those that imply names there.
fn inside<'a>(all: &[Placed<'a>], layer: u32, touched: &[&'a [u8]]) -> Vec<bool> {
    let mut next = touched.iter().copied().peekable();
    // The touched paths around an entry.
    let mut open: Vec<&'a [u8]> = Vec::new();
    let (mut name, mut implied_by): (&'a [u8], LayerSet) = (b"", LayerSet::default());
    let choose = |placed: &Placed<'a>| {
        if placed.layer > layer {
            return false;
        }
        let path = placed.path();
        while let Some(directory) = next.next_if(|directory| by_path(directory, path) != Ordering::Greater) {
            open.push(directory);
        }
        while open.pop_if(|directory| *directory != path && !is_below(path, directory)).is_some() {}
        let Some(directory) = open.last().filter(|directory| **directory != path) else { return true };
        let start = if directory.is_empty() { 0 } else { directory.len() + 1 };
        let Some(length) = path[start..].iter().position(|byte| *byte == b'/') else { return true };
        let here = &path[..start + length];
        if here != name {
            (name, implied_by) = (here, LayerSet::default());
        }
        let is_first = is_entry(&placed.entry.node) && !implied_by.contains(placed.layer);
        if is_first {
            implied_by.insert(placed.layer);
        }
        is_first
    };
    all.iter().map(choose).collect()
}
