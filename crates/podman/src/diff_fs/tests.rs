//! Stacks of layers as overlayfs shows them, with each layer in either form, compared with the merged tree.
//!
//! A model represents overlayfs: a name is looked up from the top layer down; a whiteout, a file or an opaque directory
//! ends the lookup. Whiteouts are omitted from the listing of a directory that several layers have, and shown in any
//! other.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tarpon_fs::{Attr, Kind, NodeId, Operations, Take};
use tarpon_layer::LayerIndex;
use tarpon_oci::Digest;
use tarpon_testkit::stacks;
use tarpon_tree::{Tree, delta, erofs, merge};

use super::DiffFs;

type Diff = DiffFs<Vec<u8>>;

/// The target of a name, without its links and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    kind: Kind,
    mode: u16,
    owner: (u32, u32),
    mtime: (i64, u32),
    size: u64,
    device: (u32, u32),
    target: Option<Digest>,
    object: Option<Digest>,
    /// Names and digests of values.
    xattrs: Vec<(String, Digest)>,
}

fn shown(layer: &Diff, attr: &Attr) -> Shown {
    let names = layer.xattr_names(attr.node).unwrap();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !name.starts_with(b"trusted."));
    let is_file = attr.kind == Kind::File;
    let value = |name: &[u8]| Digest::of(&layer.xattr(attr.node, name).unwrap());
    let mut xattrs: Vec<_> = names.map(|name| (name.escape_ascii().to_string(), value(name))).collect();
    xattrs.sort();
    Shown {
        kind: attr.kind,
        mode: attr.mode,
        owner: (attr.uid, attr.gid),
        mtime: (attr.mtime.seconds, attr.mtime.nanoseconds),
        size: if attr.kind == Kind::Directory { 0 } else { attr.size },
        device: attr.device,
        target: (attr.kind == Kind::Symlink).then(|| Digest::of(&layer.read_link(attr.node).unwrap())),
        object: is_file.then(|| layer.content(attr.node).unwrap().object).flatten(),
        xattrs,
    }
}

fn is_whiteout(attr: &Attr) -> bool {
    attr.kind == Kind::CharDevice && attr.device == (0, 0)
}

fn listing(layer: &Diff, node: NodeId) -> Vec<(Vec<u8>, NodeId)> {
    let mut names = Vec::new();
    let mut take = |entry: tarpon_fs::DirEntry<'_>| {
        names.push((entry.name.to_vec(), entry.node));
        Take::More
    };
    layer.read_dir(node, 0, &mut take).unwrap();
    names.retain(|(name, _)| name != b"." && name != b"..");
    names
}

/// Adds the directory merged from the layers' directories `parts`, and everything below it.
fn overlay(path: &[u8], parts: &[(&Diff, NodeId)], view: &mut BTreeMap<Vec<u8>, Shown>) {
    let mut names: Vec<Vec<u8>> =
        parts.iter().flat_map(|(layer, node)| listing(layer, *node)).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    for name in names {
        let mut found = Vec::new();
        for (layer, node) in parts {
            let Ok(attr) = layer.lookup(*node, &name) else { continue };
            assert!(layer.attributes(attr.node).unwrap() == attr, "two answers about one inode");
            let is_hidden = is_whiteout(&attr) && parts.len() > 1;
            if is_hidden || !found.is_empty() && attr.kind != Kind::Directory {
                break;
            }
            let goes_on = attr.kind == Kind::Directory && layer.xattr(attr.node, b"trusted.overlay.opaque").is_err();
            found.push((*layer, attr));
            if !goes_on {
                break;
            }
        }
        let Some((layer, attr)) = found.first() else { continue };
        let below = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
        view.insert(below.clone(), shown(layer, attr));
        if attr.kind == Kind::Directory {
            let parts: Vec<_> = found.iter().map(|(layer, attr)| (*layer, attr.node)).collect();
            overlay(&below, &parts, view);
        }
    }
}

