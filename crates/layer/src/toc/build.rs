//! Builds a [`LayerIndex`] from the entries of a TOC.

use std::borrow::Cow;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tarpon_oci::{Digest, limits};

use super::claim::Format;
use super::error::{EntryProblem, NotLazy, TocError};
use super::json::{self, JsonError, RawEntry};
use crate::Allowance;
use crate::index::{
    Assembler, Attributes, Chunk, ChunkPlace, Codec, Device, Duplicates, FileContent, InvalidEntry, LayerIndex,
    LayerName, LayerPath, NO_DIGEST, Node, Timestamp, XattrSet,
};
use crate::time;

/// The character that JSON writers put in place of bytes that are not UTF-8.
const REPLACEMENT: char = '\u{fffd}';

/// Parses `json` as the TOC of a blob whose data ends at `data_end`. Also returns the end of the part of the blob to prefetch.
pub(super) fn index(
    json: &[u8],
    format: Format,
    data_end: u64,
    allowance: &Allowance,
) -> Result<(LayerIndex, Option<u64>), TocError> {
    let mut builder = Builder {
        format,
        data_end,
        layer: Assembler::new(Duplicates::Refuse, allowance).without_order(),
        xattrs: XattrSet::default(),
        current: Current::None,
        starts: Vec::new(),
        ends_with_end: false,
        holes: 0,
        landmark: None,
        is_not_prefetched: false,
    };
    let taken = json::parse(json, &mut |entry| {
        let name = entry.name.clone();
        builder.take(entry).map_err(|problem| problem.at(name.as_deref().unwrap_or_default()))
    });
    match taken {
        Ok(()) => {
            let prefetch = builder.prefetch();
            Ok((builder.finish()?, prefetch))
        }
        Err(JsonError::Taker(error)) => Err(error),
        Err(JsonError::Json(message)) => Err(TocError::Json(message)),
    }
}

struct Builder<'a> {
    format: Format,
    data_end: u64,
    layer: Assembler,
    xattrs: XattrSet,
    current: Current<'a>,
    /// Offsets of members (or frames), as far as chunks name them.
    starts: Vec<u64>,
    /// Whether the last of them is actually the end of a file, where the next chunk may start.
    ends_with_end: bool,
    /// Bytes of all holes.
    holes: u64,
    /// The beginning of the chunks behind the landmark.
    landmark: Option<u64>,
    is_not_prefetched: bool,
}

/// The file that `chunk` entries belong to.
enum Current<'a> {
    None,
    File(Box<File<'a>>),
    /// A file that is not part of the image.
    Hidden,
}

struct File<'a> {
    name: Cow<'a, str>,
    path: LayerPath,
    attributes: Attributes,
    size: u64,
    digest: Option<Digest>,
    end_offset: Option<u64>,
    first_chunk: u32,
    /// End of the part of the file that the chunks so far cover.
    covered: u64,
    count: u32,
    /// Digest of the only chunk so far.
    only_digest: Option<Digest>,
    lacks_digest: bool,
}

impl<'a> Builder<'a> {
    fn take(&mut self, mut raw: RawEntry<'a>) -> Result<(), EntryProblem> {
        let kind = raw.kind.take().ok_or(EntryProblem::Field("type"))?;
        if kind == "chunk" {
            return self.take_chunk(&raw);
        }
        self.end_file()?;
        let name = raw.name.take().ok_or(EntryProblem::Field("name"))?;
        let path = match LayerName::parse(name.as_bytes())? {
            LayerName::Entry(path) => path,
            marker => return self.take_marker(marker, &raw),
        };
        if name.contains(REPLACEMENT) {
            return Err(EntryProblem::NotLazy(NotLazy::NameNotUtf8(name.into_owned())));
        }
        let node = match &*kind {
            "reg" if super::is_toc_file(&path) => {
                self.note_start(&raw)?;
                self.note_landmark(&path, &raw);
                self.current = Current::Hidden;
                return Ok(());
            }
            "reg" => return self.begin_file(name, path, &raw),
            "dir" => Node::Directory,
            "symlink" => Node::Symlink(Box::new(link_name(&raw)?.as_bytes().into())),
            "hardlink" => {
                let target = LayerPath::from_tar_name(link_name(&raw)?.as_bytes());
                Node::HardLink(target.map_err(InvalidEntry::LinkPath)?.into())
            }
            "char" => Node::CharDevice(device(&raw)?),
            "block" => Node::BlockDevice(device(&raw)?),
            "fifo" => Node::Fifo,
            other => return Err(EntryProblem::Type(other.chars().take(40).collect())),
        };
        let attributes = self.attributes(&raw)?;
        Ok(self.layer.insert(path, node, attributes)?)
    }

