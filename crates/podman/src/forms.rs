//! The layers of an image as directories of their own, kept with the image's record.
//!
//! They are made once, when the image is added, from the indexes that preparing it left: merging takes as long as preparing did, and a
//! container looks into every layer at its start. They are kept as EROFS images, one after the other in one file, which is mapped and not
//! read.
//!
//! A file that an upper layer replaces is part of its own layer, and not of the merged tree. A second chunk table, behind the layers in
//! the file, locates the bytes of such files.
//!
//! For Podman's store of layers, each layer is kept by itself as well, where that differs: with a whiteout of every name that it removes.
//! Podman stacks a layer that it got under one path on top of others, whatever image these came with.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarpon_images::prepare::assemble::chunk_table;
use tarpon_images::prepare::known::{self, known_layers};
use tarpon_images::prepare::layer::Layer;
use tarpon_images::progress::Progress;
use tarpon_images::{ImageRequest, Images};
use tarpon_layer::packed::Packed;
use tarpon_layer::toc::Claim;
use tarpon_layer::{Attributes, LayerIndex, Node, ObjectId};
use tarpon_oci::{Compression, Digest, ImageConfig, Manifest};
use tarpon_store::{ImageRecord, Store};
use tarpon_tree::{Object, Stack, Tree, delta, erofs, merge, underlay};

use super::ids::{self, LayerSource};
use crate::{Error, ErrorKind, Result, ResultExt};

/// Changes with every change to the kept form. Other versions are made again.
const VERSION: u32 = 3;
/// Magic at the start of the file.
const MAGIC: &[u8; 8] = b"tarpon f";
/// Bytes of the magic and of the length of the head.
const PREFIX: usize = 12;
/// Maximum size of the head: 128 layers of 200 bytes, and names in their root directories.
const HEAD_BYTES: usize = 64 << 20;
/// Images in the file begin at multiples of this.
const ALIGNMENT: usize = 4096;
/// Blocks of a tar.
const TAR_BLOCK: u64 = 512;

/// The kept forms of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forms {
    version: u32,
    /// Lowest first.
    pub(crate) layers: Vec<LayerForm>,
    /// Names that the layers below the topmost have in their root directories.
    pub(crate) names_below: Vec<Vec<u8>>,
    /// The chunk table of content that shows in no merged tree; empty if there is none.
    hidden: (u64, u64),
    /// Whether the layers are kept by themselves as well.
    pub(crate) has_each: bool,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerForm {
    /// Its name in Podman's stores.
    pub(crate) id: Digest,
    /// Its diffID, or its substitute.
    pub(crate) diff_id: Digest,
    /// Whether the layer was hashed, so that it may be found by its digests.
    pub(crate) is_hashed: bool,
    /// Digest of its blob.
    pub(crate) blob: Digest,
    /// Bytes of its blob.
    pub(crate) blob_size: u64,
    /// Compression of the blob, by its number in containers/storage.
    pub(crate) compression: u8,
    /// Approximate size of its tar in bytes.
    pub(crate) size: u64,
    /// Owner of the root directory.
    pub(crate) uid: u32,
    /// Group of the root directory.
    pub(crate) gid: u32,
    /// Its diffID as the image's config claims it.
    pub(crate) claimed: Digest,
    /// The digest of its table of contents, if the manifest names one.
    pub(crate) toc: Option<Digest>,
    /// Its EROFS image.
    image: (u64, u64),
    /// The EROFS image of the layer by itself, where it differs.
    by_itself: Option<(u64, u64)>,
}

impl Forms {
    /// Reads the output of [`build`]; `None` if it has another version or format.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        if magic != MAGIC || length > HEAD_BYTES {
            return None;
        }
        let forms: Self = postcard::from_bytes(rest.get(..length)?).ok()?;
        let images = forms.layers.iter().flat_map(|layer| [Some(layer.image), layer.by_itself]).flatten();
        let ranges = images.chain([forms.hidden]);
        let all_inside = ranges.into_iter().all(|at| range(at).is_some_and(|range| bytes.get(range).is_some()));
        (forms.version == VERSION && !forms.layers.is_empty() && all_inside).then_some(forms)
    }

    /// The image of the layer with this number in `bytes`, which [`Forms::read`] read.
    pub(crate) fn image(&self, bytes: &Bytes, number: usize) -> Bytes {
        self.layers.get(number).and_then(|layer| range(layer.image)).map_or(Bytes::new(), |range| bytes.slice(range))
    }

    /// The image of the layer by itself, if these are kept.
    pub(crate) fn by_itself(&self, bytes: &Bytes, number: usize) -> Option<Bytes> {
        let layer = self.layers.get(number).filter(|_| self.has_each)?;
        range(layer.by_itself.unwrap_or(layer.image)).map(|range| bytes.slice(range))
    }

    /// The chunk table of content that shows in no merged tree.
    pub(crate) fn hidden(&self, bytes: &Bytes) -> Option<Bytes> {
        range(self.hidden).filter(|range| !range.is_empty()).map(|range| bytes.slice(range))
    }
}

