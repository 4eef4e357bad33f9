//! Decodes columns to an index. Nothing in them is trusted.

use tarpon_oci::{Blob, Digest, limits};

use super::chunks::PlaceReader;
use super::columns::{Columns, Owner, VERSION, kind};
use super::error::InvalidPacked;
use crate::Allowance;
use crate::index::{
    Assembler, Attributes, Chunk, ChunkPlace, Codec, Device, Duplicates, FileContent, LayerIndex, LayerPath, Node,
    Timestamp, XattrSet, is_marker,
};

/// The index that was [packed](super::pack), of the layer `blob`.
///
/// # Errors
/// [`InvalidPacked`].
pub fn unpack(bytes: &[u8], blob: Blob) -> Result<LayerIndex, InvalidPacked> {
    unpack_within(bytes, blob, &Allowance::of(bytes.len()))
}

/// As [`unpack`], for a part of an image within `allowance`. The columns themselves are not charged: the caller knows their author.
///
/// # Errors
/// [`InvalidPacked`].
pub fn unpack_within(bytes: &[u8], blob: Blob, allowance: &Allowance) -> Result<LayerIndex, InvalidPacked> {
    let columns: Columns = match postcard::take_from_bytes::<u16>(bytes) {
        Ok((VERSION, _)) => postcard::from_bytes(bytes).map_err(|_| InvalidPacked::Malformed)?,
        Ok(_) => return Err(InvalidPacked::Version),
        Err(_) => return Err(InvalidPacked::Malformed),
    };
    let mut reader = Reader::new(&columns, blob, allowance)?;
    for kind in &columns.kinds {
        reader.entry(*kind)?;
    }
    let layer = reader.finish()?;
    let mut index = layer.finish().map_err(|(_, problem)| problem)?;
    index.checkpoints = columns.checkpoints;
    Ok(index)
}

struct Reader<'a> {
    layer: Assembler,
    blob: Blob,
    columns: &'a Columns,
    shared: std::slice::Iter<'a, u16>,
    paths: &'a [u8],
    targets: &'a [u8],
    devices: std::slice::Iter<'a, (u32, u32)>,
    owner: std::slice::Iter<'a, u32>,
    seconds: std::slice::Iter<'a, i64>,
    nanoseconds: std::slice::Iter<'a, u32>,
    sizes: std::slice::Iter<'a, u64>,
    counts: std::slice::Iter<'a, u32>,
    chunk_sizes: std::slice::Iter<'a, u64>,
    digests: std::slice::Iter<'a, [u8; 32]>,
    places: PlaceReader<'a>,
    path: Vec<u8>,
    second: i64,
    holes: u64,
}

impl<'a> Reader<'a> {
    fn new(columns: &'a Columns, blob: Blob, allowance: &Allowance) -> Result<Self, InvalidPacked> {
        let (digests, rest) = columns.digests.as_chunks();
        if !rest.is_empty() {
            return Err(InvalidPacked::Column("digests"));
        }
        let is_possible = columns.checkpoints.iter().all(|checkpoint| checkpoint.is_possible(blob.size));
        if !is_possible || !columns.checkpoints.is_sorted_by(|one, other| one.offset < other.offset) {
            return Err(InvalidPacked::Column("checkpoints"));
        }
        Ok(Self {
            layer: Assembler::new(Duplicates::Refuse, allowance),
            blob,
            columns,
            shared: columns.shared.iter(),
            paths: &columns.paths,
            targets: &columns.targets,
            devices: columns.devices.iter(),
            owner: columns.owner.iter(),
            seconds: columns.seconds.iter(),
            nanoseconds: columns.nanoseconds.iter(),
            sizes: columns.sizes.iter(),
            counts: columns.counts.iter(),
            chunk_sizes: columns.chunks.sizes.iter(),
            digests: digests.iter(),
            places: PlaceReader::new(&columns.chunks)?,
            path: Vec::new(),
            second: 0,
            holes: 0,
        })
    }

