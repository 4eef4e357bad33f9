//! Hides the directories of objects from the users of an image, on kernels whose overlayfs has no data-only lower layers.
//!
//! There the directories of objects are ordinary lower layers: a redirect finds an object in them, and so would a user who looks up
//! `/ab` in the image. A whiteout in the root of the uppermost layer hides the name and ends the lookup; the lookup of a redirect begins
//! below it. A directory of the image with such a name is opaque for the same reason. composefs arranges its layers like this
//! (`mkcomposefs`, format 1).

use std::sync::LazyLock;

use tarpon_layer::LayerPath;

use crate::Kind;
use crate::tree::{Component, Dentry, DentryId, Inode, Tree};

/// The names in a directory of objects, ascending by bytes.
static DIRECTORIES: LazyLock<[LayerPath; 256]> = LazyLock::new(|| {
    let digit = |value: usize| b"0123456789abcdef"[value];
    std::array::from_fn(|number| {
        LayerPath::from_normal(&[digit(number / 16), digit(number % 16)]).expect("two digits are a path")
    })
});

/// The tree with a whiteout, or an opaque directory, for each directory of objects.
pub(crate) fn hide_objects<'a>(tree: &Tree<'a>) -> Tree<'a> {
    let mut hiding = Hiding { tree, dentries: Vec::new(), inodes: Vec::new(), numbers: Vec::new(), whiteout: None };
    hiding.numbers = vec![None; tree.inodes.len()];
    hiding.copy(tree.root()..DentryId(1), 0);
    let mut directories = DIRECTORIES.iter().peekable();
    for child in tree.children(tree.root()) {
        while let Some(name) = directories.next_if(|name| name.as_bytes() < tree.name(child)) {
            hiding.add_whiteout(name);
        }
        let is_opaque = directories.next_if(|name| name.as_bytes() == tree.name(child)).is_some()
            && tree.inode(child).kind() == Kind::Directory;
        let start = hiding.dentries.len();
        hiding.copy(child..DentryId(tree.dentries[child.index()].end), start);
        if is_opaque {
            let number = hiding.dentries[start].inode as usize;
            hiding.inodes[number].opaque = true;
        }
    }
    directories.for_each(|name| hiding.add_whiteout(name));
    hiding.finish()
}

struct Hiding<'t, 'a> {
    tree: &'t Tree<'a>,
    dentries: Vec<Dentry<'a>>,
    inodes: Vec<Inode<'a>>,
    /// The new number of each inode, once it has a name.
    numbers: Vec<Option<u32>>,
    whiteout: Option<u32>,
}

impl<'a> Hiding<'_, 'a> {
    /// Appends names with everything below the first of them, which is a child of the root, at `start`.
    fn copy(&mut self, names: std::ops::Range<DentryId>, start: usize) {
        let moved = |position: u32| position - names.start.0 + position_of(start);
        for old in names.start.index()..names.end.index() {
            let dentry = self.tree.dentries[old];
            let Dentry { parent, end, inode, .. } = dentry;
            let parent = if parent == 0 { 0 } else { moved(parent) };
            let inode = match self.numbers[inode as usize] {
                Some(number) => number,
                None => {
                    let number = self.add_inode(self.tree.inodes[inode as usize]);
                    self.numbers[inode as usize] = Some(number);
                    number
                }
            };
            self.dentries.push(Dentry::new(dentry.name(), parent, moved(end), inode));
        }
    }

    /// Appends a whiteout in the root. All of them are one inode.
    fn add_whiteout(&mut self, name: &'static LayerPath) {
        let inode = match self.whiteout {
            Some(inode) => inode,
            None => self.add_inode(Inode::whiteout()),
        };
        self.whiteout = Some(inode);
        self.inodes[inode as usize].links += 1;
        let end = position_of(self.dentries.len() + 1);
        let name = Component::last_of(name, name.as_bytes().len());
        self.dentries.push(Dentry::new(name, 0, end, inode));
    }

    fn add_inode(&mut self, inode: Inode<'a>) -> u32 {
        let number = position_of(self.inodes.len());
        self.inodes.push(inode);
        number
    }

    fn finish(mut self) -> Tree<'a> {
        self.dentries[0].end = position_of(self.dentries.len());
        let moved = |number: &usize| self.numbers[*number].map(|number| number as usize);
        let objects = self.tree.objects.iter().filter_map(moved).collect();
        Tree { dentries: self.dentries, inodes: self.inodes, objects, dropped_xattrs: self.tree.dropped_xattrs }
    }
}

fn position_of(index: usize) -> u32 {
    u32::try_from(index).expect("the names of a tree are limited, and these are 256 more")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tarpon_testkit::entries::{dir, file, layer};

    use super::*;
    use crate::merge;

    fn visible(tree: &Tree<'_>) -> Vec<String> {
        tree.dump().lines().filter(|line| !line.contains(" c")).map(str::to_owned).collect()
    }

    #[test]
    fn every_directory_of_objects_is_hidden_and_nothing_else_changes() {
        let layers = [layer([
            dir("00"),
            file("00/inside", "1"),
            file("7f", "a file has the name"),
            dir("etc"),
            file("etc/hosts", "2"),
            dir("zz"),
        ])];
        let tree = merge(&layers).unwrap();
        let hidden = hide_objects(&tree);
        for name in DIRECTORIES.iter().map(LayerPath::as_bytes) {
            let found = hidden.lookup(name).unwrap();
            let (inode, is_opaque) = (hidden.inode(found), name == b"00");
            assert_eq!(inode.is_opaque(), is_opaque, "{name:?}");
            let kind = if is_opaque {
                Kind::Directory
            } else if name == b"7f" {
                Kind::File
            } else {
                Kind::CharDevice
            };
            assert_eq!(inode.kind(), kind, "{name:?}");
        }
        assert_eq!(hidden.inode(hidden.lookup(b"ff").unwrap()).links(), 254);
        for path in [&b"00/inside"[..], b"7f", b"etc/hosts", b"zz"] {
            let found = hidden.lookup(path).unwrap();
            assert_eq!(hidden.path(found), path);
            assert_eq!(hidden.inode(found).object(), tree.inode(tree.lookup(path).unwrap()).object());
        }
        assert_eq!(hidden.objects().collect::<Vec<_>>(), tree.objects().collect::<Vec<_>>());
        assert_eq!(hidden.walk().len(), tree.walk().len() + 254);
        assert!(visible(&tree).iter().all(|line| visible(&hidden).contains(line)));
    }
}
