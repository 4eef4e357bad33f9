//! Builds a [`LayerIndex`] from a ztoc.

use std::str;

use tarpon_oci::{Blob, Digest, Verified, limits};

use super::flat::{Flat, Table};
use super::zinfo::{self, Span};
use super::{ZtocError, ZtocProblem, object_name};
use crate::Allowance;
use crate::index::{
    Assembler, Attributes, Chunk, ChunkPlace, Codec, Device, Duplicates, FileContent, InvalidEntry, LayerIndex,
    LayerName, LayerPath, Node, Timestamp, XattrSet,
};
use crate::spans::Checkpoint;
use crate::tar::pax::XATTR;
use crate::tar::{self, printable, sparse};
use crate::time;

/// The only version.
const VERSION: &[u8] = b"0.9";
/// Block size of a tar.
const BLOCK: u64 = tar::BLOCK as u64;

/// Options for a ztoc that are stored beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Its layer shows no xattrs.
    pub without_xattrs: bool,
}

/// Parses the ztoc of `layer`.
///
/// # Errors
/// [`ZtocError`].
pub fn index(ztoc: &Verified<impl AsRef<[u8]>>, layer: Blob, options: Options) -> Result<LayerIndex, ZtocError> {
    index_within(ztoc, layer, options, &Allowance::of((**ztoc).as_ref().len()))
}

/// As [`index()`], for a part of an image within `allowance`.
///
/// # Errors
/// [`ZtocError`].
pub fn index_within(
    ztoc: &Verified<impl AsRef<[u8]>>,
    layer: Blob,
    options: Options,
    allowance: &Allowance,
) -> Result<LayerIndex, ZtocError> {
    let bytes = (**ztoc).as_ref();
    if bytes.len() as u64 > limits::ZTOC_BYTES {
        return Err(ZtocError::TooLarge(bytes.len() as u64));
    }
    let flat = Flat::new(bytes);
    let root = flat.root()?;
    if root.bytes(0)? != VERSION {
        return Err(ZtocError::NotLazy("of an unknown version"));
    }
    let size = |number, what| u64::try_from(root.long(number)?).map_err(|_| ZtocError::Malformed(what));
    let claimed = size(2, "its layer has less than no bytes")?;
    if claimed != layer.size {
        return Err(ZtocError::OtherLayer { claimed, is: layer.size });
    }
    let tar_size = size(3, "its tar has less than no bytes")?;
    let spans = zinfo::spans(&root.table(5)?, layer.size)?;
    // The last one may be empty.
    if spans.last().is_some_and(|last| last.decoded > tar_size) {
        return Err(ZtocError::Malformed("a span begins behind the end of its tar"));
    }
    let mut builder = Builder {
        ztoc: *ztoc.digest(),
        tar_size,
        options,
        spans: &spans,
        layer: Assembler::new(Duplicates::LastWins, allowance),
        xattrs: XattrSet::default(),
        end: 0,
    };
    for (offset, entry) in in_order(&root)? {
        builder.take(offset, &entry)?;
    }
    let finished = builder.layer.finish();
    let mut index = finished.map_err(|(path, problem)| at(path.as_bytes(), problem.into()))?;
    index.checkpoints = spans.into_iter().map(Span::checkpoint).collect::<Vec<Checkpoint>>();
    Ok(index)
}

/// The entries in the order of the tar.
fn in_order<'a, 'f>(root: &Table<'a, 'f>) -> Result<Vec<(u64, Table<'a, 'f>)>, ZtocError> {
    let entries = root.table(4)?.offsets(0)?;
    if entries.len() > limits::ENTRIES {
        return Err(ZtocError::Malformed("it has too many entries"));
    }
    let with_offset = |entry: Result<Table<'a, 'f>, ZtocError>| {
        let entry = entry?;
        let offset = u64::try_from(entry.long(2)?).map_err(|_| ZtocError::Malformed("an entry is nowhere"))?;
        Ok((offset, entry))
    };
    let mut entries = entries.tables().map(with_offset).collect::<Result<Vec<_>, ZtocError>>()?;
    entries.sort_by_key(|(offset, _)| *offset);
    Ok(entries)
}

struct Builder<'s> {
    ztoc: Digest,
    /// Bytes of the tar.
    tar_size: u64,
    options: Options,
    spans: &'s [Span],
    layer: Assembler,
    xattrs: XattrSet,
    /// End of the previous entry in the tar.
    end: u64,
}

