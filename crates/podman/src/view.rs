//! [`View`]: everything exposed to Podman at one moment, as a tree of files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use tarpon_oci::Digest;

use super::documents::{self, Image, Layer};
use super::forms::LayerForm;
use super::ids;
use super::listed::Listed;
use crate::diff_fs::DiffFs;
use crate::store_fs::{Directory, Item};

/// Builds the tree step by step.
#[derive(Default)]
pub(crate) struct View<'l> {
    layers: Vec<Layer>,
    listed: HashSet<Digest>,
    images: Vec<Image>,
    overlay: BTreeMap<String, Item>,
    links: BTreeMap<String, Item>,
    image_files: BTreeMap<String, Item>,
    /// The images by their topmost layers, which show all layers below as well.
    topmost: HashMap<Digest, &'l Listed>,
}

impl<'l> View<'l> {
    /// A view of `images`.
    pub(crate) fn new(images: impl IntoIterator<Item = &'l Listed>) -> Self {
        let topmost = images.into_iter().filter_map(|image| Some((image.forms.layers.last()?.id, image)));
        Self { topmost: topmost.collect(), ..Self::default() }
    }

    /// Adds the layers of an image that are still missing.
    pub(crate) fn add_layers(&mut self, store: &str, image: &Listed) {
        let created = image.created.as_deref();
        let mut below: Vec<Digest> = Vec::new();
        for (form, alone) in image.forms.layers.iter().zip(&image.alone) {
            if self.listed.insert(form.id) {
                // If a layer has two forms, this is the better one for lookups.
                let merged = self.topmost.get(&form.id).map(|image| &image.merged);
                let is_alone = below.is_empty() || merged.is_none();
                if !is_alone {
                    // A lookup of the layer by digest, to stack it on others, takes the first match and needs the form alone.
                    let id = ids::alone(&form.id);
                    self.add_layer(store, form, &id, &below, alone);
                    self.layers.push(Layer::new(form, &id, below.last(), created));
                }
                let diff = merged.filter(|_| !is_alone).unwrap_or(alone);
                self.add_layer(store, form, &form.id, &below, diff);
                self.layers.push(Layer::new(form, &form.id, below.last(), created));
            }
            below.push(form.id);
        }
    }

    fn add_layer(&mut self, store: &str, form: &LayerForm, id: &Digest, below: &[Digest], diff: &Arc<DiffFs<Bytes>>) {
        let text = |text: String| Item::File(Bytes::from(text));
        let link = ids::link(store, id);
        let mut items = BTreeMap::from([
            ("link".to_owned(), text(link.clone())),
            ("diff".to_owned(), Item::Layer { id: *id, diff: diff.clone() }),
        ]);
        if !below.is_empty() {
            let lower: Vec<_> = below.iter().rev().map(|id| format!("l/{}", ids::link(store, id))).collect();
            items.insert("lower".to_owned(), text(lower.join(":")));
        }
        self.links.insert(link, Item::Link(format!("../{}/diff", id.hex())));
        let (uid, gid) = (form.uid, form.gid);
        self.overlay.insert(id.hex(), Item::Directory(Directory { uid, gid, items }));
    }

    /// Adds an image under these names. Its layers were added before.
    pub(crate) fn add_image(&mut self, image: &Listed, names: &[String]) {
        let Some(top) = image.forms.layers.last() else { return };
        self.images.push(Image::new(&image.originals, names, &top.id, image.created.as_deref()));
        let files = image.originals.files().map(|(name, _, bytes)| (documents::file_name(&name), Item::File(bytes)));
        let directory = Directory { uid: 0, gid: 0, items: files.into() };
        self.image_files.insert(image.originals.id.hex(), Item::Directory(directory));
    }

    /// The tree. `change` is a different text for each change.
    pub(crate) fn finish(mut self, change: &str) -> Directory {
        let directory = |items| Item::Directory(Directory { uid: 0, gid: 0, items });
        let lock = Item::File(documents::lock(change));
        let lock_of_images = Item::File(documents::lock(change));
        self.overlay.insert("l".to_owned(), directory(self.links));
        self.image_files.insert("images.json".to_owned(), Item::File(documents::text(&self.images)));
        self.image_files.insert("images.lock".to_owned(), lock_of_images);
        let layers = Directory::of([("layers.json", Item::File(documents::text(&self.layers))), ("layers.lock", lock)]);
        Directory::of([
            ("overlay", directory(self.overlay)),
            ("overlay-images", directory(self.image_files)),
            ("overlay-layers", Item::Directory(layers)),
        ])
    }
}

/// The short names of layers that only `image` requires, in either form.
pub(crate) fn own_links<'l>(
    store: &str,
    image: &Listed,
    others: impl Iterator<Item = &'l Listed> + Clone,
) -> HashSet<String> {
    let mut shown = View::new(others.clone());
    others.for_each(|other| shown.add_layers(store, other));
    // A form that is no longer exposed may still be in use.
    let ids = image.forms.layers.iter().flat_map(|layer| [layer.id, ids::alone(&layer.id)]);
    ids.map(|id| ids::link(store, &id)).filter(|link| !shown.links.contains_key(link)).collect()
}

