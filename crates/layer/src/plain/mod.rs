//! Layers without a table of contents: one walk over the tar returns the index, and passes on the files' bytes.
//!
//! Every file is hashed here, so content is proven when the sink's [`ObjectSink::finish`] is called. Fetching, decompressing and
//! the digest of the layer itself are up to the caller, in the reader that it passes.

use std::fmt;
use std::io::Read;

use tarpon_oci::{Digest, Hasher, Verified};

use crate::Allowance;
use crate::index::{
    Assembler, Chunk, ChunkPlace, Codec, Duplicates, FileContent, InvalidEntry, LayerIndex, LayerName, LayerPath,
    NO_DIGEST, Node,
};
use crate::spans::SpanStarts;
use crate::tar::{Piece, TarEntry, TarError, TarKind, TarReader, printable};
use crate::toc;

/// Longest chunk of an uncompressed layer: the most that one read of a large file fetches.
const RAW_CHUNK_BYTES: u64 = 4 << 20;

/// Receives the files of a layer, one after the other. Empty files are omitted.
pub trait ObjectSink {
    /// The error of the sink.
    type Error;

    /// Begins a file of `size` bytes.
    fn begin(&mut self, size: u64) -> Result<(), Self::Error>;

    /// Adds the next bytes of the file.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Adds `length` zeros that the layer does not contain.
    fn hole(&mut self, length: u64) -> Result<(), Self::Error>;

    /// Completes the file, with its digest.
    fn finish(&mut self, proof: Verified<()>) -> Result<(), Self::Error>;
}

/// How the bytes of a plain layer can be read again.
#[derive(Debug, Clone)]
pub enum Access {
    /// The blob is the tar itself: chunks are ranges of it ([`Codec::Raw`]).
    Random,
    /// The blob is compressed: chunks are places in the decoded layer ([`Codec::Stream`]), cut where spans begin, so that each has
    /// a place in one of them ([`LayerIndex::place_in_spans`]).
    Spans(SpanStarts),
}

impl Access {
    /// Whether the `known` chunks replace `own`, which have the same bytes and come later in the layer. Not if their holes differ: holes are
    /// never fetched, and each file is charged its own.
    fn serves(&self, known: &[Chunk], own: &[Chunk]) -> bool {
        let offset = |chunk: &Chunk| match chunk.place {
            ChunkPlace::Blob { offset, .. } => Some(offset),
            ChunkPlace::Zeros => None,
        };
        let data = |chunks: &[Chunk]| -> u64 {
            chunks.iter().filter(|chunk| offset(chunk).is_some()).map(|chunk| chunk.size).sum()
        };
        data(known) == data(own)
            && match (self, own.iter().find_map(offset)) {
                (Self::Spans(starts), Some(own_offset)) => {
                    known.iter().filter_map(offset).all(|known_offset| starts.is_as_seekable(known_offset, own_offset))
                }
                _ => true,
            }
    }
}

/// The properties of the layer that the walk needs.
#[derive(Debug, Clone)]
pub struct Options {
    /// How the layer can be read again.
    pub access: Access,
    /// Whether the layer is claimed to be eStargz or zstd:chunked, whose own files at the root are not part of the image. Then the
    /// walk hides the same files as [`toc`], so that both readings of the layer show one tree.
    pub hides_toc_files: bool,
}

/// Why a plain layer could not be imported.
#[derive(Debug)]
pub enum ImportError<E> {
    /// The archive is invalid, or the stream failed.
    Tar(TarError),
    /// An entry is invalid.
    Entry {
        /// Its name, printable.
        name: String,
        /// The cause.
        problem: InvalidEntry,
    },
    /// The sink failed.
    Sink(E),
}

impl<E: fmt::Display> fmt::Display for ImportError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tar(error) => error.fmt(f),
            Self::Entry { name, problem } => write!(f, "tar entry {name:?}: {problem}"),
            Self::Sink(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for ImportError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Tar(error) => Some(error),
            Self::Entry { problem, .. } => Some(problem),
            Self::Sink(error) => Some(error),
        }
    }
}

impl<E> From<TarError> for ImportError<E> {
    fn from(error: TarError) -> Self {
        Self::Tar(error)
    }
}

/// As [`import_within`], for a layer by itself, whatever its size, with the allowance of any layer.
///
/// # Errors
/// As [`import_within`].
pub fn import<R: Read, S: ObjectSink>(
    reader: R,
    options: Options,
    sink: &mut S,
) -> Result<LayerIndex, ImportError<S::Error>> {
    import_within(reader, options, &Allowance::default(), sink)
}

