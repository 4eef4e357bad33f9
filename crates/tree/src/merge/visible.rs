//! Determines the visible entry of each path.
//!
//! Every path has a *floor*: the lowest layer that is visible there. It rises on the way down the tree, by whiteouts, opaque
//! markers and non-directories, and never falls.

use std::num::NonZeroU32;
use std::sync::LazyLock;

use tarpon_layer::{LayerPath, Node};
use tarpon_oci::limits;

use super::layer_set::LayerSet;
use super::order::{Ordered, Placed, is_below};
use super::{MergeError, Problem};
use crate::tree::{Component, Dentry};

/// The result of the layers for one path.
pub(super) struct Verdict {
    /// Position in the group of the visible entry. None if there is none.
    pub(super) shown: Option<usize>,
    /// The lowest visible layer at the path.
    pub(super) floor: u32,
    /// The lowest visible layer below the path.
    pub(super) floor_below: u32,
}

/// Decides a group of entries of one path, from the top layer down. Layers outside of `floor..=ceiling` are ignored.
pub(super) fn decide(group: &[Placed<'_>], floor: u32, ceiling: u32) -> Verdict {
    let topmost = |is: fn(&Node) -> bool| {
        group.iter().find(|placed| placed.layer <= ceiling && is(&placed.entry.node)).map(|placed| placed.layer)
    };
    let floor = floor.max(topmost(|node| matches!(node, Node::Whiteout)).unwrap_or(0));
    let opaque = topmost(|node| matches!(node, Node::Opaque)).unwrap_or(0);
    let above_leaf = topmost(is_leaf).map_or(0, |layer| layer + 1);
    let shows = |placed: &Placed<'_>| (floor..=ceiling).contains(&placed.layer) && is_entry(&placed.entry.node);
    Verdict { shown: group.iter().position(shows), floor, floor_below: floor.max(opaque).max(above_leaf) }
}

/// Whether the node exists, rather than removing something below.
pub(super) fn is_entry(node: &Node) -> bool {
    !matches!(node, Node::Whiteout | Node::Opaque)
}

fn is_leaf(node: &Node) -> bool {
    is_entry(node) && !matches!(node, Node::Directory)
}

/// A visible name, with the visible entry. None for an implied directory.
pub(super) type Name<'a> = Dentry<'a, Option<Source>>;

static ROOT: LazyLock<LayerPath> = LazyLock::new(LayerPath::root);

/// The position of an entry in [`Ordered`], in 32 bits, which `None` does not enlarge.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source(NonZeroU32);

impl Source {
    fn at(position: usize) -> Result<Self, MergeError> {
        let number = u32::try_from(position + 1).ok().and_then(NonZeroU32::new);
        number.map(Self).ok_or(MergeError::TooManyEntries)
    }

    pub(super) fn position(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The visible names in pre-order, the root first.
pub(super) fn walk<'a>(ordered: &Ordered<'a>) -> Result<Vec<Name<'a>>, MergeError> {
    let mut walk = Walk { names: Vec::with_capacity(ordered.all().len() + 1), open: Vec::new() };
    walk.open.push(Frame {
        of: &ROOT,
        path: b"",
        name: None,
        leaf: None,
        floor: 0,
        floor_below: 0,
        leaves: LayerSet::default(),
    });
    walk.show_innermost(None)?;
    for (first, group) in ordered.groups() {
        walk.visit(first, group)?;
    }
    walk.close_until(|_| false);
    Ok(walk.names)
}

/// A path that the walk is in or below.
struct Frame<'a> {
    /// A path that begins with it.
    of: &'a LayerPath,
    path: &'a [u8],
    /// Its number, once it is known to be visible.
    name: Option<u32>,
    /// The layer of its visible entry, if that is not a directory.
    leaf: Option<u32>,
    /// The lowest visible layer at it.
    floor: u32,
    /// The lowest visible layer below it.
    floor_below: u32,
    /// Layers that list it or a parent as anything other than a directory.
    leaves: LayerSet,
}

