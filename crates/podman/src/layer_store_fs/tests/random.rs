//! Random lookups, forgets and changes in a row of servers, compared with a naive model: a list of every node that was
//! ever seen.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const IMAGES: [&str; 2] = ["localhost:5000/a:1", "localhost:5000/b:1"];
const DIGESTS: usize = 2;
const CONTENTS: usize = 3;

/// Layers whose content changes.
#[derive(Default)]
struct Changing {
    current: HashMap<LayerKey, Diff>,
    /// What can be found by its content.
    loaded: HashSet<Digest>,
    all: Vec<Diff>,
}

struct Source(Arc<Mutex<Changing>>);

impl Layers for Source {
    fn get(&self, key: &LayerKey) -> Option<ShownLayer> {
        let diff = self.0.lock().current.get(key)?.clone();
        Some(ShownLayer { diff, info: Bytes::new(), blob_size: 0 })
    }

    fn with_content(&self, _: &LayerKey, content: &Digest) -> Option<Diff> {
        let layers = self.0.lock();
        let found = layers.all.iter().find(|diff| diff.digest() == *content)?;
        layers.loaded.contains(content).then(|| found.clone())
    }

    fn find(&self, _: &LayerKey) -> BoxFuture<'static, ()> {
        futures::future::ready(()).boxed()
    }

    fn used(&self, _: &LayerKey, _: Use) -> BoxFuture<'static, ()> {
        futures::future::ready(()).boxed()
    }

    fn blob(&self, _: &LayerKey, _: u64, _: u32) -> BoxFuture<'static, Result<Bytes, Errno>> {
        futures::future::ready(Err(Errno::Io)).boxed()
    }
}

/// A directory, by its image and layer.
type Name = (usize, Option<usize>);

#[derive(Debug, Clone)]
enum Step {
    Lookup(Name),
    LookupDiff(usize, usize),
    Forget(Name),
    Change(usize, usize, usize),
    /// The next server takes over, which can load these contents.
    Restart([bool; CONTENTS]),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || (0..IMAGES.len(), proptest::option::of(0..DIGESTS));
    let step = prop_oneof![
        3 => name().prop_map(Step::Lookup),
        3 => (0..IMAGES.len(), 0..DIGESTS).prop_map(|(image, digest)| Step::LookupDiff(image, digest)),
        2 => name().prop_map(Step::Forget),
        2 => (0..IMAGES.len(), 0..DIGESTS, 0..CONTENTS).prop_map(|(image, digest, to)| Step::Change(image, digest, to)),
        1 => any::<[bool; CONTENTS]>().prop_map(Step::Restart),
    ];
    proptest::collection::vec(step, 1..60)
}

fn key_of(image: usize, digest: usize) -> LayerKey {
    LayerKey { image: IMAGES[image].parse().unwrap(), digest: Digest::of(&[u8::try_from(digest).unwrap()]) }
}

fn path(name: Name) -> Vec<String> {
    let image = BASE64_STANDARD.encode(IMAGES[name.0]);
    let layer = name.1.map(|digest| key_of(name.0, digest).digest.to_string());
    [image].into_iter().chain(layer).collect()
}

struct World {
    layers: Arc<Mutex<Changing>>,
    files: LayerStoreFs,
    /// Every directory ever seen.
    meanings: HashMap<NodeId, Name>,
    /// Directories that the kernel knows, with its references.
    known: HashMap<Name, (NodeId, u64)>,
    /// Directories that an earlier server issued, which stay.
    stay: HashSet<NodeId>,
    /// The roots of all layers ever seen, by key and content.
    roots: HashMap<(usize, usize, Digest), NodeId>,
    /// The contents that can be read.
    readable: HashSet<(usize, usize, Digest)>,
}

impl World {
    fn new() -> Self {
        let all: Vec<_> = ["a", "b", "c"].map(diff_of).into();
        let keys = (0..IMAGES.len()).flat_map(|image| (0..DIGESTS).map(move |digest| key_of(image, digest)));
        let current = keys.map(|key| (key, all[0].clone())).collect();
        let loaded = all.iter().map(|diff| diff.digest()).collect();
        let layers = Arc::new(Mutex::new(Changing { current, loaded, all }));
        let files = LayerStoreFs::new(Arc::new(Source(layers.clone())), Timestamp::default(), nowhere());
        let (meanings, known, stay, roots, readable) = Default::default();
        Self { layers, files, meanings, known, stay, roots, readable }
    }

