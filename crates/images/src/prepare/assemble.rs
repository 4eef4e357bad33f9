//! Turns indexed layers into one tree, one chunk table, and a record in the store.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::{LayerIndex, ObjectId};
use tarpon_oci::{Digest, ImageConfig, Manifest, Verified};
use tarpon_store::{ImageRecord, LayerRecord, LoadedImage, Part, RemoveError, Store, StoreError};
use tarpon_tree::{Line, Object, Tree, erofs, merge};

use super::layer::Layer;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::index::compare::{Piece, is_list, piece};

/// Everything that a record is made of.
pub(crate) struct Image {
    /// As the user named it.
    pub(crate) name: String,
    pub(crate) platform: String,
    pub(crate) manifest: Manifest,
    pub(crate) config: ImageConfig,
    pub(crate) layers: Vec<Layer>,
    /// Bytes received for it.
    pub(crate) fetched: u64,
    /// Its boot pack.
    pub(crate) boot: Option<Boot>,
}

/// A boot pack of an image.
pub(crate) struct Boot {
    /// Its index.
    pub(crate) index: Verified<Bytes>,
    /// The repository or layout that has it, as text; `None`: that of the image.
    pub(crate) place: Option<String>,
}

/// Merges and installs the layers. Blocks on the processor and the disk.
pub(crate) fn assemble(store: &Store, image: Image) -> Result<ImageRecord> {
    let Image { name, platform, manifest, config, layers, fetched, boot } = image;
    let (indexes, layers): (Vec<LayerIndex>, Vec<Layer>) =
        layers.into_iter().map(|mut layer| (std::mem::take(&mut layer.index), layer)).unzip();
    let tree = merge(&indexes).context(ErrorKind::Refused, "merge the layers")?;
    let chunks = chunk_table(tree.objects(), &indexes, &layers).context(ErrorKind::Refused, "list the chunks")?;
    let objects = tree.objects().map(|object| object.id).collect();
    let records = layers.into_iter().map(|layer| LayerRecord {
        digest: layer.blob.digest,
        size: layer.blob.size,
        format: layer.format,
        verification: layer.verification,
        prefetch: layer.prefetch,
        index: layer.packed,
    });
    let mut record = ImageRecord::new(*manifest.digest(), &name, &platform, records.collect());
    record.prepared_bytes = fetched;
    record.boot_source = boot.as_ref().and_then(|boot| boot.place.clone());
    compare(store, &mut record, &tree, &chunks)?;
    let install = || -> std::result::Result<ImageRecord, StoreError> {
        let mut staging = store.stage_image(record)?;
        staging.put(Part::Manifest, &manifest.bytes)?;
        staging.put(Part::Config, &config.bytes)?;
        staging.write(Part::Tree, |out| erofs::write_to(&tree, out))?;
        staging.put(Part::Chunks, &chunks)?;
        staging.put_objects(objects)?;
        if let Some(boot) = &boot {
            staging.put(Part::Boot, &boot.index)?;
        }
        staging.install()
    };
    install().context(ErrorKind::Store, "write the image's record")
}

/// The chunk table of an image whose layers have these indexes.
pub fn chunks_of(indexes: &[LayerIndex], layers: &[Layer]) -> Result<Vec<u8>> {
    let tree = merge(indexes).context(ErrorKind::Refused, "merge the layers")?;
    chunk_table(tree.objects(), indexes, layers).context(ErrorKind::Refused, "list the chunks")
}

/// Places of the bytes of these objects. In a merged tree, these are the objects that a path still leads to.
pub fn chunk_table(
    objects: impl Iterator<Item = Object>,
    indexes: &[LayerIndex],
    layers: &[Layer],
) -> std::result::Result<Vec<u8>, String> {
    let mut builder = ChunkTableBuilder::new();
    let mut numbers = Vec::with_capacity(layers.len());
    for (layer, index) in layers.iter().zip(indexes) {
        let number = builder.add_layer(layer.blob, layer.compression).map_err(|error| error.to_string())?;
        builder.add_checkpoints(number, &index.checkpoints);
        numbers.push(number);
    }
    for object in objects {
        let first = usize::try_from(object.first_chunk).map_err(|error| error.to_string())?;
        let count = usize::try_from(object.chunk_count).map_err(|error| error.to_string())?;
        let chunks = indexes
            .get(object.layer)
            .and_then(|index| index.chunks.get(first..)?.get(..count))
            .ok_or("an object has chunks that its layer has not")?;
        let number = *numbers.get(object.layer).ok_or("an object is in a layer that is not there")?;
        builder.add_object(object.id, object.size, number, chunks).map_err(|error| error.to_string())?;
    }
    builder.finish().map_err(|error| error.to_string())
}