/// Walks the tar that `reader` yields (decompressed), passes every file to `sink` and returns the layer's index. Reads to the end
/// of the stream, so that digests computed on the way cover all of it. Its cost is charged to `allowance`.
///
/// # Errors
/// [`ImportError`]. Whatever the sink got before is verified nevertheless.
pub fn import_within<R: Read, S: ObjectSink>(
    reader: R,
    options: Options,
    allowance: &Allowance,
    sink: &mut S,
) -> Result<LayerIndex, ImportError<S::Error>> {
    let layer = Assembler::new(Duplicates::LastWins, allowance);
    let mut walk = Walk { tar: TarReader::new(reader), layer, options, allowance, sink };
    while let Some(entry) = walk.tar.next_entry()? {
        walk.take(entry)?;
    }
    let offset = walk.tar.position();
    walk.tar.drain().map_err(|error| TarError { offset, entry: None, after: None, problem: error.into() })?;
    walk.layer.finish().map_err(|(path, problem)| ImportError::Entry { name: path.to_string(), problem })
}

struct Walk<'a, R, S> {
    tar: TarReader<R>,
    layer: Assembler,
    options: Options,
    allowance: &'a Allowance,
    sink: &'a mut S,
}

impl<R: Read, S: ObjectSink> Walk<'_, R, S> {
    fn take(&mut self, entry: TarEntry) -> Result<(), ImportError<S::Error>> {
        let invalid = |problem| ImportError::Entry { name: printable(&entry.name), problem };
        let path = match LayerName::parse(&entry.name).map_err(|error| invalid(error.into()))? {
            LayerName::Entry(path) => path,
            LayerName::Whiteout(path) => return self.layer.mark(path, false).map_err(invalid),
            LayerName::Opaque(path) => return self.layer.mark(path, true).map_err(invalid),
            LayerName::Metadata => return Ok(()),
        };
        if self.options.hides_toc_files && entry.kind == TarKind::File && toc::is_toc_file(&path) {
            return Ok(());
        }
        let node = match entry.kind {
            TarKind::File => Node::File(self.file(entry.size, &entry.name)?.into()),
            TarKind::Directory => Node::Directory,
            TarKind::Symlink => Node::Symlink(Box::new(entry.link.into_boxed_slice())),
            TarKind::HardLink => {
                let target = LayerPath::from_tar_name(&entry.link);
                Node::HardLink(target.map_err(|error| invalid(InvalidEntry::LinkPath(error)))?.into())
            }
            TarKind::CharDevice(device) => Node::CharDevice(device),
            TarKind::BlockDevice(device) => Node::BlockDevice(device),
            TarKind::Fifo => Node::Fifo,
        };
        self.layer.count_dropped(entry.dropped_xattrs);
        let invalid = |problem| ImportError::Entry { name: printable(&entry.name), problem };
        // All contents are hashed here: those of one name are equal.
        let access = &self.options.access;
        let serves = |known: &[Chunk], own: &[Chunk]| access.serves(known, own);
        self.layer.insert_sharing_if(path, node, entry.attributes, serves).map_err(invalid)
    }

    /// Passes one file on: hashes it as a whole and by chunk, and writes it to the sink.
    fn file(&mut self, size: u64, name: &[u8]) -> Result<FileContent, ImportError<S::Error>> {
        let invalid = |problem| ImportError::Entry { name: printable(name), problem };
        let first_chunk = self.layer.next_chunk().map_err(invalid)?;
        if size == 0 {
            return Ok(FileContent { size, object: Digest::of(b""), first_chunk, chunk_count: 0 });
        }
        self.sink.begin(size).map_err(ImportError::Sink)?;
        let mut pieces = Pieces::new(&self.options.access, size);
        while let Some(piece) = self.tar.piece()? {
            match piece {
                Piece::Data { offset, bytes } => {
                    self.sink.write(bytes).map_err(ImportError::Sink)?;
                    pieces.data(offset, bytes, |chunk| self.layer.push_chunk(chunk)).map_err(invalid)?;
                }
                Piece::Hole(length) => {
                    self.allowance.take_zeros(length).map_err(|excess| invalid(excess.into()))?;
                    self.sink.hole(length).map_err(ImportError::Sink)?;
                    pieces.hole(length, |chunk| self.layer.push_chunk(chunk)).map_err(invalid)?;
                }
            }
        }
        let proof = pieces.finish(|chunk| self.layer.push_chunk(chunk)).map_err(invalid)?;
        let object = *proof.digest();
        self.sink.finish(proof).map_err(ImportError::Sink)?;
        let chunk_count = self.layer.next_chunk().map_err(invalid)? - first_chunk;
        Ok(FileContent { size, object, first_chunk, chunk_count })
    }
}