    fn take_marker(&mut self, marker: LayerName, raw: &RawEntry<'a>) -> Result<(), EntryProblem> {
        self.note_start(raw)?;
        self.current = Current::Hidden;
        match marker {
            LayerName::Whiteout(path) if has_replacement(&path) => {
                Err(EntryProblem::NotLazy(NotLazy::NameNotUtf8(path.to_string())))
            }
            LayerName::Opaque(path) if has_replacement(&path) => {
                Err(EntryProblem::NotLazy(NotLazy::NameNotUtf8(path.to_string())))
            }
            LayerName::Whiteout(path) => Ok(self.layer.mark(path, false)?),
            LayerName::Opaque(path) => Ok(self.layer.mark(path, true)?),
            LayerName::Entry(_) | LayerName::Metadata => Ok(()),
        }
    }

    fn begin_file(&mut self, name: Cow<'a, str>, path: LayerPath, raw: &RawEntry<'a>) -> Result<(), EntryProblem> {
        let size = raw.size.unwrap_or(0);
        if size > limits::FILE_BYTES {
            return Err(EntryProblem::Field("size"));
        }
        let file = File {
            name,
            path,
            attributes: self.attributes(raw)?,
            size,
            digest: raw.digest.as_deref().map(|text| digest(text, "digest")).transpose()?,
            end_offset: raw.end_offset,
            first_chunk: self.layer.next_chunk()?,
            covered: 0,
            count: 0,
            only_digest: None,
            lacks_digest: false,
        };
        self.current = Current::File(Box::new(file));
        if size == 0 {
            return Ok(());
        }
        self.take_part(raw)
    }

    fn take_chunk(&mut self, raw: &RawEntry<'a>) -> Result<(), EntryProblem> {
        match &self.current {
            Current::None => Err(EntryProblem::StrayChunk),
            Current::Hidden => self.note_start(raw),
            Current::File(file) => {
                let is_stray = raw.name.as_deref().is_some_and(|name| !name.is_empty() && *name != *file.name);
                if is_stray { Err(EntryProblem::StrayChunk) } else { self.take_part(raw) }
            }
        }
    }

    /// Adds the chunk that an entry (`reg` or `chunk`) of the current file describes.
    fn take_part(&mut self, raw: &RawEntry<'a>) -> Result<(), EntryProblem> {
        self.note_start(raw)?;
        let Current::File(file) = &mut self.current else { return Err(EntryProblem::StrayChunk) };
        let skip = raw.inner_offset.unwrap_or(0);
        // A header comes first in any tar, so no chunk starts at 0. A chunk in the first member has no offset.
        let offset = raw.offset.unwrap_or(0);
        if offset == 0 && (skip == 0 || self.format == Format::ZstdChunked) {
            return Err(EntryProblem::Field("offset"));
        }
        let object_offset = raw.chunk_offset.unwrap_or(0);
        if object_offset != file.covered {
            return Err(EntryProblem::Gap);
        }
        let left = file.size.checked_sub(file.covered).filter(|left| *left > 0).ok_or(EntryProblem::Gap)?;
        let size = raw.chunk_size.filter(|size| *size != 0).unwrap_or(left);
        if size > left {
            return Err(EntryProblem::Gap);
        }
        let codec = match self.format {
            Format::Estargz => Codec::Gzip,
            Format::ZstdChunked => Codec::Zstd,
        };
        let place = match raw.chunk_type.as_deref() {
            None | Some("") => ChunkPlace::Blob { codec, offset, length: 0, skip },
            Some("zeros") => {
                self.holes = self.holes.saturating_add(size);
                if self.holes > limits::SPARSE_HOLE_BYTES {
                    return Err(EntryProblem::Holes);
                }
                ChunkPlace::Zeros
            }
            Some(_) => return Err(EntryProblem::Field("chunkType")),
        };
        let is_too_large = size > limits::CHUNK_BYTES || skip.saturating_add(size) > limits::MEMBER_BYTES;
        if place != ChunkPlace::Zeros && is_too_large {
            return Err(EntryProblem::NotLazy(NotLazy::ChunkTooLarge(file.name.to_string())));
        }
        let own = raw.chunk_digest.as_deref().filter(|text| !text.is_empty());
        let own = own.map(|text| digest(text, "chunkDigest")).transpose()?;
        // A chunk that is the whole file and has no digest has the file's.
        let known = own.or(if size == file.size { file.digest } else { None });
        file.lacks_digest |= known.is_none() && place != ChunkPlace::Zeros;
        file.only_digest = if file.count == 0 { own } else { None };
        file.count += 1;
        file.covered += size;
        let digest = if place == ChunkPlace::Zeros { NO_DIGEST } else { known.unwrap_or(NO_DIGEST) };
        Ok(self.layer.push_chunk(Chunk { object_offset, size, digest, place })?)
    }

