//! [`TarReader`]: the walk over a tar.

use std::io::{self, Read};
use std::mem;

use tarpon_oci::limits;

use super::error::{TarError, TarProblem, printable};
use super::header::{Dialect, Header};
use super::input::{Block, Input};
use super::sparse::{self, PaxLayout, SparseMap};
use super::{BLOCK, pax};
use crate::index::{Attributes, Device, Timestamp};

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TarKind {
    /// A regular file.
    File,
    /// A hard link; [`TarEntry::link`] is the name of another entry.
    HardLink,
    /// A symbolic link; [`TarEntry::link`] is its target.
    Symlink,
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
}

/// One entry, with the extension headers that preceded it applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarEntry {
    /// Offset of its first header in the stream.
    pub offset: u64,
    /// The unchanged name. Not checked, except that it contains no NUL.
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: TarKind,
    /// Target of a hard or symbolic link; empty otherwise.
    pub link: Vec<u8>,
    /// Mode (12 bits), owner, mtime and the xattrs that images may set.
    pub attributes: Attributes,
    /// Number of xattrs that images may not set.
    pub dropped_xattrs: u64,
    /// Bytes of the file with its holes filled, at most [`limits::FILE_BYTES`]; 0 for everything but files.
    pub size: u64,
    /// Whether the archive omits holes.
    pub is_sparse: bool,
}

/// The next bytes of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes, and their place in the stream.
    Data {
        /// Offset in the decoded layer.
        offset: u64,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// This many zeros that the archive does not contain.
    Hole(u64),
}

/// Reads a tar front to back: [`TarReader::next_entry`], then the file's bytes by [`TarReader::piece`] or [`Read`], then the next
/// entry, whether or not all bytes were consumed.
pub struct TarReader<R> {
    input: Input<R>,
    /// The rest of the data of the current entry.
    data: Data,
    /// Bytes of the buffer that the last [`Piece`] borrowed.
    lent: usize,
    holes: u64,
    entry_name: Vec<u8>,
    /// Name of the entry before, for messages.
    name_before: Vec<u8>,
    entry_offset: u64,
    is_done: bool,
}

#[derive(Default)]
struct Data {
    map: SparseMap,
    /// Next segment of the map.
    segment: usize,
    /// Offset in the file up to which everything was returned.
    place: u64,
    /// Bytes left in the current run of data.
    run: u64,
    /// Bytes left in the archive: data and padding.
    stored: u64,
    padding: u64,
}

/// Extension headers that precede an entry and belong to it alone.
#[derive(Default)]
struct Extensions {
    offset: Option<u64>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    records: Option<pax::Records>,
}

impl<R: Read> TarReader<R> {
    /// A reader of the decompressed tar that `reader` yields. It is read in large pieces, so no other buffer is needed.
    pub fn new(reader: R) -> Self {
        Self {
            input: Input::new(reader),
            data: Data::default(),
            lent: 0,
            holes: 0,
            entry_name: Vec::new(),
            name_before: Vec::new(),
            entry_offset: 0,
            is_done: false,
        }
    }

