//! [`Contents`]: the table of contents while its layer is written.

use std::collections::HashMap;
use std::io;

use tarpon_oci::{Digest, limits};

use super::error::{Unrepresentable, WriteError};
use super::header::Facts;
use super::ordered::Landed;
use super::record::{Content, Kept, Record};
use crate::allowance::{Allowance, Share};
use crate::index::{Assembler, Duplicates, Entry, FileContent, InvalidEntry, LayerIndex, LayerName, LayerPath, Node};
use crate::tar::{TarEntry, TarKind, printable};
use crate::toc::{self, Format};

/// A file of the layer.
#[derive(Debug, Default)]
struct File {
    /// `None` as long as the digest of its only chunk is unknown.
    digest: Option<Digest>,
    /// Numbers of its chunks.
    chunks: std::ops::Range<usize>,
}

/// A chunk of a file, and its place in the blob.
#[derive(Debug, Default)]
struct Chunk {
    /// Offset in the file.
    offset: u64,
    size: u64,
    is_hole: bool,
    /// Offset in the blob.
    start: u64,
    end: u64,
    digest: Option<Digest>,
}

/// Counts of the contents of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries of the table of contents, its own files (landmark) included.
    pub entries: u64,
    /// Regular files with content.
    pub files: u64,
    /// Chunks of these files.
    pub chunks: u64,
    /// Independent gzip members or zstd frames, without those of the table of contents.
    pub pieces: u64,
}

/// Memory of a name in a map that doubles when it is full, without its bytes.
const NAME: u64 = 2 * size_of::<((u8, Vec<u8>), usize)>() as u64;
/// Memory of a chunk or file in a list that doubles when it is full.
const IN_LIST: u64 = 2 * size_of::<Chunk>() as u64;
/// The JSON reserves this many bytes more, and a part of its size: it does not double like a list.
const JSON_ROOM: usize = 64 << 10;
const JSON_ROOM_PART: usize = 8;

pub(super) struct Contents {
    format: Format,
    /// The layer as described by the tar, which the TOC must match.
    meaning: Assembler,
    /// `None` where a later entry of the same name counts.
    records: Vec<Option<Kept>>,
    by_name: HashMap<(u8, Vec<u8>), usize>,
    files: Vec<File>,
    chunks: Vec<Chunk>,
    has_duplicates: bool,
    /// Bytes of all records: the JSON is never shorter.
    record_bytes: u64,
    /// Memory of everything except `meaning`.
    memory: Share,
}

/// The layer as described by the tar, after the rest of the contents was dropped.
pub(super) struct Meaning {
    entries: Vec<Entry>,
}

/// The JSON of a table of contents, and the layer that it must describe.
pub(super) struct TocJson {
    pub(super) json: Vec<u8>,
    pub(super) meaning: Meaning,
    pub(super) counts: Counts,
}

impl Contents {
    /// Charges its memory to `allowance` before it is used.
    pub(super) fn new(format: Format, allowance: &Allowance) -> Self {
        Self {
            format,
            meaning: Assembler::new(Duplicates::LastWins, allowance),
            records: Vec::new(),
            by_name: HashMap::new(),
            files: Vec::new(),
            chunks: Vec::new(),
            has_duplicates: false,
            record_bytes: 0,
            memory: allowance.share(),
        }
    }

    /// Whether a name occurred twice.
    pub(super) fn has_duplicates(&self) -> bool {
        self.has_duplicates
    }

    /// Adds an entry of the tar. Returns a number for a file with content, whose chunks must follow.
    pub(super) fn entry(&mut self, entry: TarEntry, facts: Facts) -> Result<Option<usize>, WriteError> {
        let name = printable(&entry.name);
        let cannot = |problem| WriteError::Unrepresentable { name: name.clone(), problem };
        if entry.is_sparse {
            return Err(cannot(Unrepresentable::Sparse));
        }
        let file = (entry.kind == TarKind::File && entry.size > 0).then_some(self.files.len());
        let mut record = Record::of(&entry, facts, self.format).map_err(cannot)?;
        if entry.kind == TarKind::File {
            record.size = entry.size;
            record.digest = (file.is_none() && self.format == Format::Estargz).then(|| Digest::of(b""));
        }
        if file.is_some() {
            self.begin_file()?;
        }
        let number = self.records.len();
        let key = self.mean(entry, file).map_err(|problem| WriteError::Entry { name, problem })?;
        self.memory.take(NAME + key.1.len() as u64)?;
        if let Some(before) = self.by_name.insert(key, number) {
            self.records[before] = None;
            self.has_duplicates = true;
        }
        self.keep(&record, file)?;
        Ok(file)
    }

    fn keep(&mut self, record: &Record, file: Option<usize>) -> Result<(), WriteError> {
        let kept = Kept::of(record, file).map_err(WriteError::Blob)?;
        self.record_bytes += kept.bytes();
        if self.record_bytes > limits::TOC_BYTES {
            return Err(WriteError::TocTooLarge);
        }
        self.memory.take(kept.cost())?;
        self.records.push(Some(kept));
        Ok(())
    }

