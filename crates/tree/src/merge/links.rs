//! Resolves the inode of each visible name.
//!
//! Invariant: after this, a hard link and its target share one inode, whatever the length of the chain between them, and no
//! [`Node::HardLink`] is left. Every link of every layer is followed, even if it is hidden, so that the refusal of an image does
//! not depend on upper layers.

use std::collections::HashMap;

use tarpon_layer::{LayerPath, Node};

use super::order::{Ordered, Placed, is_below, with_ancestors};
use super::visible::{Name, decide, is_entry, problem_at};
use super::{MergeError, Problem};
use crate::tree::{Dentry, Inode};

/// Resolves all hard links and numbers the inodes in the order of their first names. Directories are not counted yet.
pub(super) fn number<'a>(
    ordered: &Ordered<'a>,
    names: Vec<Name<'a>>,
) -> Result<(Vec<Dentry<'a>>, Vec<Inode<'a>>), MergeError> {
    let has_links = ordered.all().iter().any(|placed| matches!(placed.entry.node, Node::HardLink(_)));
    // Without hard links each name has an inode of its own.
    let tracked = if has_links { ordered.all().len() } else { 0 };
    let mut resolver = Resolver { ordered, states: vec![State::Unknown; tracked], covers: HashMap::new() };
    for (position, placed) in ordered.all().iter().enumerate() {
        if matches!(placed.entry.node, Node::HardLink(_)) {
            resolver.resolve(position)?;
        }
    }
    let mut inodes: Vec<Inode<'a>> = Vec::new();
    let mut numbers: Vec<Option<u32>> = vec![None; tracked];
    let mut dentry = |name: Name<'a>| {
        let origin = name.inode.map(|source| resolver.resolve(source.position())).transpose()?;
        let mut add = || {
            inodes.push(inode_of(origin.map(|position| &ordered.all()[position])));
            u32::try_from(inodes.len() - 1).expect("no more inodes than names, whose number is checked")
        };
        let inode = match origin.and_then(|position| numbers.get_mut(position)) {
            Some(number) => *number.get_or_insert_with(add),
            None => add(),
        };
        inodes[inode as usize].links += 1;
        Ok(Dentry::new(name.name(), name.parent, name.end, inode))
    };
    // In place: a dentry is as large as a name.
    let dentries = names.into_iter().map(&mut dentry).collect::<Result<_, MergeError>>()?;
    Ok((dentries, inodes))
}

/// An inode without names. `None`: of an implied directory.
fn inode_of<'a>(placed: Option<&Placed<'a>>) -> Inode<'a> {
    let layer = placed.map_or(0, |placed| placed.layer);
    Inode {
        entry: placed.map(|placed| placed.entry),
        links: 0,
        layer: u16::try_from(layer).expect("layers are limited"),
        opaque: false,
    }
}

#[derive(Clone, Copy)]
enum State {
    Unknown,
    InChain,
    Resolved(usize),
}

struct Resolver<'o, 'a> {
    ordered: &'o Ordered<'a>,
    states: Vec<State>,
    /// Cache of [`covering_layer`] for targets, by position.
    covers: HashMap<usize, Option<u32>>,
}

impl<'a> Resolver<'_, 'a> {
    /// The position of the entry that is the inode of the entry at `start`: itself, unless that is a hard link.
    fn resolve(&mut self, start: usize) -> Result<usize, MergeError> {
        let mut chain = Vec::new();
        let mut position = start;
        let origin = loop {
            let placed = self.ordered.all()[position];
            let Node::HardLink(target) = &placed.entry.node else { break position };
            match self.states[position] {
                State::Resolved(origin) => break origin,
                State::InChain => return Err(problem_at(&placed, Problem::CyclicLink((**target).clone()))),
                State::Unknown => self.states[position] = State::InChain,
            }
            chain.push(position);
            position = self.target(&placed, target).map_err(|problem| problem_at(&placed, problem))?;
        };
        for link in chain {
            self.states[link] = State::Resolved(origin);
            let placed = self.ordered.all()[link];
            if let (Node::HardLink(target), Node::Directory) =
                (&placed.entry.node, &self.ordered.all()[origin].entry.node)
            {
                return Err(problem_at(&placed, Problem::LinkToDirectory((**target).clone())));
            }
        }
        Ok(origin)
    }

    /// The entry at a link's target path, as seen by the link's layer: one of that layer, or the visible one of the layers below.
    fn target(&mut self, link: &Placed<'a>, target: &LayerPath) -> Result<usize, Problem> {
        let dangling = || Problem::DanglingLink(target.clone());
        let path = target.as_bytes();
        // The root is above itself.
        let above = with_ancestors(path).filter(|ancestor| ancestor.is_empty() || ancestor.len() < path.len());
        let all = self.ordered.all();
        let floor = above.fold(0, |floor, ancestor| {
            let group = self.ordered.of_path(ancestor);
            decide(&all[group], floor, link.layer).floor_below
        });
        let group = self.ordered.of_path(path);
        let shown = decide(&all[group.clone()], floor, link.layer).shown.ok_or_else(dangling)?;
        let position = group.start + shown;
        // A layer in between with entries below the file turned it into a directory.
        let covered_by = *self.covers.entry(position).or_insert_with(|| covering_layer(all, position, group.end));
        let is_covered = covered_by.is_some_and(|layer| layer <= link.layer);
        if is_covered { Err(Problem::LinkToDirectory(target.clone())) } else { Ok(position) }
    }
}

/// The lowest layer above that of the entry at `position` that has an entry below its path.
fn covering_layer(all: &[Placed<'_>], position: usize, group_end: usize) -> Option<u32> {
    let placed = &all[position];
    let below = all[group_end..].iter().take_while(|other| is_below(other.path(), placed.path()));
    below.filter(|other| other.layer > placed.layer && is_entry(&other.entry.node)).map(|other| other.layer).min()
}