    /// Ends the current file, if any, after its last chunk.
    fn end_file(&mut self) -> Result<(), EntryProblem> {
        let Current::File(file) = std::mem::replace(&mut self.current, Current::None) else { return Ok(()) };
        let File { name, path, attributes, size, digest, first_chunk, covered, count, .. } = *file;
        if covered != size {
            return Err(EntryProblem::Gap);
        }
        let missing = || EntryProblem::NotLazy(NotLazy::MissingDigest(name.to_string()));
        let whole = match (digest, file.only_digest) {
            _ if size == 0 => {
                let nothing = Digest::of(b"");
                if digest.is_some_and(|digest| digest != nothing) {
                    return Err(EntryProblem::DigestsDiffer);
                }
                nothing
            }
            (Some(whole), Some(only)) if count == 1 && whole != only => return Err(EntryProblem::DigestsDiffer),
            (Some(whole), _) => whole,
            (None, Some(only)) if count == 1 => only,
            (None, _) => return Err(missing()),
        };
        if file.lacks_digest {
            return Err(missing());
        }
        if let Some(end) = file.end_offset.filter(|_| count > 0) {
            self.note_end(end)?;
        }
        let content = FileContent { size, object: whole, first_chunk, chunk_count: count };
        Ok(self.layer.insert(path, Node::File(content.into()), attributes)?)
    }

    /// Records that the data of the current file ends at `end`.
    fn note_end(&mut self, end: u64) -> Result<(), EntryProblem> {
        if self.format == Format::Estargz {
            return Ok(());
        }
        if end > self.data_end {
            return Err(EntryProblem::OutOfBlob);
        }
        if self.starts.last().is_some_and(|last| end <= *last) {
            return Err(EntryProblem::Overlap);
        }
        self.starts.push(end);
        self.ends_with_end = true;
        Ok(())
    }

    /// Records a landmark of eStargz. Of several the first one counts, as it covers least.
    fn note_landmark(&mut self, path: &LayerPath, raw: &RawEntry<'a>) {
        if self.format != Format::Estargz {
            return;
        }
        self.is_not_prefetched |= path.as_bytes() == super::NO_PREFETCH_LANDMARK.as_bytes();
        if path.as_bytes() == super::PREFETCH_LANDMARK.as_bytes() && self.landmark.is_none() {
            // The bytes before it in its own member are needed too.
            let shares = u64::from(raw.inner_offset.unwrap_or(0) != 0);
            self.landmark = raw.offset.map(|offset| offset.saturating_add(shares));
        }
    }

    fn prefetch(&self) -> Option<u64> {
        self.landmark.filter(|landmark| *landmark > 0 && !self.is_not_prefetched)
    }

    /// Records where a member or frame starts, and checks that it is in the data.
    fn note_start(&mut self, raw: &RawEntry<'a>) -> Result<(), EntryProblem> {
        let Some(offset) = raw.offset.filter(|offset| *offset != 0) else { return Ok(()) };
        if offset >= self.data_end {
            return Err(EntryProblem::OutOfBlob);
        }
        let is_inside = raw.inner_offset.unwrap_or(0) != 0;
        if self.format == Format::ZstdChunked {
            let last = self.starts.last().copied().unwrap_or(0);
            if offset < last || (offset == last && !is_inside && !self.ends_with_end) {
                return Err(EntryProblem::Overlap);
            }
        }
        if !is_inside {
            self.starts.push(offset);
            self.ends_with_end = false;
        }
        Ok(())
    }

