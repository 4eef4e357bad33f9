//! Rewrites images from their own content, without their layers: those of an older version of the writer, and for older kernels.

use tarpon_layer::{Attributes, Entry, FileContent, LayerIndex, LayerPath, Node, ObjectId, Shared, Xattr};

use super::error::ImageError;
use super::image::Image;
use super::prefixes::LongPrefixes;
use super::write::{write, write_with};
use crate::hide_objects::hide_objects;
use crate::{Kind, Line, Tree, merge};

/// The tree of an image of an older version, as [`super::write()`] writes it now. None if the current version wrote it.
///
/// # Errors
/// As [`Image::open`], and if the image is inconsistent.
pub fn renew(bytes: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
    let image = Image::open_any(bytes)?;
    if !image.is_outdated() {
        return Ok(None);
    }
    rewrite(&image, write).map(Some)
}

/// The tree of an image as [`super::write()`] writes it, for overlayfs of Linux 5.15 to 6.4, which has no data-only lower layers and
/// takes the directories of the objects as ordinary ones ([`hide_objects`]). Its EROFS has no long prefixes either.
///
/// # Errors
/// As [`Image::open`], and if the image is inconsistent or has whiteouts, which only the changes of a layer have.
pub fn for_ordinary_layers(bytes: &[u8]) -> Result<Vec<u8>, ImageError> {
    rewrite(&Image::open(bytes)?, |tree| write_with(LongPrefixes::None, &hide_objects(tree)))
}

fn rewrite(image: &Image<&[u8]>, write: impl FnOnce(&Tree<'_>) -> Vec<u8>) -> Result<Vec<u8>, ImageError> {
    let mut layer = LayerIndex::default();
    let mut problem = None;
    // Most entries have the same attributes as the one before.
    let mut last = Shared::default();
    image.lines(&mut |line| match entry(&line) {
        Some(mut entry) => {
            if entry.attributes == last {
                entry.attributes = last.clone();
            }
            last = entry.attributes.clone();
            layer.entries.push(entry);
        }
        None => problem = Some(ImageError::Corrupt("an entry that no layer has")),
    })?;
    let layers = [layer];
    match (problem, merge(&layers)) {
        (None, Ok(tree)) => Ok(write(&tree)),
        (Some(problem), _) => Err(problem),
        (None, Err(_)) => Err(ImageError::Corrupt("entries that no layer has")),
    }
}

/// The line as an entry of a layer.
fn entry(line: &Line<'_>) -> Option<Entry> {
    let path = LayerPath::from_normal(line.path)?;
    if let Some(first) = line.same_as {
        let node = Node::HardLink(Box::new(LayerPath::from_normal(first)?));
        return Some(Entry { path, node, attributes: Attributes::default().into() });
    }
    let node = match line.kind {
        Kind::Directory => Node::Directory,
        // The place of its chunks is not part of the image.
        Kind::File => Node::File(
            FileContent {
                size: line.size,
                object: line.object.unwrap_or_else(|| ObjectId::of(b"")),
                first_chunk: 0,
                chunk_count: 0,
            }
            .into(),
        ),
        Kind::Symlink => Node::Symlink(Box::new(line.target?.into())),
        Kind::CharDevice => Node::CharDevice(line.device?),
        Kind::BlockDevice => Node::BlockDevice(line.device?),
        Kind::Fifo => Node::Fifo,
    };
    let xattr = |(name, value): &(Vec<u8>, &[u8])| Xattr { name: name.as_slice().into(), value: (*value).into() };
    let attributes = Attributes {
        mode: line.mode,
        uid: line.uid,
        gid: line.gid,
        mtime: line.mtime,
        xattrs: line.xattrs.iter().map(xattr).collect(),
    };
    Some(Entry { path, node, attributes: attributes.into() })
}
