//! [`ImageFs`] and [`Reads`] compared with a trivial model: random small trees, up to 60 operations.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use proptest::prelude::*;
use tarpon_fs::{Attr, Errno, ImageFs, Kind, NodeId, Objects, Operations, Reads, Take};
use tarpon_oci::Digest;
use tarpon_testkit::entries::{Made, dir, fifo, file, layer, link, symlink};

#[derive(Debug, Clone)]
enum Sort {
    Directory,
    File(Vec<u8>),
    Symlink(String),
    Fifo,
    /// Another name of the last created file, if any.
    Again,
}

/// Position and content: the parent is the directory with this index, modulo their number.
#[derive(Debug, Clone)]
struct Planned {
    parent: usize,
    name: String,
    sort: Sort,
    xattr: Option<(String, Vec<u8>)>,
}

#[derive(Debug, Clone)]
enum Operation {
    Stat(usize),
    Lookup(usize, String),
    ReadLink(usize),
    List { node: usize, room: usize },
    Read { node: usize, offset: u64, length: u32, local: bool },
    Xattr(usize, String),
    XattrNames(usize),
}

/// A name of the model and its target. Hard links are names with the same content and the same `inode`.
#[derive(Debug, Clone)]
struct Node {
    path: String,
    sort: Sort,
    xattr: Option<(String, Vec<u8>)>,
    inode: usize,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]", "[a-d]{2}", "x{200}"]
}

fn sort() -> impl Strategy<Value = Sort> {
    prop_oneof![
        3 => Just(Sort::Directory),
        4 => prop::collection::vec(any::<u8>(), 0..6000).prop_map(Sort::File),
        1 => "[a-z/.]{1,80}".prop_map(Sort::Symlink),
        1 => Just(Sort::Fifo),
        1 => Just(Sort::Again),
    ]
}