impl Builder<'_> {
    fn take(&mut self, offset: u64, entry: &Table<'_, '_>) -> Result<(), ZtocError> {
        let (name, kind) = (entry.bytes(0)?, entry.bytes(1)?);
        let size = u64::try_from(entry.long(3)?).unwrap_or(u64::MAX);
        let problem = |problem| at(name, problem);
        let is_file = kind == b"reg";
        self.place(offset, if is_file { size } else { 0 }).map_err(problem)?;
        let attributes = self.attributes(entry, is_file).map_err(|wrong| wrong.at(name))?;
        let path = match LayerName::parse(name).map_err(|error| at(name, error.into()))? {
            LayerName::Entry(path) => path,
            LayerName::Whiteout(path) => return self.layer.mark(path, false).map_err(|error| at(name, error.into())),
            LayerName::Opaque(path) => return self.layer.mark(path, true).map_err(|error| at(name, error.into())),
            LayerName::Metadata => return Ok(()),
        };
        let node = match kind {
            b"reg" => Node::File(self.file(offset, size).map_err(problem)?.into()),
            b"dir" => Node::Directory,
            b"symlink" => Node::Symlink(Box::new(entry.bytes(4)?.into())),
            b"hardlink" => {
                let target = LayerPath::from_tar_name(entry.bytes(4)?);
                Node::HardLink(target.map_err(|error| at(name, InvalidEntry::LinkPath(error).into()))?.into())
            }
            b"char" => Node::CharDevice(device(entry).map_err(|wrong| wrong.at(name))?),
            b"block" => Node::BlockDevice(device(entry).map_err(|wrong| wrong.at(name))?),
            b"fifo" => Node::Fifo,
            _ => return Err(at(name, ZtocProblem::Field("type"))),
        };
        self.layer.insert(path, node, attributes).map_err(|error| at(name, error.into()))
    }

    /// Checks that the content of the next entry at `offset` is behind the previous entry, with a header between them.
    fn place(&mut self, offset: u64, size: u64) -> Result<(), ZtocProblem> {
        let first = self.end.checked_next_multiple_of(BLOCK).and_then(|header| header.checked_add(BLOCK));
        let end = offset.checked_add(size).filter(|end| *end <= self.tar_size);
        match (first, end) {
            (Some(first), Some(end)) if offset >= first && offset.is_multiple_of(BLOCK) => self.end = end,
            _ => return Err(ZtocProblem::Place),
        }
        Ok(())
    }

    fn attributes(&mut self, entry: &Table<'_, '_>, is_file: bool) -> Result<Attributes, Wrong> {
        for record in entry.offsets(13)?.tables() {
            let record = record?;
            let (key, value) = (record.bytes(0)?, record.bytes(1)?);
            // The bytes of such a file in the tar are not its content.
            if is_file && key.starts_with(sparse::PREFIX) {
                return Err(ZtocProblem::Sparse.into());
            }
            match key.strip_prefix(XATTR) {
                Some(name) if !self.options.without_xattrs => {
                    self.xattrs.insert(name, value).map_err(ZtocProblem::from)?;
                }
                _ => {}
            }
        }
        let (xattrs, dropped) = self.xattrs.take();
        self.layer.count_dropped(dropped);
        let id = |number, field| match entry.uint(number)? {
            id if u64::from(id) <= limits::ID => Ok(id),
            _ => Err(Wrong::from(ZtocProblem::Field(field))),
        };
        let mtime = match str::from_utf8(entry.bytes(10)?) {
            Ok("") => Timestamp::default(),
            text => text.ok().and_then(time::parse).ok_or(ZtocProblem::Field("mod_time"))?,
        };
        let mode = u16::try_from(entry.long(5)? & 0o7777).map_err(|_| ZtocProblem::Field("mode"))?;
        Ok(Attributes { mode, uid: id(6, "uid")?, gid: id(7, "gid")?, mtime, xattrs })
    }

    /// The file whose content is in the tar from `offset` on, cut where spans begin.
    fn file(&mut self, offset: u64, size: u64) -> Result<FileContent, ZtocProblem> {
        let first_chunk = self.layer.next_chunk()?;
        if size == 0 {
            return Ok(FileContent { size, object: Digest::of(b""), first_chunk, chunk_count: 0 });
        }
        if size > limits::FILE_BYTES {
            return Err(ZtocProblem::Field("size"));
        }
        let (mut at, end) = (offset, offset + size);
        while at < end {
            let chunk = self.chunk(offset, at, end)?;
            self.layer.push_chunk(chunk)?;
            at += chunk.size;
        }
        let chunk_count = self.layer.next_chunk()? - first_chunk;
        Ok(FileContent { size, object: object_name(&self.ztoc, offset, size), first_chunk, chunk_count })
    }

    /// The chunk at `at` of the file from `start` to `end`: the part in one span that is decoded at once.
    fn chunk(&self, start: u64, at: u64, end: u64) -> Result<Chunk, ZtocProblem> {
        let next = self.spans.partition_point(|span| span.decoded <= at);
        let span = next.checked_sub(1).and_then(|number| self.spans.get(number)).ok_or(ZtocProblem::Place)?;
        let end = self.spans.get(next).map_or(end, |next| end.min(next.decoded));
        let (size, skip) = ((end - at).min(limits::CHUNK_BYTES), at - span.decoded);
        if span.length > limits::CHUNK_ENCODED_BYTES || skip + size > limits::MEMBER_BYTES {
            return Err(ZtocProblem::SpanTooLarge);
        }
        let place = ChunkPlace::Blob { codec: Codec::CheckedSpan, offset: span.offset, length: span.length, skip };
        Ok(Chunk { object_offset: at - start, size, digest: span.digest, place })
    }
}

fn device(entry: &Table<'_, '_>) -> Result<Device, Wrong> {
    let number = |number, limit, field| match u64::try_from(entry.long(number)?) {
        Ok(id) if id <= limit => u32::try_from(id).map_err(|_| Wrong::from(ZtocProblem::Field(field))),
        _ => Err(ZtocProblem::Field(field).into()),
    };
    Ok(Device {
        major: number(11, limits::DEVICE_MAJOR, "devmajor")?,
        minor: number(12, limits::DEVICE_MINOR, "devminor")?,
    })
}

/// An error of the buffer, or of the entry that is being read.
enum Wrong {
    Buffer(ZtocError),
    Entry(ZtocProblem),
}

impl Wrong {
    fn at(self, name: &[u8]) -> ZtocError {
        match self {
            Self::Buffer(error) => error,
            Self::Entry(problem) => at(name, problem),
        }
    }
}

impl From<ZtocError> for Wrong {
    fn from(error: ZtocError) -> Self {
        Self::Buffer(error)
    }
}

impl From<ZtocProblem> for Wrong {
    fn from(problem: ZtocProblem) -> Self {
        Self::Entry(problem)
    }
}

fn at(name: &[u8], problem: ZtocProblem) -> ZtocError {
    ZtocError::Entry { name: printable(name), problem }
}