fn range((start, length): (u64, u64)) -> Option<Range<usize>> {
    let end = usize::try_from(start.checked_add(length)?).ok()?;
    Some(usize::try_from(start).ok()?..end)
}

/// Makes sure that the forms that Podman needs of the image's layers are kept with its record. `each`: also each layer by itself. If
/// those were kept, they stay.
pub(crate) async fn keep_forms(
    images: &Images,
    request: &ImageRequest,
    record: &ImageRecord,
    each: bool,
    progress: &dyn Progress,
) -> Result<()> {
    let kept = images.store().image_forms(&record.manifest).ok().flatten();
    let had_each = kept.and_then(|bytes| Forms::read(&bytes)).is_some_and(|forms| forms.has_each);
    if each && had_each {
        return Ok(());
    }
    let each = each || had_each;
    let known = known_layers(images, request, record, progress).await?;
    let (store, manifest) = (images.store().clone(), record.manifest);
    tokio::task::spawn_blocking(move || keep(&store, &manifest, &known, each))
        .await
        .context(ErrorKind::Other, "make directories of the layers")?
}

fn keep(store: &Store, manifest: &Digest, known: &known::KnownLayers, each: bool) -> Result<()> {
    let step = "keep the layers' directories";
    let read = |found: std::result::Result<Option<_>, tarpon_store::StoreError>| {
        found
            .context(ErrorKind::Store, step)?
            .ok_or_else(|| Error::new(ErrorKind::Store, step, "the image's record is damaged"))
    };
    let parsed = Manifest::parse(read(store.image_manifest(manifest))?).context(ErrorKind::Store, step)?;
    let config = ImageConfig::parse(read(store.image_config(manifest))?).context(ErrorKind::Store, step)?;
    let bytes = build(&parsed, &config, &known.layers, &known.indexes, each)?;
    store.keep_image_forms(manifest, &bytes).context(ErrorKind::Store, step)
}

/// The file for an image with these layers.
fn build(
    manifest: &Manifest,
    config: &ImageConfig,
    layers: &[Layer],
    indexes: &[LayerIndex],
    each: bool,
) -> Result<Vec<u8>> {
    let step = "make directories of the layers";
    if layers.is_empty() {
        return Err(Error::new(ErrorKind::Refused, step, "the image has no layers"));
    }
    let ids = layer_ids(manifest, config, layers, indexes).context(ErrorKind::Refused, step)?;
    let mut file = File::default();
    let mut forms =
        Forms { version: VERSION, layers: Vec::new(), names_below: Vec::new(), hidden: (0, 0), has_each: each };
    let mut objects: BTreeMap<ObjectId, Object> = BTreeMap::new();
    let mut stack = Stack::new(indexes).context(ErrorKind::Refused, step)?;
    for (number, layer) in layers.iter().enumerate() {
        let changes = stack.delta(number).context(ErrorKind::Refused, step)?;
        for object in changes.objects() {
            let other = objects.insert(object.id, object);
            check_size(&object, other.as_ref()).context(ErrorKind::Refused, step)?;
        }
        let root = changes.inode(changes.root()).attributes();
        if number + 1 < layers.len() {
            forms.names_below.extend(root_names(&changes));
        }
        let alone = erofs::write(&changes);
        let image = file.put(&alone);
        let by_itself =
            if each { Some(by_itself(&indexes[number], root).context(ErrorKind::Refused, step)?) } else { None };
        let by_itself = by_itself.filter(|by_itself| *by_itself != alone).map(|by_itself| file.put(&by_itself));
        forms.layers.push(LayerForm {
            id: ids[number].0,
            diff_id: ids[number].1.diff_id(),
            claimed: config.diff_ids[number],
            toc: toc(manifest, number),
            is_hashed: matches!(ids[number].1, LayerSource::Content(_)),
            blob: layer.blob.digest,
            blob_size: layer.blob.size,
            compression: compression(layer.compression),
            size: tar_size(&indexes[number]),
            uid: root.uid,
            gid: root.gid,
            image,
            by_itself,
        });
    }
    for object in stack.merged().context(ErrorKind::Refused, step)?.objects() {
        let hidden = objects.remove(&object.id);
        check_size(&object, hidden.as_ref()).context(ErrorKind::Refused, step)?;
    }
    forms.names_below.sort_unstable();
    forms.names_below.dedup();
    if !objects.is_empty() {
        forms.hidden =
            file.put(&chunk_table(objects.into_values(), indexes, layers).context(ErrorKind::Refused, step)?);
    }
    file.finish(forms).context(ErrorKind::Refused, step)
}