#[cfg(test)]
mod tests {
    use crate::store_fs::StoreFs;
    use serde_json::Value;
    use tarpon_fs::{Kind, NodeId, Operations};
    use tarpon_layer::Timestamp;

    use super::*;

    fn shown(images: &[&Listed]) -> StoreFs {
        let mut view = View::new(images.iter().copied());
        images.iter().for_each(|image| view.add_layers("/store", image));
        images.iter().for_each(|image| view.add_image(image, &["localhost/a:1".to_owned()]));
        StoreFs::new(view.finish("1"), Timestamp::default(), Box::new(|_| {}))
    }

    fn find(files: &StoreFs, path: &str) -> Option<NodeId> {
        let names = path.split('/');
        names.into_iter().try_fold(NodeId::ROOT, |at, name| Some(files.lookup(at, name.as_bytes()).ok()?.node))
    }

    fn text(files: &StoreFs, path: &str) -> String {
        let node = find(files, path).unwrap_or_else(|| panic!("{path}"));
        String::from_utf8(files.held(node).unwrap().to_vec()).unwrap()
    }

    fn layers(files: &StoreFs) -> Vec<Value> {
        serde_json::from_str(&text(files, "overlay-layers/layers.json")).unwrap()
    }

    #[test]
    fn every_layer_is_there_with_its_links_and_after_those_that_it_lies_on() {
        let (one, two) = (Listed::test("one", &["a", "b", "c"]), Listed::test("two", &["a", "b"]));
        let files = shown(&[&one, &two]);
        let mut seen = vec![Value::Null];
        for layer in layers(&files) {
            assert!(seen.contains(layer.get("parent").unwrap_or(&Value::Null)), "{layer}");
            let id = layer["id"].as_str().unwrap();
            let link = text(&files, &format!("overlay/{id}/link"));
            let target = files.read_link(find(&files, &format!("overlay/l/{link}")).unwrap()).unwrap();
            assert_eq!(target, format!("../{id}/diff").into_bytes());
            assert_eq!(
                files.attributes(find(&files, &format!("overlay/{id}/diff")).unwrap()).unwrap().kind,
                Kind::Directory
            );
            let lower =
                find(&files, &format!("overlay/{id}/lower")).map(|_| text(&files, &format!("overlay/{id}/lower")));
            let lower: Vec<String> = lower.iter().flat_map(|lower| lower.split(':')).map(str::to_owned).collect();
            assert!(lower.iter().all(|link| find(&files, &format!("overlay/{link}")).is_some()));
            seen.push(layer["id"].clone());
        }
        let images: Vec<Value> = serde_json::from_str(&text(&files, "overlay-images/images.json")).unwrap();
        assert!(images.iter().all(|image| seen.contains(&image["layer"])));
        for image in &images {
            for name in image["big-data-names"].as_array().unwrap() {
                let (id, name) = (image["id"].as_str().unwrap(), documents::file_name(name.as_str().unwrap()));
                assert!(find(&files, &format!("overlay-images/{id}/{name}")).is_some());
            }
        }
    }

    #[test]
    fn the_topmost_layers_of_images_are_merged_and_come_alone_before() {
        let (one, two) = (Listed::test("one", &["a", "b", "c"]), Listed::test("two", &["a", "b"]));
        let whiteout = |files: &StoreFs, id: &str| find(files, &format!("overlay/{id}/diff/old")).is_some();
        let files = shown(&[&one, &two]);
        let of = |content: &str| {
            let wanted = Digest::of(content.as_bytes()).to_string();
            let same: Vec<_> = layers(&files).into_iter().filter(|layer| layer["diff-digest"] == wanted).collect();
            same.iter().map(|layer| whiteout(&files, layer["id"].as_str().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!((of("a"), of("b"), of("c")), (vec![false], vec![false, true], vec![false, true]));
    }

    #[test]
    fn of_an_image_that_goes_those_layers_go_that_no_other_image_shows() {
        let (one, two) = (Listed::test("one", &["a", "b"]), Listed::test("two", &["a", "b", "c"]));
        let id = |image: &Listed, layer: usize| image.forms.layers[layer].id;
        let links = |ids: &[Digest]| ids.iter().map(|id| ids::link("/s", id)).collect::<HashSet<_>>();
        let alone = |id: Digest| ids::alone(&id);
        let (a, b, c) = (id(&two, 0), id(&two, 1), id(&two, 2));
        assert_eq!(own_links("/s", &one, [&two].into_iter()), links(&[alone(a), alone(b)]), "what builds lie on");
        assert_eq!(own_links("/s", &two, [&one].into_iter()), links(&[alone(a), c, alone(c)]));
        let same = Listed::test("same", &["a", "b"]);
        assert_eq!(own_links("/s", &one, [&same].into_iter()), links(&[alone(a)]));
        assert_eq!(own_links("/s", &one, std::iter::empty()).len(), 4);
    }

    #[test]
    fn an_image_of_one_layer_is_that_layer() {
        let files = shown(&[&Listed::test("one", &["a"]), &Listed::test("two", &["a", "b"])]);
        assert_eq!(layers(&files).len(), 3);
        assert!(find(&files, &format!("overlay/{}/diff/old", Digest::of(b"a").hex())).is_none());
    }
}
