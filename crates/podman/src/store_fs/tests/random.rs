//! Random trees, set one after the other in one server or in the next, compared with a naive model: a list of every node
//! that was ever seen.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::*;

/// A random tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sketch {
    Directory(BTreeMap<u8, Sketch>),
    File(u8),
    Link(u8),
    Layer(u8),
}

/// A node without what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Thing {
    Directory,
    File(u8),
    Link(u8),
    Layer(u8),
}

const LAYERS: u8 = 3;

fn sketches() -> impl Strategy<Value = BTreeMap<u8, Sketch>> {
    let leaf = prop_oneof![
        (0..3_u8).prop_map(Sketch::File),
        (0..2_u8).prop_map(Sketch::Link),
        (0..LAYERS).prop_map(Sketch::Layer)
    ];
    let tree = leaf.prop_recursive(3, 24, 4, |inner| {
        proptest::collection::btree_map(0..4_u8, inner, 0..4).prop_map(Sketch::Directory)
    });
    proptest::collection::btree_map(0..4_u8, tree, 0..5)
}

/// The tree for the file system, and everything in it by path. Each place has a layer id of its own, as in Podman's stores.
fn tree(sketch: &BTreeMap<u8, Sketch>, path: &str, layers: &[Diff], all: &mut BTreeMap<String, Thing>) -> Directory {
    let mut directory = Directory::default();
    for (name, sketch) in sketch {
        let path = if path.is_empty() { name.to_string() } else { format!("{path}/{name}") };
        let (thing, item) = match sketch {
            Sketch::Directory(inner) => (Thing::Directory, Item::Directory(tree(inner, &path, layers, all))),
            Sketch::File(content) => (Thing::File(*content), text(&content.to_string())),
            Sketch::Link(target) => (Thing::Link(*target), Item::Link(target.to_string())),
            Sketch::Layer(layer) => {
                let diff = layers[usize::from(*layer)].clone();
                (Thing::Layer(*layer), Item::Layer { id: Digest::of(path.as_bytes()), diff })
            }
        };
        directory.items.insert(name.to_string(), item);
        all.insert(path, thing);
    }
    directory
}

/// All nodes ever seen, each with the only thing that it may be.
#[derive(Default)]
struct Model {
    meanings: HashMap<NodeId, (String, Thing)>,
    before: BTreeMap<String, (Thing, NodeId)>,
    /// Every layer that was ever shown.
    layers: HashMap<(String, u8), NodeId>,
    loaded: HashSet<(String, u8)>,
}

impl Model {
    fn check(&mut self, files: &StoreFs, all: &BTreeMap<String, Thing>) {
        let mut now = BTreeMap::new();
        for (path, thing) in all {
            let attr = find(files, path).unwrap();
            check_content(files, &attr, thing);
            let meaning = self.meanings.entry(attr.node).or_insert_with(|| (path.clone(), thing.clone()));
            assert_eq!((&meaning.0, &meaning.1), (path, thing), "a node has become another one");
            if let Some((old, node)) = self.before.get(path)
                && old == thing
            {
                assert_eq!(attr.node, *node, "{path} is unchanged");
            }
            if let Thing::Layer(layer) = thing {
                let key = (path.clone(), *layer);
                assert_eq!(*self.layers.entry(key.clone()).or_insert(attr.node), attr.node, "{path}");
                self.loaded.insert(key);
            }
            now.insert(path.clone(), (thing.clone(), attr.node));
        }
        self.before = now;
        for (key, node) in &self.layers {
            assert_eq!(files.attributes(*node).is_ok(), self.loaded.contains(key), "{key:?}");
        }
    }
}

fn check_content(files: &StoreFs, attr: &Attr, thing: &Thing) {
    assert_eq!(files.attributes(attr.node), Ok(*attr));
    match thing {
        Thing::Directory | Thing::Layer(_) => assert_eq!(attr.kind, Kind::Directory),
        Thing::File(content) => assert_eq!(files.held(attr.node).unwrap(), content.to_string()),
        Thing::Link(target) => assert_eq!(files.read_link(attr.node).unwrap(), target.to_string().into_bytes()),
    }
}

/// A tree; `Some`: the next server shows it, which can load these layers.
type Step = (BTreeMap<u8, Sketch>, Option<[bool; LAYERS as usize]>);

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn node_ids_have_one_meaning_for_ever_and_unchanged_paths_keep_them_whatever_servers_come_and_go(
        steps in proptest::collection::vec((sketches(), any::<Option<[bool; LAYERS as usize]>>()), 1..8),
    ) {
        let steps: Vec<Step> = steps;
        let layers = ["a", "b", "c"].map(a_layer_of);
        let mut model = Model::default();
        let mut files = store(Directory::default());
        for (sketch, restart) in &steps {
            let mut all = BTreeMap::new();
            let root = tree(sketch, "", &layers, &mut all);
            match restart {
                None => files.set(root, LATER),
                Some(present) => {
                    let found: Vec<_> =
                        layers.iter().zip(present).filter(|(_, present)| **present).map(|(diff, _)| diff.clone()).collect();
                    model.loaded = model.layers.keys().filter(|(_, layer)| present[usize::from(*layer)]).cloned().collect();
                    files = next(&files.saved(), &found, root).unwrap();
                }
            }
            model.check(&files, &all);
        }
    }

    #[test]
    fn rubbish_is_refused_or_gives_a_file_system_that_answers(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let _refused = next(&[b"tarpon i", &bytes[..]].concat(), &[], Directory::default()).is_err();
        let root = || Directory::of([("d", Item::Directory(Directory::of([("f", text("x"))]))), ("l", shown(&a_layer()))]);
        let mut saved = store(root()).saved();
        let at = at.index(saved.len());
        saved[at] = value;
        if let Ok(files) = next(&saved, &[], root()) {
            prop_assert!(find(&files, "d/f").is_ok() && find(&files, "l/etc/f").is_ok());
        }
    }
}
