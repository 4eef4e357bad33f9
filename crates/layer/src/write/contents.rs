//! [`Contents`]: the table of contents while its layer is written.

use std::collections::HashMap;

use tarpon_oci::{Digest, limits};

use super::error::{Unrepresentable, WriteError};
use super::header::Facts;
use super::ordered::Landed;
use super::record::Record;
use crate::Allowance;
use crate::index::{Assembler, Duplicates, Entry, FileContent, InvalidEntry, LayerIndex, LayerName, LayerPath, Node};
use crate::tar::{TarEntry, TarKind, printable};
use crate::toc::{self, Format};

/// A file of the layer.
#[derive(Debug, Default)]
struct File {
    size: u64,
    /// Missing as long as the digest of its only chunk is.
    digest: Option<Digest>,
    /// Its chunks have these numbers.
    chunks: std::ops::Range<usize>,
}

/// A chunk of a file, and where it came to lie.
#[derive(Debug, Default)]
struct Chunk {
    /// In the file.
    offset: u64,
    size: u64,
    is_hole: bool,
    /// In the blob.
    start: u64,
    end: u64,
    digest: Option<Digest>,
}

/// How often what occurs in the layer.
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

pub(super) struct Contents {
    format: Format,
    /// What the tar means: what the TOC must say too.
    meaning: Assembler,
    /// `None` where a later entry of the same name counts.
    records: Vec<Option<Record>>,
    by_name: HashMap<(u8, Vec<u8>), usize>,
    files: Vec<File>,
    chunks: Vec<Chunk>,
    has_duplicates: bool,
}