    fn entry(&mut self, kind: u8) -> Result<(), InvalidPacked> {
        let path = self.path()?;
        let node = match kind {
            kind::WHITEOUT | kind::OPAQUE => return Ok(self.layer.mark(path, kind == kind::OPAQUE)?),
            kind::DIRECTORY => Node::Directory,
            kind::FILE => Node::File(self.file()?.into()),
            kind::SYMLINK => Node::Symlink(Box::new(self.target()?.into())),
            kind::HARD_LINK => {
                let target = LayerPath::from_normal(self.target()?).ok_or(InvalidPacked::Column("links"))?;
                Node::HardLink(target.into())
            }
            kind::CHAR_DEVICE => Node::CharDevice(self.device()?),
            kind::BLOCK_DEVICE => Node::BlockDevice(self.device()?),
            kind::FIFO => Node::Fifo,
            _ => return Err(InvalidPacked::Column("kinds")),
        };
        let attributes = match node {
            Node::HardLink(_) => Attributes::default(),
            _ => self.attributes()?,
        };
        Ok(self.layer.insert_sharing_if(path, node, attributes, |known, own| known == own)?)
    }

    /// Checks that everything was used.
    fn finish(mut self) -> Result<Assembler, InvalidPacked> {
        let left = [
            ("paths", self.shared.len() + self.paths.len()),
            ("links", self.targets.len()),
            ("devices", self.devices.len()),
            ("attributes", self.owner.len() + self.seconds.len() + self.nanoseconds.len()),
            ("sizes", self.sizes.len() + self.counts.len() + self.chunk_sizes.len()),
            ("digests", self.digests.len()),
            ("places", usize::from(!self.places.is_at_end())),
        ];
        if let Some((column, _)) = left.into_iter().find(|(_, left)| *left > 0) {
            return Err(InvalidPacked::Column(column));
        }
        self.layer.count_dropped(self.columns.dropped_xattrs);
        Ok(self.layer)
    }

    fn path(&mut self) -> Result<LayerPath, InvalidPacked> {
        let wrong = InvalidPacked::Column("paths");
        let shared = usize::from(*self.shared.next().ok_or(wrong)?);
        if shared > self.path.len() {
            return Err(wrong);
        }
        self.path.truncate(shared);
        let rest = take_text(&mut self.paths).ok_or(wrong)?;
        if shared + rest.len() > limits::PATH_BYTES {
            return Err(wrong);
        }
        self.path.extend_from_slice(rest);
        // Markers are kinds of entry here. As a name it would become a whiteout in every tar that is made of the image.
        if is_marker(&self.path) {
            return Err(wrong);
        }
        LayerPath::from_normal(&self.path).ok_or(wrong)
    }