/// Cuts a file into chunks and hashes both.
struct Pieces<'a> {
    access: &'a Access,
    whole: Hasher,
    /// Hasher of the current chunk. `None` as long as the file is one chunk, so that nothing is hashed twice.
    part: Option<Hasher>,
    place: u64,
    /// Where the current chunk started in the file ...
    start: u64,
    /// ... and in the layer.
    offset: u64,
}

impl<'a> Pieces<'a> {
    fn new(access: &'a Access, size: u64) -> Self {
        let is_cut = matches!(access, Access::Random) && size > RAW_CHUNK_BYTES;
        let part = is_cut.then(Hasher::new);
        Self { access, whole: Hasher::new(), part, place: 0, start: 0, offset: 0 }
    }

    fn data(
        &mut self,
        mut offset: u64,
        mut bytes: &[u8],
        mut push: impl FnMut(Chunk) -> Result<(), InvalidEntry>,
    ) -> Result<(), InvalidEntry> {
        while !bytes.is_empty() {
            if self.ends_at(offset) {
                self.cut(&mut push)?;
            }
            if self.place == self.start {
                self.offset = offset;
            }
            let room = usize::try_from(self.room(offset)).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.whole.update(now);
            if let Some(part) = &mut self.part {
                part.update(now);
            }
            self.place += now.len() as u64;
            offset += now.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Whether the current chunk must end before the byte at `offset` of the layer.
    fn ends_at(&self, offset: u64) -> bool {
        match self.access {
            Access::Random => self.place - self.start == RAW_CHUNK_BYTES,
            Access::Spans(starts) => self.place > self.start && starts.contains(offset),
        }
    }

    /// Bytes from `offset` of the layer that belong to the current chunk.
    fn room(&self, offset: u64) -> u64 {
        match self.access {
            Access::Random => RAW_CHUNK_BYTES - (self.place - self.start),
            Access::Spans(starts) => starts.next_after(offset).map_or(u64::MAX, |next| next - offset),
        }
    }

    fn hole(
        &mut self,
        length: u64,
        mut push: impl FnMut(Chunk) -> Result<(), InvalidEntry>,
    ) -> Result<(), InvalidEntry> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        // Up to here the file was one run of data (or nothing), so the digest of the chunk is the digest so far.
        if self.part.is_none() {
            self.part = Some(self.whole.clone());
        }
        self.cut(&mut push)?;
        let mut left = length;
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(ZEROS.len());
            self.whole.update(&ZEROS[..count]);
            left -= count as u64;
        }
        push(Chunk { object_offset: self.place, size: length, digest: NO_DIGEST, place: ChunkPlace::Zeros })?;
        self.place += length;
        self.start = self.place;
        Ok(())
    }

    /// Ends the current chunk, if it is not empty. The file has more than this chunk.
    fn cut(&mut self, push: &mut impl FnMut(Chunk) -> Result<(), InvalidEntry>) -> Result<(), InvalidEntry> {
        if self.place == self.start {
            return Ok(());
        }
        let digest = match self.part.replace(Hasher::new()) {
            Some(part) => part.finish(),
            None => self.whole.clone().finish(),
        };
        push(self.chunk(digest))?;
        self.start = self.place;
        Ok(())
    }

    fn chunk(&self, digest: Digest) -> Chunk {
        let size = self.place - self.start;
        let codec = match self.access {
            Access::Random => Codec::Raw,
            Access::Spans(_) => Codec::Stream,
        };
        let place = ChunkPlace::Blob { codec, offset: self.offset, length: size, skip: 0 };
        Chunk { object_offset: self.start, size, digest, place }
    }

    fn finish(mut self, mut push: impl FnMut(Chunk) -> Result<(), InvalidEntry>) -> Result<Verified<()>, InvalidEntry> {
        if self.part.is_some() {
            self.cut(&mut push)?;
        }
        let proof = Verified::seal_stream(std::mem::take(&mut self.whole));
        if self.place > self.start {
            push(self.chunk(*proof.digest()))?;
        }
        Ok(proof)
    }
}
