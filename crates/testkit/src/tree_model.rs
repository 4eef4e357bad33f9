//! The view of a stack of layers, computed naively: one layer after the other applied to a map of paths.
//!
//! It shares only the rules with `tarpon_tree::merge`, and is short enough to be verified by reading.

use std::collections::{BTreeMap, BTreeSet};

use tarpon_layer::{Attributes, Entry, LayerIndex, Node};
use tarpon_tree::{Kind, Line};

/// Paths by components, so that the map's order is the order of a walk.
type Path = Vec<Vec<u8>>;

#[derive(Clone)]
struct Inode {
    node: Node,
    attributes: Attributes,
}

#[derive(Default)]
struct Model {
    inodes: Vec<Inode>,
    names: BTreeMap<Path, usize>,
}

/// The dump of the merged layers, as [`tarpon_tree::Tree::dump`] returns it; `None` if some layer must be refused.
pub fn dump(layers: &[LayerIndex]) -> Option<String> {
    let mut model = Model::default();
    model.imply(&[]);
    for layer in layers {
        model.apply(layer)?;
    }
    Some(model.dump())
}

fn path_of(entry: &Entry) -> Path {
    entry.path.components().map(<[u8]>::to_vec).collect()
}

fn is_below(path: &[Vec<u8>], above: &[Vec<u8>]) -> bool {
    path.len() > above.len() && path.starts_with(above)
}

impl Model {
    fn apply(&mut self, layer: &LayerIndex) -> Option<()> {
        let is_entry = |entry: &&Entry| !matches!(entry.node, Node::Whiteout | Node::Opaque);
        let entries: Vec<(Path, &Entry)> =
            layer.entries.iter().filter(is_entry).map(|entry| (path_of(entry), entry)).collect();
        let mut seen = BTreeSet::new();
        for (path, entry) in &entries {
            let is_leaf = !matches!(entry.node, Node::Directory);
            let below_leaf = is_leaf && entries.iter().any(|(other, _)| is_below(other, path));
            if below_leaf || !seen.insert(path) || is_leaf && path.is_empty() {
                return None;
            }
        }
        for entry in &layer.entries {
            let at = path_of(entry);
            match entry.node {
                Node::Whiteout => self.names.retain(|path, _| *path != at && !is_below(path, &at)),
                Node::Opaque => self.names.retain(|path, _| !is_below(path, &at)),
                _ => {}
            }
        }
        for (path, entry) in &entries {
            let keeps = matches!(entry.node, Node::Directory) && self.is_directory(path);
            self.names.retain(|other, _| *other != *path && (keeps || !is_below(other, path)));
        }
        for (path, entry) in &entries {
            self.inodes.push(Inode { node: entry.node.clone(), attributes: (*entry.attributes).clone() });
            self.names.insert(path.clone(), self.inodes.len() - 1);
        }
        for (path, _) in &entries {
            (0..path.len()).for_each(|depth| self.imply(&path[..depth]));
        }
        self.resolve(&entries)
    }

    fn is_directory(&self, path: &[Vec<u8>]) -> bool {
        self.names.get(path).is_some_and(|inode| matches!(self.inodes[*inode].node, Node::Directory))
    }

    fn imply(&mut self, path: &[Vec<u8>]) {
        if !self.is_directory(path) {
            self.inodes
                .push(Inode { node: Node::Directory, attributes: Attributes { mode: 0o755, ..Default::default() } });
            self.names.insert(path.to_vec(), self.inodes.len() - 1);
        }
    }

    /// Replaces each link of a layer by its target's inode. A chain needs no more rounds than there are links.
    fn resolve(&mut self, entries: &[(Path, &Entry)]) -> Option<()> {
        let links: Vec<(&Path, Path)> = entries
            .iter()
            .filter_map(|(path, entry)| match &entry.node {
                Node::HardLink(target) => Some((path, target.components().map(<[u8]>::to_vec).collect())),
                _ => None,
            })
            .collect();
        for _ in &links {
            for (path, target) in &links {
                let inode = *self.names.get(target)?;
                self.names.insert((*path).clone(), inode);
            }
        }
        let node = |path: &Path| &self.inodes[self.names[path]].node;
        links.iter().all(|(path, _)| !matches!(node(path), Node::HardLink(_) | Node::Directory)).then_some(())
    }

    fn links(&self, path: &[Vec<u8>], inode: usize) -> u32 {
        let subdirectories = || {
            let is_child = |other: &Path| is_below(other, path) && other.len() == path.len() + 1;
            2 + self.names.keys().filter(|other| is_child(other) && self.is_directory(other)).count()
        };
        let names = || self.names.values().filter(|other| **other == inode).count();
        u32::try_from(if self.is_directory(path) { subdirectories() } else { names() }).expect("few names")
    }

    fn dump(&self) -> String {
        let mut first_names = BTreeMap::new();
        let mut text = String::new();
        for (path, number) in &self.names {
            let Inode { node, attributes } = &self.inodes[*number];
            let joined = path.join(&b'/');
            let same_as: Option<&Vec<u8>> = first_names.get(number);
            let (kind, size, target, device, object) = match node {
                Node::Directory => (Kind::Directory, 0, None, None, None),
                Node::File(content) => {
                    (Kind::File, content.size, None, None, (content.size > 0).then_some(content.object))
                }
                Node::Symlink(target) => (Kind::Symlink, target.len() as u64, Some(&***target), None, None),
                Node::CharDevice(device) => (Kind::CharDevice, 0, None, Some(*device), None),
                Node::BlockDevice(device) => (Kind::BlockDevice, 0, None, Some(*device), None),
                Node::Fifo => (Kind::Fifo, 0, None, None, None),
                Node::HardLink(_) | Node::Whiteout | Node::Opaque => unreachable!("resolved or refused"),
            };
            let line = Line {
                path: &joined,
                kind,
                mode: attributes.mode,
                uid: attributes.uid,
                gid: attributes.gid,
                size,
                mtime: attributes.mtime,
                links: self.links(path, *number),
                target,
                device,
                object,
                xattrs: attributes
                    .xattrs
                    .iter()
                    .filter(|xattr| matches!(kind, Kind::File | Kind::Directory) || !xattr.name.starts_with(b"user."))
                    .map(|xattr| (xattr.name.to_vec(), &*xattr.value))
                    .collect(),
                same_as: same_as.map(|first| &**first),
            };
            text += &format!("{line}\n");
            first_names.entry(number).or_insert(joined);
        }
        text
    }
}