    /// The next entry, or `None` at the end of the archive (two blocks of zeros or the end of the stream).
    ///
    /// # Errors
    /// [`TarError`]. The walk cannot continue after one.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>, TarError> {
        if self.is_done {
            return Ok(None);
        }
        let skipped = self.skip_data();
        self.explain(skipped)?;
        mem::swap(&mut self.entry_name, &mut self.name_before);
        self.entry_name.clear();
        self.entry_offset = self.input.position();
        let entry = self.read_entry();
        let entry = self.explain(entry)?;
        self.is_done = entry.is_none();
        Ok(entry)
    }

    /// The next bytes of the current file, straight from the buffer. `None` at its end.
    ///
    /// # Errors
    /// [`TarError`] where the stream fails or ends too early.
    pub fn piece(&mut self) -> Result<Option<Piece<'_>>, TarError> {
        self.give_back();
        let data = &mut self.data;
        if data.run == 0 {
            let next = data.map.segments.get(data.segment).copied();
            let start = next.map_or(data.map.size, |segment| segment.offset);
            if start > data.place {
                let hole = start - data.place;
                data.place = start;
                return Ok(Some(Piece::Hole(hole)));
            }
            let Some(segment) = next else { return Ok(None) };
            data.segment += 1;
            data.run = segment.length;
        }
        let offset = self.input.position();
        match self.input.fill() {
            Ok(0) => return Err(self.error(TarProblem::Truncated)),
            Ok(_) => {}
            Err(error) => return Err(self.error(error.into())),
        }
        let bytes = self.input.available(self.data.run);
        self.lent = bytes.len();
        Ok(Some(Piece::Data { offset, bytes }))
    }

    /// Reads to the end of the stream, past everything behind the archive, so that a digest of the stream covers all of it.
    ///
    /// # Errors
    /// As the stream.
    pub fn drain(&mut self) -> io::Result<()> {
        self.give_back();
        while self.input.fill()? > 0 {
            let count = self.input.available(u64::MAX).len();
            self.input.consume(count);
        }
        Ok(())
    }

    /// Bytes of the stream that were read so far.
    pub fn position(&self) -> u64 {
        self.input.position() + self.lent as u64
    }

    /// The stream, at its current position (it may have been read ahead).
    pub fn into_inner(self) -> R {
        self.input.into_reader()
    }

    /// Consumes the bytes that the last piece borrowed.
    fn give_back(&mut self) {
        let lent = mem::take(&mut self.lent);
        self.input.consume(lent);
        self.data.run -= lent as u64;
        self.data.place += lent as u64;
        self.data.stored -= lent as u64;
    }

    fn skip_data(&mut self) -> Result<(), TarProblem> {
        self.give_back();
        let rest = self.data.stored;
        let padding = self.data.padding;
        self.data = Data::default();
        if !self.input.skip(rest)? {
            return Err(TarProblem::Truncated);
        }
        // An archive without trailer may also lack the padding of its last file.
        self.input.skip(padding)?;
        Ok(())
    }

    fn explain<T>(&self, result: Result<T, TarProblem>) -> Result<T, TarError> {
        result.map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: TarProblem) -> TarError {
        let known = |name: &[u8]| (!name.is_empty()).then(|| printable(name));
        let (entry, after) = (known(&self.entry_name), known(&self.name_before));
        TarError { offset: self.entry_offset, entry, after, problem }
    }

    fn read_entry(&mut self) -> Result<Option<TarEntry>, TarProblem> {
        let mut extensions = Extensions::default();
        let mut block = [0; BLOCK];
        loop {
            let offset = self.input.position();
            match self.input.block(&mut block)? {
                Block::Full if block == [0; BLOCK] => return self.end(&extensions).map(|()| None),
                Block::Full => {}
                Block::End if extensions.offset.is_some() => return Err(TarProblem::DanglingExtension),
                Block::End => return Ok(None),
                Block::Partial => return Err(TarProblem::Truncated),
            }
            let header = Header::parse(&block)?;
            if matches!(header.kind(), b'L' | b'K' | b'x' | b'g') {
                self.read_extension(&header, &mut extensions)?;
                extensions.offset.get_or_insert(offset);
            } else {
                extensions.offset.get_or_insert(offset);
                return self.finish_entry(&header, extensions).map(Some);
            }
            if header.kind() == b'g' {
                extensions = Extensions::default();
                self.entry_offset = self.input.position();
            }
        }
    }

    /// Handles a block of zeros: the end, if another one or the end of the stream follows.
    fn end(&mut self, extensions: &Extensions) -> Result<(), TarProblem> {
        if extensions.offset.is_some() {
            return Err(TarProblem::DanglingExtension);
        }
        let mut block = [0; BLOCK];
        match self.input.block(&mut block)? {
            Block::Full if block != [0; BLOCK] => Err(TarProblem::LoneZeroBlock),
            Block::Partial if block != [0; BLOCK] => Err(TarProblem::Truncated),
            _ => Ok(()),
        }
    }

    fn read_extension(&mut self, header: &Header<'_>, extensions: &mut Extensions) -> Result<(), TarProblem> {
        let size = header.size()?;
        if size > limits::TAR_EXTENSION_BYTES {
            return Err(TarProblem::ExtensionTooLong);
        }
        let mut data = Vec::new();
        if !self.input.read_into(&mut data, size)? || !self.input.skip(padding(size))? {
            return Err(TarProblem::Truncated);
        }
        match header.kind() {
            b'g' if extensions.offset.is_some() => {
                return Err(TarProblem::Extensions("a global header between an extension header and its entry"));
            }
            b'g' => pax::check_global(&data)?,
            b'x' if extensions.records.is_some() => return Err(TarProblem::Extensions("two extended headers")),
            b'x' => extensions.records = Some(pax::parse(&data)?),
            b'L' if extensions.long_name.is_some() => return Err(TarProblem::Extensions("two long names")),
            b'L' => extensions.long_name = Some(long_text(data)),
            _ if extensions.long_link.is_some() => return Err(TarProblem::Extensions("two long link names")),
            _ => extensions.long_link = Some(long_text(data)),
        }
        Ok(())
    }

    fn finish_entry(&mut self, header: &Header<'_>, mut extensions: Extensions) -> Result<TarEntry, TarProblem> {
        let mut records = extensions.records.take().unwrap_or_default();
        // GNU tar puts a made-up name into a sparse file's header, and into `path` if it is long.
        let name = match records.sparse.name.take() {
            Some(name) => Some(name),
            None => one_of("two different names", [extensions.long_name, records.path.take()])?,
        };
        match name {
            Some(name) => self.entry_name.extend_from_slice(&name),
            None => header.name_into(&mut self.entry_name),
        }
        let has_slash = self.entry_name.ends_with(b"/");
        let kind = kind(header, has_slash)?;
        let is_link = matches!(kind, TarKind::HardLink | TarKind::Symlink);
        let link = one_of("two different link names", [extensions.long_link, records.link.take()])?;
        let link =
            link.filter(|_| is_link).unwrap_or_else(|| if is_link { header.link().to_vec() } else { Vec::new() });
        let stored = match kind {
            // All tools treat the size of a hard link as that of its target. Nothing is stored.
            TarKind::HardLink => 0,
            _ => records.size.map_or_else(|| header.size(), Ok)?,
        };
        let map = self.data_of(header, kind, &records, stored)?;
        let (xattrs, dropped_xattrs) = records.xattrs.take();
        let attributes = Attributes {
            mode: header.mode()?,
            uid: id(records.uid.or(header.uid()), "uid")?,
            gid: id(records.gid.or(header.gid()), "gid")?,
            mtime: match records.mtime {
                Some(mtime) => mtime,
                None => Timestamp { seconds: header.mtime()?, nanoseconds: 0 },
            },
            xattrs,
        };
        Ok(TarEntry {
            offset: extensions.offset.unwrap_or(self.entry_offset),
            name: self.entry_name.clone(),
            kind,
            link,
            attributes,
            dropped_xattrs,
            size: self.data.map.size,
            is_sparse: map,
        })
    }

    /// Sets up [`Self::data`]. Returns whether the file is sparse.
    fn data_of(
        &mut self,
        header: &Header<'_>,
        kind: TarKind,
        records: &pax::Records,
        stored: u64,
    ) -> Result<bool, TarProblem> {
        let layout = records.sparse.layout()?;
        if kind != TarKind::File {
            if stored != 0 {
                return Err(TarProblem::UnexpectedData(stored));
            }
            return if layout == PaxLayout::Dense { Ok(false) } else { Err(TarProblem::Sparse("not a regular file")) };
        }
        if stored > limits::FILE_BYTES {
            return Err(TarProblem::FileTooLarge(stored));
        }
        let mut left = stored;
        let (map, is_sparse) = match (header.kind(), layout) {
            (b'S', PaxLayout::Dense) => (sparse::read_gnu(&mut self.input, header.gnu_sparse()?)?, true),
            (b'S', _) => return Err(TarProblem::Sparse("two sparse formats")),
            (_, PaxLayout::Dense) => {
                let whole = sparse::Segment { offset: 0, length: stored };
                let segments = if stored == 0 { Vec::new() } else { vec![whole] };
                (SparseMap { segments, size: stored }, false)
            }
            (_, PaxLayout::Records(map)) => (map, true),
            (_, PaxLayout::BeforeData(size)) => {
                let (map, taken) = sparse::read_pax_1_0(&mut self.input, size, stored)?;
                left -= taken;
                (map, true)
            }
        };
        if map.size > limits::FILE_BYTES {
            return Err(TarProblem::FileTooLarge(map.size));
        }
        map.check_stored(left)?;
        self.holes = self.holes.saturating_add(map.hole_bytes());
        if self.holes > limits::SPARSE_HOLE_BYTES {
            return Err(TarProblem::Holes);
        }
        self.data = Data { map, stored: left, padding: padding(stored), ..Data::default() };
        Ok(is_sparse)
    }
}