/// The id of each layer, and the digests that identify it.
fn layer_ids(
    manifest: &Manifest,
    config: &ImageConfig,
    layers: &[Layer],
    indexes: &[LayerIndex],
) -> std::result::Result<Vec<(Digest, LayerSource)>, String> {
    let mut ids: Vec<(Digest, LayerSource)> = Vec::with_capacity(layers.len());
    for (number, layer) in layers.iter().enumerate() {
        let descriptor = manifest.layers.get(number).ok_or("the manifest has fewer layers")?;
        let diff_id = config.diff_ids.get(number).copied().ok_or("the config has no diffID for a layer")?;
        let claim = Claim::of(&descriptor.media_type, &descriptor.annotations, descriptor.size)
            .map_err(|error| error.to_string())?;
        let known = match claim {
            _ if layer.needs_index() && layer.was_streamed() => LayerSource::Content(diff_id),
            Claim::Toc(claim) => LayerSource::Toc(claim.digest()),
            Claim::Plain => {
                LayerSource::Index(layer.packed.unwrap_or_else(|| Packed::new(&indexes[number]).measure().1))
            }
        };
        let parent = ids.last().map(|(id, _)| *id);
        ids.push((ids::layer(parent.as_ref(), &known.diff_id()), known));
    }
    Ok(ids)
}

/// The digest of the layer's table of contents. The claim is known to be readable by now.
fn toc(manifest: &Manifest, number: usize) -> Option<Digest> {
    let layer = manifest.layers.get(number)?;
    match Claim::of(&layer.media_type, &layer.annotations, layer.size).ok()? {
        Claim::Toc(claim) => Some(claim.digest()),
        Claim::Plain => None,
    }
}

/// The EROFS image of a layer by itself; `root` are the attributes of a root that it does not list.
fn by_itself(index: &LayerIndex, root: &Attributes) -> std::result::Result<Vec<u8>, String> {
    let layers = [underlay(index, root.clone()), index.clone()];
    let merged = |count: usize| merge(&layers[..count]).map_err(|error| format!("a layer by itself: {error}"));
    Ok(erofs::write(&delta(&layers, &merged(1)?, &merged(2)?)))
}

/// The names that a layer has in its root. Those that it removes are names of layers below it.
fn root_names(changes: &Tree<'_>) -> Vec<Vec<u8>> {
    changes.children(changes.root()).map(|at| changes.name(at).to_vec()).collect()
}

/// Two layers may not claim different sizes of one object.
fn check_size(object: &Object, other: Option<&Object>) -> std::result::Result<(), String> {
    match other {
        Some(other) if other.size != object.size => {
            Err(format!("{} has {} bytes in one layer and {} in another", object.id, other.size, object.size))
        }
        _ => Ok(()),
    }
}

/// The number in containers/storage: 1 is bzip2, 3 is xz.
fn compression(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Gzip => 2,
        Compression::Zstd => 4,
    }
}

/// A header for each entry plus the bytes of files. The real tar may be larger.
fn tar_size(index: &LayerIndex) -> u64 {
    let size = |node: &Node| match node {
        Node::File(content) => TAR_BLOCK.saturating_add(content.size.next_multiple_of(TAR_BLOCK)),
        _ => TAR_BLOCK,
    };
    index.entries.iter().fold(2 * TAR_BLOCK, |sum, entry| sum.saturating_add(size(&entry.node)))
}

/// The file after its head.
#[derive(Default)]
struct File(Vec<u8>);