impl Contents {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            meaning: Assembler::new(Duplicates::LastWins, &Allowance::unbounded()),
            records: Vec::new(),
            by_name: HashMap::new(),
            files: Vec::new(),
            chunks: Vec::new(),
            has_duplicates: false,
        }
    }

    /// Whether a name occurred twice.
    pub(super) fn has_duplicates(&self) -> bool {
        self.has_duplicates
    }

    /// Takes an entry of the tar. A file with content gets a number; what follows are its chunks.
    pub(super) fn entry(&mut self, entry: TarEntry, facts: Facts) -> Result<Option<usize>, WriteError> {
        let name = printable(&entry.name);
        let cannot = |problem| WriteError::Unrepresentable { name: name.clone(), problem };
        if entry.is_sparse {
            return Err(cannot(Unrepresentable::Sparse));
        }
        let file = (entry.kind == TarKind::File && entry.size > 0).then_some(self.files.len());
        let mut record = Record::of(&entry, facts, self.format).map_err(cannot)?;
        record.file = file;
        if entry.kind == TarKind::File {
            record.size = entry.size;
            record.digest = (file.is_none() && self.format == Format::Estargz).then(|| Digest::of(b""));
        }
        if file.is_some() {
            self.begin_file(entry.size);
        }
        let number = self.records.len();
        let key = self.mean(entry, file).map_err(|problem| WriteError::Entry { name, problem })?;
        if let Some(before) = self.by_name.insert(key, number) {
            self.records[before] = None;
            self.has_duplicates = true;
        }
        self.records.push(Some(record));
        Ok(file)
    }

    /// Adds a file that belongs to the format.
    pub(super) fn own_file(&mut self, name: &str, size: u64) -> usize {
        let file = self.files.len();
        self.begin_file(size);
        let record = Record { kind: "reg", name: name.to_owned(), size, file: Some(file), ..Record::default() };
        self.records.push(Some(record));
        file
    }

    fn begin_file(&mut self, size: u64) {
        let first = self.chunks.len();
        self.files.push(File { size, digest: None, chunks: first..first });
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
        file.chunks.end = number + 1;
        self.chunks.push(Chunk { offset, size, is_hole, ..Chunk::default() });
        Ok(number)
    }

    /// More bytes belong to a chunk than were known of before.
    pub(super) fn extend_chunk(&mut self, chunk: usize, size: u64) {
        self.chunks[chunk].size += size;
    }

    /// The digest of a chunk that is not known from its piece.
    pub(super) fn set_chunk_digest(&mut self, chunk: usize, digest: Digest) {
        self.chunks[chunk].digest = Some(digest);
    }

    /// The digest of the last file, as far as it is not that of its only chunk.
    pub(super) fn set_file_digest(&mut self, digest: Digest) {
        if let Some(file) = self.files.last_mut() {
            file.digest = Some(digest);
        }
    }

    pub(super) fn land(&mut self, landed: impl Iterator<Item = Landed>) {
        for Landed { chunk, start, end, digest } in landed {
            let chunk = &mut self.chunks[chunk];
            // A chunk may take several pieces; data never begins at 0, where a header is.
            if chunk.start == 0 {
                chunk.start = start;
            }
            chunk.end = end;
            chunk.digest = chunk.digest.or(digest);
        }
    }

    /// The JSON. Everything has landed.
    pub(super) fn json(&mut self, tar_split: Option<&Digest>) -> Result<Vec<u8>, WriteError> {
        for file in &mut self.files {
            if let (None, Some(only)) = (file.digest, self.chunks[file.chunks.clone()].first()) {
                file.digest = only.digest;
            }
        }
        let mut json = br#"{"version":1,"entries":["#.to_vec();
        let mut is_first = true;
        for record in self.records.iter_mut().flatten() {
            let parts = match record.file {
                Some(file) => place(record, &self.files[file], &self.chunks, self.format),
                None => Vec::new(),
            };
            for record in std::iter::once(&*record).chain(&parts) {
                if !std::mem::take(&mut is_first) {
                    json.push(b',');
                }
                serde_json::to_writer(&mut json, record).map_err(|error| WriteError::Blob(error.into()))?;
                if json.len() as u64 > limits::TOC_BYTES {
                    return Err(WriteError::TocTooLarge);
                }
            }
        }
        json.push(b']');
        if let Some(digest) = tar_split {
            json.extend_from_slice(format!(r#","tarSplitDigest":"{digest}""#).as_bytes());
        }
        json.push(b'}');
        Ok(json)
    }

    pub(super) fn counts(&self) -> Counts {
        let records = || self.records.iter().flatten();
        let files = || records().filter_map(|record| record.file).map(|file| &self.files[file]);
        Counts {
            entries: records().count() as u64,
            files: files().count() as u64,
            chunks: files().map(|file| file.chunks.len() as u64).sum(),
            pieces: 0,
        }
    }

    /// Compares what the TOC says, as our own reader has read it, with what the tar says.
    pub(super) fn check(self, toc: LayerIndex) -> Result<(), WriteError> {
        let meaning = self.meaning.finish();
        let mut meaning =
            meaning.map_err(|(path, problem)| WriteError::Entry { name: path.to_string(), problem })?.entries;
        for entry in &mut meaning {
            if let Node::File(content) = &mut entry.node {
                let file = file_of(&content.object).and_then(|file| self.files.get(file));
                content.object = file.and_then(|file| file.digest).unwrap_or(content.object);
            }
        }
        let mut told = toc.entries;
        for entry in &mut told {
            if let Node::File(content) = &mut entry.node {
                (content.first_chunk, content.chunk_count) = (0, 0);
            }
        }
        for entries in [&mut meaning, &mut told] {
            entries.sort_by(|one, other| (&one.path, rank(&one.node)).cmp(&(&other.path, rank(&other.node))));
        }
        let differ = meaning.iter().zip(&told).find(|(meant, told)| meant != told).map(|(meant, _)| meant);
        let differ = differ.or_else(|| meaning.get(told.len())).or_else(|| told.get(meaning.len()));
        match differ {
            None => Ok(()),
            Some(entry) => Err(WriteError::OrderMatters(entry.path.to_string())),
        }
    }

    /// Lets the assembler take the entry, and returns what tells names apart.
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
            // Readers hide it, so it means nothing.
            TarKind::File if toc::is_toc_file(&path) => return Ok(key),
            TarKind::File => {
                let object = file.map_or_else(|| Digest::of(b""), placeholder);
                Node::File(FileContent { size: entry.size, object, first_chunk: 0, chunk_count: 0 })
            }
            TarKind::Directory => Node::Directory,
            TarKind::Symlink => Node::Symlink(entry.link.into_boxed_slice()),
            TarKind::HardLink => Node::HardLink(LayerPath::from_tar_name(&entry.link).map_err(InvalidEntry::LinkPath)?),
            TarKind::CharDevice(device) => Node::CharDevice(device),
            TarKind::BlockDevice(device) => Node::BlockDevice(device),
            TarKind::Fifo => Node::Fifo,
        };
        self.meaning.insert(Entry { path, node, attributes: entry.attributes })?;
        Ok(key)
    }
}

/// Stands for the digest of a file until that is known.
fn placeholder(file: usize) -> Digest {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(file as u64).to_le_bytes());
    Digest::from_bytes(bytes)
}

/// The file that a digest stands for.
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

/// Completes the record of a file by what is known about its chunks; returns the records of those after the first.
fn place(record: &mut Record, file: &File, chunks: &[Chunk], format: Format) -> Vec<Record> {
    let chunks = &chunks[file.chunks.clone()];
    record.size = file.size;
    record.digest = file.digest;
    let is_single = chunks.len() == 1;
    let mut parts = Vec::new();
    for (number, chunk) in chunks.iter().enumerate() {
        let mut own = Record::default();
        let part = match number {
            0 => &mut *record,
            _ => &mut own,
        };
        part.offset = chunk.start;
        part.chunk_offset = chunk.offset;
        // zstd:chunked describes a file of one chunk of data by the file's own fields.
        if format == Format::Estargz || !is_single || chunk.is_hole {
            part.chunk_digest = chunk.digest;
        }
        if !is_single || chunk.is_hole {
            part.chunk_size = chunk.size;
        }
        part.chunk_type = chunk.is_hole.then_some("zeros");
        if number > 0 {
            (own.kind, own.name) = ("chunk", record.name.clone());
            parts.push(own);
        }
    }
    if let (Format::ZstdChunked, Some(last)) = (format, chunks.last()) {
        record.end_offset = last.end;
    }
    parts
}