    /// Adds a file that belongs to the format.
    pub(super) fn own_file(&mut self, name: &str, size: u64) -> Result<(), WriteError> {
        let file = self.files.len();
        self.begin_file()?;
        self.keep(&Record { kind: "reg", name: name.to_owned(), size, ..Record::default() }, Some(file))
    }

    fn begin_file(&mut self) -> Result<(), WriteError> {
        self.memory.take(IN_LIST)?;
        let first = self.chunks.len();
        self.files.push(File { digest: None, chunks: first..first });
        Ok(())
    }

    /// Adds the next chunk of the last file, and returns its number.
    pub(super) fn chunk(&mut self, size: u64, is_hole: bool) -> Result<usize, WriteError> {
        let number = self.chunks.len();
        let Some(file) = self.files.last_mut() else { return Ok(number) };
        let last = self.chunks.last().filter(|_| !file.chunks.is_empty());
        let offset = last.map_or(0, |last| last.offset + last.size);
        if number >= limits::CHUNKS {
            return Err(WriteError::Entry { name: String::new(), problem: InvalidEntry::TooManyChunks });
        }
        self.memory.take(IN_LIST)?;
        file.chunks.end = number + 1;
        self.chunks.push(Chunk { offset, size, is_hole, ..Chunk::default() });
        Ok(number)
    }

    /// Adds bytes to a chunk that turned out to be longer.
    pub(super) fn extend_chunk(&mut self, chunk: usize, size: u64) {
        self.chunks[chunk].size += size;
    }

    /// Sets the digest of a chunk that is not known from its piece.
    pub(super) fn set_chunk_digest(&mut self, chunk: usize, digest: Digest) {
        self.chunks[chunk].digest = Some(digest);
    }

    /// Sets the digest of the last file, unless it is that of its only chunk.
    pub(super) fn set_file_digest(&mut self, digest: Digest) {
        if let Some(file) = self.files.last_mut() {
            file.digest = Some(digest);
        }
    }

    pub(super) fn land(&mut self, landed: impl Iterator<Item = Landed>) {
        for Landed { chunk, start, end, digest } in landed {
            let chunk = &mut self.chunks[chunk];
            // A chunk may take several pieces. Data never begins at 0, where a header is.
            if chunk.start == 0 {
                chunk.start = start;
            }
            chunk.end = end;
            chunk.digest = chunk.digest.or(digest);
        }
    }

    /// Returns the JSON. All pieces must be written.
    pub(super) fn tell(mut self, tar_split: Option<&Digest>) -> Result<TocJson, WriteError> {
        for file in &mut self.files {
            if let (None, Some(only)) = (file.digest, self.chunks[file.chunks.clone()].first()) {
                file.digest = only.digest;
            }
        }
        let counts = self.counts();
        // From here on only the entries are needed, and no name is looked up.
        self.by_name = HashMap::new();
        let meaning = Meaning::of(self.meaning, &self.files)?;
        let mut json = Json::new(self.memory.allowance());
        for record in self.records.into_iter().flatten() {
            match record.file {
                Some(file) => json.file(&record, &self.files[file], &self.chunks, self.format)?,
                None => json.part(|bytes| record.write(&Content::default(), bytes))?,
            }
        }
        Ok(TocJson { json: json.finish(tar_split), meaning, counts })
    }

    fn counts(&self) -> Counts {
        let records = || self.records.iter().flatten();
        let files = || records().filter_map(|record| record.file).map(|file| &self.files[file]);
        Counts {
            entries: records().count() as u64,
            files: files().count() as u64,
            chunks: files().map(|file| file.chunks.len() as u64).sum(),
            pieces: 0,
        }
    }

    /// Adds the entry to the assembler, and returns the key that distinguishes names.
    fn mean(&mut self, entry: TarEntry, file: Option<usize>) -> Result<(u8, Vec<u8>), InvalidEntry> {
        let path = match LayerName::parse(&entry.name)? {
            LayerName::Entry(path) => path,
            LayerName::Whiteout(path) => {
                self.meaning.mark(path.clone(), false)?;
                return Ok((1, path.as_bytes().to_vec()));
            }
            LayerName::Opaque(path) => {
                self.meaning.mark(path.clone(), true)?;
                return Ok((2, path.as_bytes().to_vec()));
            }
            LayerName::Metadata => return Ok((3, entry.name)),
        };
        let key = (0, path.as_bytes().to_vec());
        let node = match entry.kind {
            // Readers hide it, so it has no meaning.
            TarKind::File if toc::is_toc_file(&path) => return Ok(key),
            TarKind::File => {
                let object = file.map_or_else(|| Digest::of(b""), placeholder);
                Node::File(FileContent { size: entry.size, object, first_chunk: 0, chunk_count: 0 }.into())
            }
            TarKind::Directory => Node::Directory,
            TarKind::Symlink => Node::Symlink(Box::new(entry.link.into_boxed_slice())),
            TarKind::HardLink => {
                Node::HardLink(LayerPath::from_tar_name(&entry.link).map_err(InvalidEntry::LinkPath)?.into())
            }
            TarKind::CharDevice(device) => Node::CharDevice(device),
            TarKind::BlockDevice(device) => Node::BlockDevice(device),
            TarKind::Fifo => Node::Fifo,
        };
        self.meaning.insert(path, node, entry.attributes)?;
        Ok(key)
    }
}