/// If the image already exists and an external index contributed to it, that index's claims must still hold.
fn compare(store: &Store, record: &mut ImageRecord, tree: &Tree<'_>, chunks: &[u8]) -> Result<()> {
    let step = "look in the store";
    let Some(known) = store.load_image(&record.manifest).context(ErrorKind::Store, step)? else { return Ok(()) };
    let pairs = known.record.layers.iter().zip(&mut record.layers);
    let mut raised: Vec<_> =
        pairs.filter(|(was, is)| was.verification.is_by_index() && was.verification != is.verification).collect();
    if raised.is_empty() {
        return Ok(());
    }
    let tree = erofs::write(tree);
    let cut = match known.tree.as_ref() == tree {
        true => cut(store, known.chunks.as_ref(), chunks).context(ErrorKind::Store, step)?,
        false if same_but_names(&known, &tree) => Cut::Unknown,
        false => Cut::Lie,
    };
    if cut == Cut::Same {
        return Ok(());
    }
    if cut == Cut::Unknown {
        // Files cut or named differently: not necessarily a lie. But the mount continues to be read by those lists.
        match store.remove_record(&known.record.manifest) {
            Err(RemoveError::Mounted(_)) => {
                raised.iter_mut().for_each(|(was, is)| **is = LayerRecord { index: is.index, ..was.clone() })
            }
            removed => removed.context(ErrorKind::Store, "replace the image's record")?,
        }
        return Ok(());
    }
    let is_removed = store.remove_image(&known.record.manifest).is_ok();
    let hint =
        if is_removed { "its record is removed: mount it again" } else { "unmount it and remove it (tarpon cache rm)" };
    let layers: Vec<String> = raised.iter().map(|(was, _)| was.digest.to_string()).collect();
    let cause = format!("the index that it was mounted with does not match {}", layers.join(" or "));
    Err(Error::new(ErrorKind::Refused, "verify the image", cause).hint(hint))
}

/// How a chunk table compares with the one made locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// It is equal, or cuts the same bytes differently.
    Same,
    /// It cuts objects differently that are not local.
    Unknown,
    /// An object contradicts it.
    Lie,
}

fn cut(store: &Store, known: &[u8], chunks: &[u8]) -> std::result::Result<Cut, StoreError> {
    let (Some(known), Some(ours)) = (lists(known), lists(chunks)) else { return Ok(Cut::Unknown) };
    if !known.keys().eq(ours.keys()) {
        return Ok(Cut::Lie);
    }
    let mut cut = Cut::Same;
    for (id, list) in known.iter().filter(|(id, list)| ours.get(id) != Some(list)) {
        match is_list(store, id, list)? {
            Some(true) => {}
            Some(false) => return Ok(Cut::Lie),
            None => cut = Cut::Unknown,
        }
    }
    Ok(cut)
}

/// Whether the trees are equal, with the same contents wherever the known one names contents by their digests. A SOCI index does not: only
/// the sizes of its files can be compared.
fn same_but_names(known: &LoadedImage, tree: &[u8]) -> bool {
    let Ok(chunks) = ChunkTable::open(known.chunks.as_ref()) else { return false };
    let is_by_place = |object: &ObjectId| {
        let entry = chunks.find(object).and_then(|object| chunks.chunk(object.chunks.start));
        entry.is_some_and(|entry| !entry.chunk.place.names_content())
    };
    let (Some(was), Some(is)) = (lines(known.tree.as_ref()), lines(tree)) else { return false };
    let same_object = |was: &Option<ObjectId>, is: &Option<ObjectId>| {
        was == is || (is.is_some() && was.as_ref().is_some_and(is_by_place))
    };
    was.len() == is.len() && was.iter().zip(&is).all(|(was, is)| was.0 == is.0 && same_object(&was.1, &is.1))
}

/// All names of a tree: a digest of each entry without its content, and its content.
fn lines(tree: &[u8]) -> Option<Vec<(Digest, Option<ObjectId>)>> {
    let mut lines = Vec::new();
    let mut take = |mut line: Line<'_>| {
        let object = line.object.take();
        lines.push((Digest::of(line.to_string().as_bytes()), object));
    };
    erofs::Image::open(tree).ok()?.lines(&mut take).ok()?;
    Some(lines)
}

/// The objects in a chunk table: their chunks' lengths and digests. `None` if it is not a chunk table.
fn lists(table: &[u8]) -> Option<BTreeMap<ObjectId, Vec<Piece>>> {
    let table = ChunkTable::open(table).ok()?;
    let list = |chunks: Range<u32>| {
        let chunks = chunks.filter_map(|number| table.chunk(number));
        chunks.map(|entry| piece(&entry.chunk)).collect()
    };
    Some(table.objects().map(|(id, object)| (id, list(object.chunks))).collect())
}