    fn lookup(&mut self, name: Name) -> NodeId {
        let parent = match name.1 {
            None => NodeId::ROOT,
            Some(_) => self.lookup((name.0, None)),
        };
        let text = path(name).pop().unwrap();
        let node = self.files.lookup(parent, text.as_bytes()).unwrap().node;
        assert_eq!(*self.meanings.entry(node).or_insert(name), name, "a node has become another one");
        let known = self.known.entry(name).or_insert((node, 0));
        assert_eq!(known.0, node, "{name:?} is the same");
        known.1 += 1;
        node
    }

    fn lookup_diff(&mut self, image: usize, digest: usize) {
        let parent = self.lookup((image, Some(digest)));
        let root = self.files.lookup(parent, b"diff").unwrap().node;
        let content = self.layers.lock().current[&key_of(image, digest)].digest();
        let key = (image, digest, content);
        assert_eq!(*self.roots.entry(key).or_insert(root), root, "a layer keeps its number");
        self.readable.insert(key);
        let numbers: HashSet<_> = self.roots.values().collect();
        assert_eq!(numbers.len(), self.roots.len(), "two layers share no number");
    }

    fn forget(&mut self, name: Name) {
        // The kernel knows a directory as long as what is in it.
        let has_children =
            name.1.is_none() && self.known.keys().any(|(image, layer)| *image == name.0 && layer.is_some());
        if has_children {
            return;
        }
        let Some((node, count)) = self.known.remove(&name) else { return };
        self.files.forget(node, count);
        assert_eq!(self.files.attributes(node).is_ok(), self.stay.contains(&node));
    }

    fn restart(&mut self, present: [bool; CONTENTS]) {
        {
            let mut layers = self.layers.lock();
            let loaded = layers.all.iter().zip(present).filter(|(_, present)| *present);
            layers.loaded = loaded.map(|(diff, _)| diff.digest()).collect();
            self.readable =
                self.roots.keys().filter(|(.., content)| layers.loaded.contains(content)).copied().collect();
        }
        self.files =
            LayerStoreFs::restored(&self.files.saved(), Arc::new(Source(self.layers.clone())), nowhere()).unwrap();
        // Some of those that were forgotten are back, too.
        self.stay = self.meanings.keys().filter(|node| self.files.attributes(**node).is_ok()).copied().collect();
        assert!(self.known.values().all(|(node, _)| self.stay.contains(node)));
    }

    fn check(&self) {
        for (key, root) in &self.roots {
            let file = self.files.lookup(*root, b"f");
            assert_eq!(file.is_ok(), self.readable.contains(key), "{key:?}: {file:?}");
        }
        for (node, _) in self.known.values() {
            assert_eq!(self.files.attributes(*node).unwrap().kind, Kind::Directory);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn node_ids_have_one_meaning_for_ever_whatever_servers_come_and_go(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Lookup(name) => drop(world.lookup(name)),
                Step::LookupDiff(image, digest) => world.lookup_diff(image, digest),
                Step::Forget(name) => world.forget(name),
                Step::Change(image, digest, to) => {
                    let mut layers = world.layers.lock();
                    let diff = layers.all[to].clone();
                    layers.current.insert(key_of(image, digest), diff);
                }
                Step::Restart(present) => world.restart(present),
            }
            world.check();
        }
    }

    #[test]
    fn rubbish_is_refused_or_gives_a_file_system_that_answers(at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let (one, files) = store();
        let (image, digest) = (image_name(), key().digest.to_string());
        find(&files, &[&image, &digest, "diff", "f"]).unwrap();
        let mut saved = files.saved();
        let at = at.index(saved.len());
        saved[at] = value;
        if let Ok(files) = next(&saved, &one) {
            let _answer = find(&files, &[&image, &digest, "diff", "f"]);
            prop_assert!(files.attributes(NodeId::ROOT).is_ok());
        }
    }
}
