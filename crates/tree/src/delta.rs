//! The changes that a layer makes to the layers below it, as a directory for overlayfs to put on top of theirs.
//!
//! It is computed from two merged trees, without the layer and with it, and not from the layer's entries: attributes of directories
//! that the layer implies come from below, and removing a missing name has no effect. So by construction it turns the one tree into
//! the other. Every entry of the layer is in it, even where it equals the one before.
//!
//! A removed name is a whiteout, the character device 0:0. A whiteout is made only where the layers below show the name: overlayfs
//! hides whiteouts in directories that several layers have, and lists them in others. For the same reason an emptied directory is
//! opaque and has no whiteouts.

use tarpon_layer::LayerIndex;

use crate::tree::{Component, Dentry, DentryId, Inode, Tree, count_subdirectories};
use crate::{Kind, objects};

/// The difference between `below`, the merge of some of the lowest `layers`, and `merged`, the merge of one more of them. It always
/// has the root, with its attributes in `merged`.
pub fn delta<'a>(layers: &'a [LayerIndex], below: &Tree<'a>, merged: &Tree<'a>) -> Tree<'a> {
    let twins = Twins::new(below, merged);
    let emitted = twins.emitted();
    let mut builder =
        Builder { twins, emitted, dentries: Vec::new(), inodes: Vec::new(), numbers: Vec::new(), whiteout: None };
    builder.numbers = vec![None; merged.inodes.len()];
    builder.walk();
    let Builder { dentries, mut inodes, .. } = builder;
    count_subdirectories(&dentries, &mut inodes);
    let objects = objects::representatives(layers, &inodes);
    let objects = objects.unwrap_or_else(|_| unreachable!("all of them are in one merged tree, which was checked"));
    Tree { dentries, inodes, objects, dropped_xattrs: 0 }
}

/// Maps the names of the merged tree to those of the tree below.
struct Twins<'t, 'a> {
    below: &'t Tree<'a>,
    merged: &'t Tree<'a>,
    /// By name of the merged tree: the same path below, unless an opaque directory is between.
    twin: Vec<Option<DentryId>>,
    opaque: Vec<bool>,
    /// Removed names of each directory.
    gone: Vec<Vec<DentryId>>,
}

impl<'t, 'a> Twins<'t, 'a> {
    fn new(below: &'t Tree<'a>, merged: &'t Tree<'a>) -> Self {
        let count = merged.dentries.len();
        let mut twins =
            Self { below, merged, twin: vec![None; count], opaque: vec![false; count], gone: vec![Vec::new(); count] };
        twins.twin[0] = Some(below.root());
        // In pre-order: a directory's twin is known before those of its names are looked for.
        merged.walk().for_each(|directory| twins.pair(directory, &mut |_| {}));
        let shares = twins.shares();
        for directory in merged.walk() {
            // Overlayfs does not accept an opaque root.
            let is_opaque = directory != merged.root()
                && twins.has_names_below(directory)
                && !merged.children(directory).any(|at| shares[at.index()]);
            if is_opaque {
                twins.hide_below(directory);
            } else {
                let mut gone = Vec::new();
                twins.pair(directory, &mut |there| gone.push(there));
                twins.gone[directory.index()] = gone;
            }
        }
        twins
    }

    /// The directory below that `directory` is merged with.
    fn merges_with(&self, directory: DentryId) -> Option<DentryId> {
        let is_directory = |tree: &Tree<'a>, at| tree.inode(at).kind() == Kind::Directory;
        let twin = self.twin[directory.index()].filter(|twin| is_directory(self.below, *twin));
        twin.filter(|_| is_directory(self.merged, directory))
    }

    fn has_names_below(&self, directory: DentryId) -> bool {
        self.merges_with(directory).is_some_and(|twin| self.below.children(twin).next().is_some())
    }

    /// Finds the twins of the names in `directory`, and reports the names below without one. Both lists ascend.
    fn pair(&mut self, directory: DentryId, gone: &mut dyn FnMut(DentryId)) {
        let Some(twin) = self.merges_with(directory) else { return };
        let (below, merged) = (self.below, self.merged);
        let mut here = merged.children(directory).peekable();
        for there in below.children(twin) {
            let name = below.name(there);
            while here.next_if(|at| merged.name(*at) < name).is_some() {}
            match here.next_if(|at| merged.name(*at) == name) {
                Some(at) => self.twin[at.index()] = Some(there),
                None => gone(there),
            }
        }
    }