struct Walk<'a> {
    names: Vec<Name<'a>>,
    /// From the root down; at most [`limits::PATH_DEPTH`] and the root, because paths are no deeper.
    open: Vec<Frame<'a>>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, first: usize, group: &[Placed<'a>]) -> Result<(), MergeError> {
        let path = group[0].path();
        if !path.is_empty() {
            self.close_until(|ancestor| is_below(path, ancestor));
            self.open_down_to(&group[0].entry.path);
        }
        self.check(group)?;
        if let Some(topmost) = group.iter().find(|placed| is_entry(&placed.entry.node)) {
            self.imply_parents(topmost.layer)?;
        }
        let frame = self.open.last_mut().expect("the root, or what open_down_to opened");
        let verdict = decide(group, frame.floor, u32::MAX);
        (frame.floor, frame.floor_below) = (verdict.floor, verdict.floor_below);
        for placed in group.iter().filter(|placed| is_leaf(&placed.entry.node)) {
            frame.leaves.insert(placed.layer);
        }
        let Some(position) = verdict.shown else { return Ok(()) };
        frame.leaf = Some(group[position].layer).filter(|_| is_leaf(&group[position].entry.node));
        self.show_innermost(Some(Source::at(first + position)?))
    }

    /// Refuses entries that are invalid in any single layer.
    fn check(&self, group: &[Placed<'_>]) -> Result<(), MergeError> {
        let leaves = self.open.last().map(|frame| frame.leaves).unwrap_or_default();
        let mut entries = group.iter().filter(|placed| is_entry(&placed.entry.node)).peekable();
        while let Some(placed) = entries.next() {
            let wrong = |problem| Err(problem_at(placed, problem));
            if leaves.contains(placed.layer) {
                return wrong(Problem::ParentNotDirectory);
            }
            if entries.peek().is_some_and(|next| next.layer == placed.layer) {
                return wrong(Problem::Duplicate);
            }
        }
        Ok(())
    }

    /// Marks the parents of the innermost path as directories: `layer` has an entry there, so they were directories when that layer
    /// was applied, and still are where the layer is visible. They stay when a layer above removes the entry itself.
    fn imply_parents(&mut self, layer: u32) -> Result<(), MergeError> {
        for depth in 0..self.open.len() - 1 {
            let frame = &mut self.open[depth];
            if frame.floor > layer {
                break;
            }
            match (frame.name, frame.leaf) {
                (Some(name), Some(leaf)) if leaf < layer => {
                    self.names[name as usize].inode = None;
                    frame.leaf = None;
                }
                (Some(_), _) => {}
                (None, _) => self.show(depth, None)?,
            }
        }
        Ok(())
    }

    fn show_innermost(&mut self, source: Option<Source>) -> Result<(), MergeError> {
        self.show(self.open.len() - 1, source)
    }

    /// Makes the open path at `depth` visible. Everything above it is. The root is visible before its entry is read.
    fn show(&mut self, depth: usize, source: Option<Source>) -> Result<(), MergeError> {
        if let Some(name) = self.open[depth].name {
            self.names[name as usize].inode = source;
            return Ok(());
        }
        if self.names.len() >= limits::IMAGE_ENTRIES {
            return Err(MergeError::TooManyEntries);
        }
        let number = u32::try_from(self.names.len()).map_err(|_| MergeError::TooManyEntries)?;
        let parent = depth.checked_sub(1).and_then(|above| self.open[above].name).unwrap_or(0);
        let Frame { of, path, .. } = &self.open[depth];
        self.names.push(Name::new(Component::last_of(of, path.len()), parent, number, source));
        self.open[depth].name = Some(number);
        Ok(())
    }

    /// Opens the paths between the innermost open one and `path`, and `path` itself, which is not visible yet.
    fn open_down_to(&mut self, of: &'a LayerPath) {
        let path = of.as_bytes();
        let Some(&Frame { path: above, floor_below, leaves, .. }) = self.open.last() else { return };
        let mut end = above.len();
        while end < path.len() {
            let name_start = if end == 0 { 0 } else { end + 1 };
            let name_length = path[name_start..].iter().take_while(|byte| **byte != b'/').count();
            end = name_start + name_length;
            let (path, floor) = (&path[..end], floor_below);
            self.open.push(Frame { of, path, name: None, leaf: None, floor, floor_below, leaves });
        }
    }

    /// Closes open paths from the innermost up, as long as `keep` returns `false`.
    fn close_until(&mut self, keep: impl Fn(&[u8]) -> bool) {
        let names = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        while let Some(frame) = self.open.pop_if(|frame| !keep(frame.path)) {
            if let Some(name) = frame.name {
                self.names[name as usize].end = names;
            }
        }
    }
}

pub(super) fn problem_at(placed: &Placed<'_>, problem: Problem) -> MergeError {
    let path: LayerPath = placed.entry.path.clone();
    MergeError::Entry { layer: placed.layer as usize, path, problem }
}
