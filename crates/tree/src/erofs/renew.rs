//! Rewrites images of an older version of the writer from their own content: their layers need not be local.

use tarpon_layer::{Attributes, Entry, FileContent, LayerIndex, LayerPath, Node, ObjectId, Xattr};

use super::error::ImageError;
use super::image::Image;
use super::write::write;
use crate::{Kind, Line, merge};

/// The tree of an image of an older version, as [`super::write()`] writes it now. None if the current version wrote it.
///
/// # Errors
/// As [`Image::open`], and if the image is inconsistent.
pub fn renew(bytes: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
    let image = Image::open_any(bytes)?;
    if !image.is_outdated() {
        return Ok(None);
    }
    let mut layer = LayerIndex::default();
    let mut problem = None;
    image.lines(&mut |line| match entry(&line) {
        Some(entry) => layer.entries.push(entry),
        None => problem = Some(ImageError::Corrupt("an entry that no layer has")),
    })?;
    let layers = [layer];
    match (problem, merge(&layers)) {
        (None, Ok(tree)) => Ok(Some(write(&tree))),
        (Some(problem), _) => Err(problem),
        (None, Err(_)) => Err(ImageError::Corrupt("entries that no layer has")),
    }
}

/// The line as an entry of a layer.
fn entry(line: &Line<'_>) -> Option<Entry> {
    let path = LayerPath::from_normal(line.path)?;
    if let Some(first) = line.same_as {
        let node = Node::HardLink(LayerPath::from_normal(first)?);
        return Some(Entry { path, node, attributes: Attributes::default() });
    }
    let node = match line.kind {
        Kind::Directory => Node::Directory,
        // The place of its chunks is not part of the image.
        Kind::File => Node::File(FileContent {
            size: line.size,
            object: line.object.unwrap_or_else(|| ObjectId::of(b"")),
            first_chunk: 0,
            chunk_count: 0,
        }),
        Kind::Symlink => Node::Symlink(line.target?.into()),
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
    Some(Entry { path, node, attributes })
}