/// The view of `stack` through overlayfs, the top layer first.
fn view(stack: &[&Diff]) -> BTreeMap<Vec<u8>, Shown> {
    let top = stack[0].attributes(NodeId::ROOT).unwrap();
    let mut view = BTreeMap::from([(Vec::new(), shown(stack[0], &top))]);
    let roots: Vec<_> = stack.iter().map(|layer| (*layer, NodeId::ROOT)).collect();
    overlay(b"", &roots, &mut view);
    view
}

fn root_names(tree: &Tree<'_>) -> Vec<Box<[u8]>> {
    tree.children(tree.root()).map(|at| tree.name(at).into()).collect()
}

/// Both forms of every layer; the merged form is the tree up to it.
fn forms(layers: &[LayerIndex]) -> Option<Vec<[Diff; 2]>> {
    let mut forms = Vec::new();
    let mut below = merge(&[]).unwrap();
    let mut seen: Vec<Box<[u8]>> = Vec::new();
    for count in 1..=layers.len() {
        let merged = merge(&layers[..count]).ok()?;
        let alone = delta(layers, &below, &merged);
        let image = erofs::write(&alone);
        erofs::Image::open(&image).unwrap().check().unwrap();
        let whole = DiffFs::merged(erofs::write(&merged), seen.clone()).unwrap();
        forms.push([DiffFs::alone(image).unwrap(), whole]);
        seen.extend(root_names(&merged));
        below = merged;
    }
    Some(forms)
}

fn check(bytes: &[u8], choices: u8) {
    let layers = stacks::from_bytes(bytes);
    let Some(forms) = forms(&layers) else { return };
    for count in 1..=layers.len() {
        let tree = DiffFs::alone(erofs::write(&merge(&layers[..count]).unwrap())).unwrap();
        let expected = view(&[&tree]);
        let chosen = |choice: u8| (0..count).rev().map(move |at| usize::from(choice >> at & 1)).collect::<Vec<_>>();
        for choice in [0, u8::MAX, choices, 1 << (count - 1)] {
            let stack: Vec<&Diff> =
                chosen(choice).into_iter().zip((0..count).rev()).map(|(form, at)| &forms[at][form]).collect();
            let view = view(&stack);
            let differs = |path: &&Vec<u8>| view.get(*path) != expected.get(*path);
            let first = view.keys().chain(expected.keys()).find(differs);
            if let Some(path) = first {
                let (shows, expected) = (view.get(path), expected.get(path));
                let path = path.escape_ascii().to_string().replace(&"n".repeat(255), "N");
                panic!("{count} layers, forms {choice:b}: /{path} is {shows:?}, not {expected:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_stack_shows_the_merged_tree_whichever_form_each_layer_has(
        bytes in proptest::collection::vec(any::<u8>(), 0..700),
        choices in any::<u8>(),
    ) {
        check(&bytes, choices);
    }
}

#[test]
fn the_stacks_that_are_tried_have_whiteouts_and_opaque_directories() {
    let (mut whiteouts, mut opaque, mut added) = (0, 0, 0);
    for seed in 0..200_u64 {
        let mut state = seed + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u8::try_from(state >> 56).unwrap()
        };
        let bytes: Vec<u8> = (0..500).map(|_| next()).collect();
        for [alone, merged] in forms(&stacks::from_bytes(&bytes)).into_iter().flatten() {
            let attrs = listing(&alone, NodeId::ROOT).into_iter().map(|(_, node)| alone.attributes(node).unwrap());
            for attr in attrs {
                whiteouts += usize::from(is_whiteout(&attr));
                opaque += usize::from(alone.xattr(attr.node, b"trusted.overlay.opaque").is_ok());
            }
            let attrs = listing(&merged, NodeId::ROOT).into_iter().map(|(_, node)| merged.attributes(node).unwrap());
            added += attrs.filter(is_whiteout).count();
        }
    }
    assert!(whiteouts > 10 && opaque > 10 && added > 10, "{whiteouts} {opaque} {added}");
}