    fn target(&mut self) -> Result<&'a [u8], InvalidPacked> {
        take_text(&mut self.targets).ok_or(InvalidPacked::Column("links"))
    }

    fn device(&mut self) -> Result<Device, InvalidPacked> {
        let wrong = InvalidPacked::Column("devices");
        let (major, minor) = *self.devices.next().ok_or(wrong)?;
        let is_valid = u64::from(major) <= limits::DEVICE_MAJOR && u64::from(minor) <= limits::DEVICE_MINOR;
        if is_valid { Ok(Device { major, minor }) } else { Err(wrong) }
    }

    fn attributes(&mut self) -> Result<Attributes, InvalidPacked> {
        let wrong = InvalidPacked::Column("attributes");
        let owner = self.owner.next().and_then(|number| self.columns.owners.get(usize::try_from(*number).ok()?));
        let Owner { mode, uid, gid, xattrs } = owner.ok_or(wrong)?;
        let nanoseconds = *self.nanoseconds.next().ok_or(wrong)?;
        self.second = self.second.wrapping_add(*self.seconds.next().ok_or(wrong)?);
        let ids = [*uid, *gid].into_iter().all(|id| u64::from(id) <= limits::ID);
        if *mode > 0o7777 || nanoseconds >= 1_000_000_000 || !ids {
            return Err(wrong);
        }
        let mut set = XattrSet::default();
        for xattr in xattrs {
            set.insert(&xattr.name, &xattr.value)?;
        }
        let (xattrs, dropped) = set.take();
        self.layer.count_dropped(dropped);
        let mtime = Timestamp { seconds: self.second, nanoseconds };
        Ok(Attributes { mode: *mode, uid: *uid, gid: *gid, mtime, xattrs })
    }

    fn file(&mut self) -> Result<FileContent, InvalidPacked> {
        let size = *self.sizes.next().ok_or(InvalidPacked::Column("sizes"))?;
        let first_chunk = self.layer.next_chunk()?;
        if size == 0 {
            return Ok(FileContent { size, object: Digest::of(b""), first_chunk, chunk_count: 0 });
        }
        if size > limits::FILE_BYTES {
            return Err(InvalidPacked::Column("sizes"));
        }
        let count = *self.counts.next().ok_or(InvalidPacked::Column("sizes"))?;
        let (chunk_count, own) = (count / 2, count % 2 == 1);
        let object = self.digest()?;
        let mut object_offset = 0;
        for _ in 0..chunk_count {
            let chunk = match chunk_count {
                1 => size,
                _ => *self.chunk_sizes.next().ok_or(InvalidPacked::Column("sizes"))?,
            };
            let digest = if own { self.digest()? } else { object };
            let place = self.places.next(chunk)?;
            let chunk = Chunk { object_offset, size: chunk, digest, place };
            self.check(&chunk)?;
            object_offset = object_offset.checked_add(chunk.size).ok_or(InvalidPacked::Chunks)?;
            self.layer.push_chunk(chunk)?;
        }
        if object_offset != size {
            return Err(InvalidPacked::Chunks);
        }
        Ok(FileContent { size, object, first_chunk, chunk_count })
    }

    fn digest(&mut self) -> Result<Digest, InvalidPacked> {
        self.digests.next().map(|bytes| Digest::from_bytes(*bytes)).ok_or(InvalidPacked::Column("digests"))
    }

    /// Checks that the chunk can be fetched and decoded.
    fn check(&mut self, chunk: &Chunk) -> Result<(), InvalidPacked> {
        let ChunkPlace::Blob { codec, offset, length, skip } = chunk.place else {
            self.holes = self.holes.saturating_add(chunk.size);
            let is_fine = chunk.size > 0 && self.holes <= limits::SPARSE_HOLE_BYTES;
            return if is_fine { Ok(()) } else { Err(InvalidPacked::Chunks) };
        };
        let end = offset.checked_add(length).ok_or(InvalidPacked::Chunks)?;
        let decoded = skip.checked_add(chunk.size).ok_or(InvalidPacked::Chunks)?;
        let is_fine = chunk.size > 0
            && match codec {
                Codec::Stream => skip == 0 && length == chunk.size,
                Codec::Raw => end <= self.blob.size && decoded <= length && chunk.size <= limits::CHUNK_BYTES,
                Codec::Gzip | Codec::Zstd | Codec::Deflate => {
                    end <= self.blob.size
                        && length <= limits::CHUNK_ENCODED_BYTES
                        && chunk.size <= limits::CHUNK_BYTES
                        && decoded <= limits::MEMBER_BYTES
                }
                // Names of such objects are computed from the ztoc and cannot be stated.
                Codec::CheckedSpan => false,
            };
        let has_checkpoint = codec != Codec::Deflate
            || self.columns.checkpoints.binary_search_by_key(&offset, |checkpoint| checkpoint.offset).is_ok();
        if is_fine && has_checkpoint { Ok(()) } else { Err(InvalidPacked::Chunks) }
    }
}