/// The content of the current file, holes as zeros.
impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        match self.piece().map_err(io::Error::other)? {
            None => Ok(0),
            Some(Piece::Data { bytes, .. }) => {
                let count = bytes.len().min(out.len());
                out[..count].copy_from_slice(&bytes[..count]);
                self.lent = count;
                Ok(count)
            }
            Some(Piece::Hole(length)) => {
                let count = usize::try_from(length).unwrap_or(usize::MAX).min(out.len());
                out[..count].fill(0);
                self.data.place -= length - count as u64;
                Ok(count)
            }
        }
    }
}

fn kind(header: &Header<'_>, has_slash: bool) -> Result<TarKind, TarProblem> {
    let device = || {
        let narrow = |number: Result<u64, TarProblem>, limit| match number? {
            number if number <= limit => u32::try_from(number).map_err(|_| TarProblem::Number("device number")),
            _ => Err(TarProblem::Number("device number")),
        };
        Ok(Device {
            major: narrow(header.device_major(), limits::DEVICE_MAJOR)?,
            minor: narrow(header.device_minor(), limits::DEVICE_MINOR)?,
        })
    };
    match header.kind() {
        0 if has_slash => Ok(TarKind::Directory),
        b'0' | b'7' | b'S' if has_slash => Err(TarProblem::FileNamedAsDirectory),
        0 | b'0' | b'7' => Ok(TarKind::File),
        b'S' if header.dialect() == Dialect::Gnu => Ok(TarKind::File),
        b'1' => Ok(TarKind::HardLink),
        b'2' => Ok(TarKind::Symlink),
        b'3' => device().map(TarKind::CharDevice),
        b'4' => device().map(TarKind::BlockDevice),
        b'5' => Ok(TarKind::Directory),
        b'6' => Ok(TarKind::Fifo),
        other => Err(TarProblem::Type(other)),
    }
}

fn id(number: Option<i64>, what: &'static str) -> Result<u32, TarProblem> {
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.filter(|id| u64::from(*id) <= limits::ID).ok_or(TarProblem::Number(what))
}

/// The text in the data of `L` and `K`, which ends with a NUL that is counted.
fn long_text(mut data: Vec<u8>) -> Vec<u8> {
    if let Some(end) = data.iter().position(|byte| *byte == 0) {
        data.truncate(end);
    }
    data
}

/// The first that exists. GNU's long names and PAX records may both exist, and tools differ in which they prefer.
fn one_of<const N: usize>(
    problem: &'static str,
    candidates: [Option<Vec<u8>>; N],
) -> Result<Option<Vec<u8>>, TarProblem> {
    let mut found: Option<Vec<u8>> = None;
    for candidate in candidates.into_iter().flatten() {
        match &found {
            Some(first) if *first != candidate => return Err(TarProblem::Extensions(problem)),
            Some(_) => {}
            None => found = Some(candidate),
        }
    }
    Ok(found)
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}