impl File {
    /// Appends bytes and returns their place, counted from the end of the head.
    fn put(&mut self, bytes: &[u8]) -> (u64, u64) {
        let start = self.0.len();
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        (start as u64, bytes.len() as u64)
    }

    fn finish(self, forms: Forms) -> std::result::Result<Vec<u8>, String> {
        let encode = |forms: &Forms| postcard::to_stdvec(forms).map_err(|error| error.to_string());
        // Larger offsets may make the head longer, by nine bytes each at most.
        let room = (PREFIX + encode(&forms)?.len() + 20 * (forms.layers.len() + 1)).next_multiple_of(ALIGNMENT);
        let moved = |(start, length): (u64, u64)| if length == 0 { (0, 0) } else { (start + room as u64, length) };
        let layers = forms.layers.into_iter().map(|layer| LayerForm {
            image: moved(layer.image),
            by_itself: layer.by_itself.map(moved),
            ..layer
        });
        let forms = Forms { layers: layers.collect(), hidden: moved(forms.hidden), ..forms };
        let head = encode(&forms)?;
        if head.len() > HEAD_BYTES {
            return Err("the layers have too many names in their root directories".into());
        }
        let mut file = MAGIC.to_vec();
        file.extend(u32::try_from(head.len()).map_err(|error| error.to_string())?.to_le_bytes());
        file.extend(head);
        file.resize(room, 0);
        file.extend(self.0);
        Ok(file)
    }
}

#[cfg(test)]
impl Forms {
    /// Layers of these diffIDs, one on top of the other.
    pub(crate) fn test(diff_ids: &[Digest]) -> Self {
        let mut layers: Vec<LayerForm> = Vec::new();
        for diff_id in diff_ids {
            let id = ids::layer(layers.last().map(|layer| &layer.id), diff_id);
            layers.push(LayerForm::test(id, *diff_id, true));
        }
        Self { version: VERSION, layers, names_below: Vec::new(), hidden: (0, 0), has_each: false }
    }
}

#[cfg(test)]
impl LayerForm {
    /// A layer of which only these values matter.
    pub(crate) fn test(id: Digest, diff_id: Digest, is_hashed: bool) -> Self {
        Self {
            id,
            diff_id,
            is_hashed,
            blob: Digest::of(b"blob"),
            blob_size: 7,
            compression: 2,
            size: 1024,
            uid: 0,
            gid: 0,
            claimed: diff_id,
            toc: None,
            image: (0, 0),
            by_itself: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(images: &[&[u8]]) -> Vec<u8> {
        let mut file = File::default();
        let layers = images.iter().map(|image| {
            let id = Digest::of(image);
            let (image, by_itself) = (file.put(image), Some(file.put(&image[1..])));
            LayerForm { image, by_itself, ..LayerForm::test(id, id, true) }
        });
        let layers = layers.collect();
        let hidden = file.put(b"table");
        file.finish(Forms { version: VERSION, layers, names_below: vec![b"old".to_vec()], hidden, has_each: true })
            .unwrap()
    }

    #[test]
    fn what_was_put_in_comes_out() {
        let images: [&[u8]; 3] = [b"lowest", &[7; 5000], b"top"];
        let bytes = Bytes::from(file(&images));
        let forms = Forms::read(&bytes).unwrap();
        for (number, image) in images.iter().enumerate() {
            assert_eq!(forms.image(&bytes, number), *image);
            assert_eq!(forms.by_itself(&bytes, number).unwrap(), image[1..]);
        }
        assert_eq!(forms.hidden(&bytes).unwrap(), "table");
        assert_eq!(forms.names_below, [b"old"]);
        assert!(forms.image(&bytes, 3).is_empty());
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_refused_and_damage_leads_nowhere_else() {
        let whole = file(&[b"lowest", b"top"]);
        assert!(Forms::read(&[]).is_none());
        assert!(Forms::read(&file(&[])).is_none(), "an image has layers");
        for length in 0..whole.len() - ALIGNMENT {
            assert!(Forms::read(&whole[..length]).is_none(), "{length}");
        }
        for at in 0..600 {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let damaged = Bytes::from(damaged);
            if let Some(forms) = Forms::read(&damaged) {
                (0..forms.layers.len()).for_each(|number| {
                    drop((forms.image(&damaged, number), forms.by_itself(&damaged, number)));
                });
            }
        }
    }
}