    /// Whether the name has the same inode as below. Entries are compared by address: both trees borrow them.
    fn is_same(&self, at: DentryId) -> bool {
        let entry = self.merged.inode(at).entry;
        self.twin[at.index()].is_some_and(|twin| match (self.below.inode(twin).entry, entry) {
            (None, None) => true,
            (Some(was), Some(is)) => std::ptr::eq(was, is),
            _ => false,
        })
    }

    /// For each name, whether anything of the layers below is visible at it or below it.
    fn shares(&self) -> Vec<bool> {
        let mut shares: Vec<bool> = self.merged.walk().map(|at| self.is_same(at)).collect();
        for at in (1..shares.len()).rev() {
            shares[self.merged.dentries[at].parent as usize] |= shares[at];
        }
        shares
    }

    /// Makes a directory opaque. Its content has no twins any more.
    fn hide_below(&mut self, directory: DentryId) {
        self.opaque[directory.index()] = true;
        let end = self.merged.dentries[directory.index()].end as usize;
        self.twin[directory.index() + 1..end].fill(None);
    }

    /// For each name, whether it is in the difference: itself, or because of its content.
    fn emitted(&self) -> Vec<bool> {
        let is_changed =
            |at: DentryId| !self.is_same(at) || self.opaque[at.index()] || !self.gone[at.index()].is_empty();
        let mut emitted: Vec<bool> = self.merged.walk().map(is_changed).collect();
        emitted[0] = true;
        for at in (1..emitted.len()).rev() {
            emitted[self.merged.dentries[at].parent as usize] |= emitted[at];
        }
        emitted
    }
}

/// A name in a directory of the difference.
#[derive(Clone, Copy)]
enum Child {
    /// Of the merged tree.
    Kept(DentryId),
    /// Of the tree below.
    Gone(DentryId),
}

struct Builder<'t, 'a> {
    twins: Twins<'t, 'a>,
    emitted: Vec<bool>,
    dentries: Vec<Dentry<'a>>,
    inodes: Vec<Inode<'a>>,
    /// By inode number of the merged tree.
    numbers: Vec<Option<u32>>,
    /// All whiteouts are one inode.
    whiteout: Option<u32>,
}

impl<'a> Builder<'_, 'a> {
    fn walk(&mut self) {
        let root = self.twins.merged.root();
        self.add(0, Child::Kept(root));
        // Directories on the path of the walk, at most as many as paths are deep.
        let mut open = vec![(0, self.children(root).into_iter())];
        while let Some((parent, children)) = open.last_mut() {
            let parent = *parent;
            let Some(child) = children.next() else {
                self.dentries[parent as usize].end = number(self.dentries.len());
                open.pop();
                continue;
            };
            match child {
                Child::Gone(_) => drop(self.add(parent, child)),
                Child::Kept(at) => {
                    let number = self.add(parent, child);
                    open.push((number, self.children(at).into_iter()));
                }
            }
        }
    }

    fn children(&self, directory: DentryId) -> Vec<Child> {
        let merged = self.twins.merged;
        let kept = merged.children(directory).filter(|at| self.emitted[at.index()]).map(Child::Kept);
        let gone = self.twins.gone[directory.index()].iter().map(|there| Child::Gone(*there));
        let mut children: Vec<Child> = kept.chain(gone).collect();
        children.sort_by_key(|child| self.name(*child).as_bytes());
        children
    }

    fn name(&self, child: Child) -> Component<'a> {
        match child {
            Child::Kept(at) => self.twins.merged.component(at),
            Child::Gone(there) => self.twins.below.component(there),
        }
    }

    /// Adds a name, with its inode if that is new. Returns the number of the name.
    fn add(&mut self, parent: u32, child: Child) -> u32 {
        let known = match child {
            Child::Kept(at) => &mut self.numbers[self.twins.merged.inode_number(at)],
            Child::Gone(_) => &mut self.whiteout,
        };
        let inode = *known.get_or_insert_with(|| {
            self.inodes.push(match child {
                Child::Kept(at) => {
                    Inode { links: 0, opaque: self.twins.opaque[at.index()], ..*self.twins.merged.inode(at) }
                }
                Child::Gone(_) => Inode::whiteout(),
            });
            number(self.inodes.len() - 1)
        });
        self.inodes[inode as usize].links += 1;
        let at = number(self.dentries.len());
        self.dentries.push(Dentry::new(self.name(child), parent, at + 1, inode));
        at
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("no more names than in two trees, whose numbers are checked")
}