impl Meaning {
    fn of(tar: Assembler, files: &[File]) -> Result<Self, WriteError> {
        let meaning = tar.finish();
        let mut entries =
            meaning.map_err(|(path, problem)| WriteError::Entry { name: path.to_string(), problem })?.entries;
        for entry in &mut entries {
            if let Node::File(content) = &mut entry.node {
                let file = file_of(&content.object).and_then(|file| files.get(file));
                content.object = file.and_then(|file| file.digest).unwrap_or(content.object);
            }
        }
        Ok(Self { entries })
    }

    /// Compares the TOC, as read by our own reader, with the tar.
    pub(super) fn check(self, toc: LayerIndex) -> Result<(), WriteError> {
        let mut meaning = self.entries;
        let mut toc_entries = toc.entries;
        for entry in &mut toc_entries {
            if let Node::File(content) = &mut entry.node {
                (content.first_chunk, content.chunk_count) = (0, 0);
            }
        }
        for entries in [&mut meaning, &mut toc_entries] {
            entries.sort_by(|one, other| (&one.path, rank(&one.node)).cmp(&(&other.path, rank(&other.node))));
        }
        let differ =
            meaning.iter().zip(&toc_entries).find(|(meant, toc_entries)| meant != toc_entries).map(|(meant, _)| meant);
        let differ = differ.or_else(|| meaning.get(toc_entries.len())).or_else(|| toc_entries.get(meaning.len()));
        match differ {
            None => Ok(()),
            Some(entry) => Err(WriteError::OrderMatters(entry.path.to_string())),
        }
    }
}

/// The JSON under construction.
struct Json {
    bytes: Vec<u8>,
    is_first: bool,
    memory: Share,
}

impl Json {
    fn new(allowance: &Allowance) -> Self {
        Self { bytes: br#"{"version":1,"entries":["#.to_vec(), is_first: true, memory: allowance.share() }
    }

    /// Appends one record.
    fn part(&mut self, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Result<(), WriteError> {
        if !std::mem::take(&mut self.is_first) {
            self.bytes.push(b',');
        }
        if self.bytes.capacity() - self.bytes.len() < JSON_ROOM {
            let room = JSON_ROOM + self.bytes.len() / JSON_ROOM_PART;
            self.memory.grow_to((self.bytes.len() + room) as u64)?;
            self.bytes.reserve_exact(room);
        }
        write(&mut self.bytes).map_err(WriteError::Blob)?;
        if self.bytes.len() as u64 > limits::TOC_BYTES { Err(WriteError::TocTooLarge) } else { Ok(()) }
    }

    /// Appends the record of a file, and those of its chunks after the first.
    fn file(&mut self, record: &Kept, file: &File, chunks: &[Chunk], format: Format) -> Result<(), WriteError> {
        let chunks = &chunks[file.chunks.clone()];
        for (number, chunk) in chunks.iter().enumerate() {
            let mut content = chunk.content(chunks.len() == 1, format);
            if number > 0 {
                self.part(|bytes| record.write_chunk(&content, bytes))?;
                continue;
            }
            content.digest = file.digest;
            if let (Format::ZstdChunked, Some(last)) = (format, chunks.last()) {
                content.end_offset = last.end;
            }
            self.part(|bytes| record.write(&content, bytes))?;
        }
        Ok(())
    }

    fn finish(self, tar_split: Option<&Digest>) -> Vec<u8> {
        let mut json = self.bytes;
        json.push(b']');
        if let Some(digest) = tar_split {
            json.extend_from_slice(format!(r#","tarSplitDigest":"{digest}""#).as_bytes());
        }
        json.push(b'}');
        json
    }
}

impl Chunk {
    /// The fields of a record about its content.
    fn content(&self, is_single: bool, format: Format) -> Content {
        // zstd:chunked describes a file of one chunk of data by the file's own fields.
        let has_digest = format == Format::Estargz || !is_single || self.is_hole;
        let has_size = !is_single || self.is_hole;
        Content {
            offset: self.start,
            chunk_offset: self.offset,
            chunk_digest: self.digest.filter(|_| has_digest),
            chunk_size: if has_size { self.size } else { 0 },
            chunk_type: self.is_hole.then_some("zeros"),
            ..Content::default()
        }
    }
}

/// A placeholder for the digest of a file until that is known.
fn placeholder(file: usize) -> Digest {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(file as u64).to_le_bytes());
    Digest::from_bytes(bytes)
}

/// The file of a placeholder.
fn file_of(digest: &Digest) -> Option<usize> {
    let (number, rest) = digest.as_bytes().split_first_chunk::<8>()?;
    if rest.iter().any(|byte| *byte != 0) {
        return None;
    }
    usize::try_from(u64::from_le_bytes(*number)).ok()
}

fn rank(node: &Node) -> u8 {
    match node {
        Node::Whiteout => 1,
        Node::Opaque => 2,
        _ => 0,
    }
}