fn planned() -> impl Strategy<Value = Planned> {
    let xattr = prop::option::weighted(0.3, ("user\\.[a-c]", prop::collection::vec(any::<u8>(), 0..40)));
    (any::<usize>(), name(), sort(), xattr).prop_map(|(parent, name, sort, xattr)| Planned {
        parent,
        name,
        sort,
        xattr,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let node = any::<usize>();
    prop_oneof![
        node.prop_map(Operation::Stat),
        (node, name()).prop_map(|(node, name)| Operation::Lookup(node, name)),
        node.prop_map(Operation::ReadLink),
        (node, 1_usize..9).prop_map(|(node, room)| Operation::List { node, room }),
        (node, 0_u64..7000, 0_u32..8000, any::<bool>()).prop_map(|(node, offset, length, local)| Operation::Read {
            node,
            offset,
            length,
            local
        }),
        (node, "user\\.[a-d]").prop_map(|(node, name)| Operation::Xattr(node, name)),
        node.prop_map(Operation::XattrNames),
    ]
}

/// The names that result from the plan: the root first, then in order.
fn build(plan: Vec<Planned>) -> Vec<Node> {
    let mut nodes = vec![Node { path: String::new(), sort: Sort::Directory, xattr: None, inode: 0 }];
    for Planned { parent, name, sort, xattr } in plan {
        let directories: Vec<_> = nodes.iter().filter(|node| matches!(node.sort, Sort::Directory)).collect();
        let parent = &directories[parent % directories.len()].path;
        let path = if parent.is_empty() { name } else { format!("{parent}/{name}") };
        if nodes.iter().any(|node| node.path == path) {
            continue;
        }
        let inode = nodes.len();
        let node = match sort {
            Sort::Again => match nodes.iter().rfind(|node| matches!(node.sort, Sort::File(_))) {
                Some(file) => Node { path, ..file.clone() },
                None => continue,
            },
            // Linux supports `user.*` on files and directories only, and so does the tree.
            sort @ (Sort::Symlink(_) | Sort::Fifo) => Node { path, sort, xattr: None, inode },
            sort => Node { path, sort, xattr, inode },
        };
        nodes.push(node);
    }
    nodes
}

fn entries(nodes: &[Node]) -> Vec<Made> {
    let mut first_names = BTreeMap::new();
    let mut made = Vec::new();
    for node in &nodes[1..] {
        let entry = match (first_names.get(&node.inode), &node.sort) {
            (Some(first), _) => {
                made.push(link(&node.path, first));
                continue;
            }
            (None, Sort::Directory) => dir(&node.path),
            (None, Sort::File(content)) => file(&node.path, content),
            (None, Sort::Symlink(target)) => symlink(&node.path, target),
            (None, Sort::Fifo | Sort::Again) => fifo(&node.path),
        };
        first_names.insert(node.inode, node.path.clone());
        made.push(match &node.xattr {
            Some((name, value)) => entry.xattr(name, value),
            None => entry,
        });
    }
    made
}

/// The contents; this read finds the local ones locally.
struct Memory {
    contents: BTreeMap<Digest, Bytes>,
    local: bool,
}

impl Memory {
    fn part(&self, object: &Digest, offset: u64, length: usize) -> Bytes {
        let start = usize::try_from(offset).unwrap();
        self.contents[object].slice(start..start + length)
    }
}

impl Objects for Memory {
    fn size(&self, object: &Digest) -> Option<u64> {
        self.contents.get(object).map(|bytes| bytes.len() as u64)
    }

    fn read_local(&self, object: &Digest, offset: u64, length: usize) -> Result<Option<Bytes>, Errno> {
        Ok(self.local.then(|| self.part(object, offset, length)))
    }

    fn read(&self, object: Digest, offset: u64, length: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
        let part = self.part(&object, offset, length);
        Box::pin(async move { Ok(part) })
    }

    fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
        None
    }
}

struct Both {
    nodes: Vec<Node>,
    files: ImageFs<Vec<u8>>,
    contents: BTreeMap<Digest, Bytes>,
    runtime: tokio::runtime::Runtime,
}

impl Both {
    fn new(nodes: Vec<Node>) -> Self {
        let layers = [layer(entries(&nodes))];
        let files = ImageFs::new(tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap())).unwrap();
        let contents = nodes.iter().filter_map(|node| match &node.sort {
            Sort::File(content) => Some((Digest::of(content), Bytes::from(content.clone()))),
            _ => None,
        });
        let contents = contents.collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self { nodes, files, contents, runtime }
    }

    fn pick(&self, number: usize) -> (&Node, NodeId) {
        let node = &self.nodes[number % self.nodes.len()];
        (node, self.walk(&node.path).unwrap().node)
    }

    fn walk(&self, path: &str) -> Result<Attr, Errno> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(self.files.attributes(NodeId::ROOT), |at, name| self.files.lookup(at?.node, name.as_bytes()))
    }

    fn child(&self, of: &Node, name: &str) -> Option<&Node> {
        let path = if of.path.is_empty() { name.to_owned() } else { format!("{}/{name}", of.path) };
        self.nodes.iter().find(|node| node.path == path)
    }

    fn children(&self, of: &Node) -> Vec<String> {
        let parent = |path: &str| path.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned());
        let names = self.nodes[1..].iter().filter(|node| parent(&node.path) == of.path);
        let mut names: Vec<_> = names.map(|node| node.path.rsplit('/').next().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    fn check_stat(&self, number: usize) {
        let (node, id) = self.pick(number);
        let attr = self.files.attributes(id).unwrap();
        let (kind, size) = match &node.sort {
            Sort::Directory => (Kind::Directory, attr.size),
            Sort::File(content) => (Kind::File, content.len() as u64),
            Sort::Symlink(target) => (Kind::Symlink, target.len() as u64),
            Sort::Fifo | Sort::Again => (Kind::Fifo, 0),
        };
        assert_eq!((attr.node, attr.kind, attr.size), (id, kind, size));
        if kind != Kind::Directory {
            let names = self.nodes.iter().filter(|other| other.inode == node.inode).count();
            assert_eq!(attr.links as usize, names);
        }
    }

    fn check_list(&self, number: usize, room: usize) {
        let (node, id) = self.pick(number);
        let mut listed = Vec::new();
        let mut position = 0;
        loop {
            let before = listed.len();
            let answer = self.files.read_dir(id, position, &mut |entry| {
                if listed.len() == before + room {
                    return Take::Enough;
                }
                position = entry.next;
                listed.push(String::from_utf8(entry.name.to_vec()).unwrap());
                Take::More
            });
            if !matches!(node.sort, Sort::Directory) {
                assert_eq!(answer, Err(Errno::NotADirectory));
                return;
            }
            answer.unwrap();
            if listed.len() == before {
                break;
            }
        }
        let mut expected = self.children(node);
        expected.extend([".".to_owned(), "..".to_owned()]);
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
    }

    fn check_read(&self, number: usize, offset: u64, length: u32, local: bool) {
        let (node, id) = self.pick(number);
        let content = self.files.content(id);
        let expected = match &node.sort {
            Sort::File(bytes) => {
                let start = bytes.len().min(usize::try_from(offset).unwrap());
                let end = bytes.len().min(start + length as usize);
                Ok(Bytes::copy_from_slice(&bytes[start..end]))
            }
            Sort::Directory => Err(Errno::IsADirectory),
            _ => Err(Errno::Invalid),
        };
        let reads = Reads::new(Arc::new(Memory { contents: self.contents.clone(), local }));
        let read = content.and_then(|content| match reads.now(content, offset, length)? {
            Some(bytes) => Ok(bytes),
            None => self.runtime.block_on(async { reads.later(content, offset, length).now_or_never().unwrap() }),
        });
        assert_eq!(read, expected);
    }

    fn check(&self, operation: &Operation) {
        match operation {
            Operation::Stat(number) => self.check_stat(*number),
            Operation::List { node, room } => self.check_list(*node, *room),
            Operation::Read { node, offset, length, local } => self.check_read(*node, *offset, *length, *local),
            Operation::Lookup(number, name) => {
                let (node, id) = self.pick(*number);
                let expected = match (&node.sort, self.child(node, name)) {
                    (Sort::Directory, Some(child)) => Ok(self.walk(&child.path).unwrap()),
                    (Sort::Directory, None) => Err(Errno::NotFound),
                    _ => Err(Errno::NotADirectory),
                };
                assert_eq!(self.files.lookup(id, name.as_bytes()), expected);
            }
            Operation::ReadLink(number) => {
                let (node, id) = self.pick(*number);
                let expected = match &node.sort {
                    Sort::Symlink(target) => Ok(target.clone().into_bytes()),
                    _ => Err(Errno::Invalid),
                };
                assert_eq!(self.files.read_link(id), expected);
            }
            Operation::Xattr(number, name) => {
                let (node, id) = self.pick(*number);
                let value = node.xattr.as_ref().filter(|(known, _)| known == name).map(|(_, value)| value.clone());
                assert_eq!(self.files.xattr(id, name.as_bytes()), value.ok_or(Errno::NoAttribute));
            }
            Operation::XattrNames(number) => {
                let (node, id) = self.pick(*number);
                let names = node.xattr.as_ref().map_or(String::new(), |(name, _)| format!("{name}\0"));
                assert_eq!(self.files.xattr_names(id), Ok(names.into_bytes()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_image_answers_as_the_model_does(
        plan in prop::collection::vec(planned(), 0..40),
        operations in prop::collection::vec(operation(), 1..=60),
    ) {
        let both = Both::new(build(plan));
        let any_xattr = both.nodes.iter().any(|node| node.xattr.is_some());
        prop_assert_eq!(both.files.has_xattrs(), any_xattr);
        for operation in &operations {
            both.check(operation);
        }
    }
}

#[test]
fn with_redirects_a_file_with_content_leads_overlayfs_to_its_object_and_nothing_else_does() {
    let layers =
        [layer([dir("d"), file("d/f", "content").xattr("user.note", "n"), file("empty", ""), symlink("s", "d/f")])];
    let image = tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap());
    let files = ImageFs::with_redirects(image.clone()).unwrap();
    let node = |files: &ImageFs<Vec<u8>>, path: &str| {
        let step = |node, name: &str| files.lookup(node, name.as_bytes()).unwrap().node;
        path.split('/').fold(NodeId::ROOT, step)
    };
    let hex = Digest::of(b"content").hex();
    let file = node(&files, "d/f");
    assert_eq!(files.xattr(file, b"user.overlay.metacopy"), Ok(Vec::new()));
    assert_eq!(files.xattr(file, b"user.overlay.redirect"), Ok(format!("/{}/{}", &hex[..2], &hex[2..]).into_bytes()));
    assert_eq!(files.xattr(file, b"user.note"), Ok(b"n".to_vec()));
    assert_eq!(files.xattr_names(file).unwrap(), b"user.note\0user.overlay.metacopy\0user.overlay.redirect\0");
    for path in ["d", "empty", "s"] {
        assert_eq!(files.xattr(node(&files, path), b"user.overlay.redirect"), Err(Errno::NoAttribute), "{path}");
        assert!(files.xattr_names(node(&files, path)).unwrap().is_empty(), "{path}");
    }
    let plain = ImageFs::new(image).unwrap();
    assert_eq!(plain.xattr(node(&plain, "d/f"), b"user.overlay.redirect"), Err(Errno::NoAttribute));
}

#[test]
fn the_mean_size_counts_each_name_of_a_file_and_no_other_name() {
    let files = |made: Vec<Made>| {
        let layers = [layer(made)];
        ImageFs::new(tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap())).unwrap()
    };
    let image = files(vec![dir("d"), file("d/a", "123456"), link("b", "d/a"), file("c", ""), symlink("s", "c")]);
    assert_eq!(image.mean_file_size(100), Some(4));
    assert_eq!(image.mean_file_size(3), None, "it has more names");
    assert_eq!(files(vec![dir("d"), fifo("p")]).mean_file_size(100), None, "there are no files");
}