/// Takes the bytes up to the next NUL, and the NUL.
fn take_text<'a>(texts: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = texts.iter().position(|byte| *byte == 0)?;
    let text = &texts[..end];
    *texts = &texts[end + 1..];
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of an index without entries whose columns were changed.
    fn refusal(change: impl Fn(&mut Columns)) -> Option<InvalidPacked> {
        let mut columns = Columns { version: VERSION, ..Columns::default() };
        change(&mut columns);
        let bytes = postcard::to_stdvec(&columns).unwrap();
        unpack(&bytes, Blob { digest: Digest::of(b""), size: 1 << 20 }).err()
    }

    #[test]
    fn what_is_written_value_by_value_are_the_columns() {
        let file = |path: &[u8], first_chunk, chunk_count| {
            let size = 300 * u64::from(chunk_count);
            let content = FileContent { size, object: Digest::of(path), first_chunk, chunk_count };
            let attributes = Attributes { uid: 1000, mode: 0o644, ..Attributes::default() };
            let path = LayerPath::from_normal(path).unwrap();
            crate::index::Entry { path, node: Node::File(content.into()), attributes: attributes.into() }
        };
        let chunk = |number: u64, digest: &[u8]| {
            let place = ChunkPlace::Blob { codec: Codec::Raw, offset: 700 * number, length: 300, skip: 0 };
            Chunk { object_offset: 300 * (number % 2), size: 300, digest: Digest::of(digest), place }
        };
        let chunks = vec![chunk(0, b"one"), chunk(1, b"two"), chunk(2, b"small")];
        let entries = vec![file(b"large", 0, 2), file(b"small", 2, 1), file(b"empty", 3, 0)];
        let index = LayerIndex { entries, chunks, dropped_xattrs: 500, ..LayerIndex::default() };
        let packed = super::super::pack(&index);
        let columns: Columns = postcard::from_bytes(&packed).unwrap();
        assert_eq!((columns.kinds.len(), columns.digests.len(), columns.chunks.place.len()), (3, 4 * 32, 3));
        assert_eq!(postcard::to_stdvec(&columns).unwrap(), packed);
        assert_eq!(super::super::Packed::new(&index).measure(), (packed.len(), Digest::of(&packed)));
    }

    #[test]
    fn values_that_belong_to_no_entry_are_refused_in_each_column() {
        type Change = (&'static str, fn(&mut Columns));
        assert_eq!(refusal(|_| {}), None);
        let changes: [Change; 12] = [
            ("paths", |columns| columns.shared.push(0)),
            ("paths", |columns| columns.paths.push(0)),
            ("links", |columns| columns.targets.push(0)),
            ("devices", |columns| columns.devices.push((0, 0))),
            ("attributes", |columns| columns.owner.push(0)),
            ("attributes", |columns| columns.seconds.push(0)),
            ("attributes", |columns| columns.nanoseconds.push(0)),
            ("sizes", |columns| columns.sizes.push(0)),
            ("sizes", |columns| columns.counts.push(0)),
            ("sizes", |columns| columns.chunks.sizes.push(0)),
            ("digests", |columns| columns.digests.extend([0; 32])),
            ("places", |columns| columns.chunks.place.push(0)),
        ];
        for (column, change) in changes {
            assert_eq!(refusal(change), Some(InvalidPacked::Column(column)));
        }
        assert_eq!(refusal(|columns| columns.chunks.skip.push(0)), Some(InvalidPacked::Column("places")));
        assert_eq!(refusal(|columns| columns.digests.push(0)), Some(InvalidPacked::Column("digests")));
        let longer = |columns: &mut Columns| {
            (columns.kinds, columns.shared, columns.paths) = (vec![kind::FIFO], vec![1], b"a\0".to_vec());
        };
        assert_eq!(refusal(longer), Some(InvalidPacked::Column("paths")), "it shares more than the path before has");
        // Of three columns with one name, values in two do not cancel each other out.
        let two = |columns: &mut Columns| (columns.seconds.push(0), columns.owner.push(0)).0;
        assert_eq!(refusal(two), Some(InvalidPacked::Column("attributes")));
    }
}