    fn attributes(&mut self, raw: &RawEntry<'a>) -> Result<Attributes, EntryProblem> {
        for (name, value) in &raw.xattrs {
            let value = BASE64.decode(&**value).map_err(|_| EntryProblem::Field("xattrs"))?;
            self.xattrs.insert(name.as_bytes(), &value)?;
            if name.contains(REPLACEMENT) {
                return Err(EntryProblem::NotLazy(NotLazy::NameNotUtf8(name.to_string())));
            }
        }
        let (xattrs, dropped) = self.xattrs.take();
        self.layer.count_dropped(dropped);
        let id = |number: Option<u64>, field| match number.unwrap_or(0) {
            number if number <= limits::ID => u32::try_from(number).map_err(|_| EntryProblem::Field(field)),
            _ => Err(EntryProblem::Field(field)),
        };
        let mtime = match raw.mod_time.as_deref() {
            None | Some("") => Timestamp::default(),
            Some(text) => time::parse(text).ok_or(EntryProblem::Field("modtime"))?,
        };
        let mode = u16::try_from(raw.mode.unwrap_or(0) & 0o7777).map_err(|_| EntryProblem::Field("mode"))?;
        Ok(Attributes { mode, uid: id(raw.uid, "uid")?, gid: id(raw.gid, "gid")?, mtime, xattrs })
    }

    fn finish(mut self) -> Result<LayerIndex, TocError> {
        let name = match &self.current {
            Current::File(file) => file.name.to_string(),
            _ => String::new(),
        };
        self.end_file().map_err(|problem| problem.at(&name))?;
        let finished = self.layer.finish();
        let mut index = finished.map_err(|(path, problem)| EntryProblem::from(problem).at(&path.to_string()))?;
        self.starts.push(self.data_end);
        self.starts.sort_unstable();
        self.starts.dedup();
        let too_large = set_lengths(&mut index.chunks, &self.starts);
        match too_large {
            None => Ok(index),
            Some(number) => Err(TocError::NotLazy(NotLazy::ChunkTooLarge(owner(&index, number)))),
        }
    }
}

/// Gives every chunk the encoded bytes up to the next start. Returns the number of the first chunk that is too large.
fn set_lengths(chunks: &mut [Chunk], starts: &[u64]) -> Option<usize> {
    for (number, chunk) in chunks.iter_mut().enumerate() {
        let ChunkPlace::Blob { offset, length, skip, .. } = &mut chunk.place else { continue };
        let next = starts.get(starts.partition_point(|start| start <= offset)).copied().unwrap_or(*offset);
        // A member may continue with foreign data, up to the whole rest of the blob. No compressor adds more than an eighth.
        let decoded = *skip + chunk.size;
        let bound = decoded + decoded / 8 + (64 << 10);
        *length = (next - *offset).min(bound);
        if *length > limits::CHUNK_ENCODED_BYTES {
            return Some(number);
        }
    }
    None
}

/// The name of the file that a chunk belongs to, for a message.
fn owner(index: &LayerIndex, chunk: usize) -> String {
    let owns = |content: &FileContent| {
        let first = content.first_chunk as usize;
        (first..first + content.chunk_count as usize).contains(&chunk)
    };
    let owner = index.entries.iter().find(|entry| matches!(&entry.node, Node::File(content) if owns(content)));
    owner.map(|entry| entry.path.to_string()).unwrap_or_default()
}

fn has_replacement(path: &LayerPath) -> bool {
    String::from_utf8_lossy(path.as_bytes()).contains(REPLACEMENT)
}

fn link_name<'r>(raw: &'r RawEntry<'_>) -> Result<&'r str, EntryProblem> {
    let link = raw.link_name.as_deref().filter(|link| !link.is_empty()).ok_or(EntryProblem::Field("linkName"))?;
    if link.contains(REPLACEMENT) {
        return Err(EntryProblem::NotLazy(NotLazy::NameNotUtf8(link.to_owned())));
    }
    Ok(link)
}

fn device(raw: &RawEntry<'_>) -> Result<Device, EntryProblem> {
    let number = |number: Option<u64>, limit, field| match number.unwrap_or(0) {
        number if number <= limit => u32::try_from(number).map_err(|_| EntryProblem::Field(field)),
        _ => Err(EntryProblem::Field(field)),
    };
    Ok(Device {
        major: number(raw.dev_major, limits::DEVICE_MAJOR, "devMajor")?,
        minor: number(raw.dev_minor, limits::DEVICE_MINOR, "devMinor")?,
    })
}

fn digest(text: &str, field: &'static str) -> Result<Digest, EntryProblem> {
    Digest::from_str(text).map_err(|_| EntryProblem::Field(field))
}
