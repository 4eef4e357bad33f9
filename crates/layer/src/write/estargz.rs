//! eStargz: gzip members, with the table of contents as the last entry of the tar or in an image of its own.

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

use tarpon_oci::{Compression, Digest, Hasher, limits};

use super::contents::{Contents, TocJson};
use super::encode::Encoder;
use super::error::WriteError;
use super::header;
use super::ordered::{HEADER_RUN_BYTES, OrderedWriter, Piece, WAITING_BYTES, threads};
use super::own_tar;
use super::prioritised::Prioritised;
use super::source::{Before, Source};
use super::written::{ExternalToc, Written, check};
use crate::allowance::Allowance;
use crate::index::{LayerName, LayerPath};
use crate::tar::{BLOCK, TarEntry, TarKind};
use crate::toc::{
    self, ESTARGZ_DIGEST, EXTERNAL_TOC_LAYER_ANNOTATION, Format, NO_PREFETCH_LANDMARK, PREFETCH_LANDMARK, TOC_NAME,
    TocPlace,
};

/// The chunk size of stargz-snapshotter.
pub const DEFAULT_ESTARGZ_CHUNK_BYTES: u64 = 4 << 20;
/// The default level of gzip. Measured on two Debian layers (tars of 50 and 79 MB): blobs are 0.6 to 2 % larger than those of
/// stargz-snapshotter at its default, level 9, and take half the time that our level 9 takes.
pub const DEFAULT_GZIP_LEVEL: u32 = 6;

/// The only byte of a landmark.
const LANDMARK: &[u8] = b"\x0f";
/// Annotation that gives containers/storage the decompressed size of the layer.
const SIZE_ANNOTATION: &str = "io.containers.estargz.uncompressed-size";

/// Options for writing eStargz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EstargzOptions {
    /// Size of chunks in bytes, 1 to [`limits::CHUNK_BYTES`].
    pub chunk_bytes: u64,
    /// Level of gzip, 0 to 9.
    pub level: u32,
    /// Threads that compress, besides the caller's, which reads, hashes and writes.
    pub threads: usize,
    /// Keeps the decompressed blob identical to the tar, so the layer keeps its diffID. The table of contents then goes into
    /// [`Written::external_toc`], and the layer gets no landmark.
    pub keep_diff_id: bool,
}

impl Default for EstargzOptions {
    fn default() -> Self {
        Self { chunk_bytes: DEFAULT_ESTARGZ_CHUNK_BYTES, level: DEFAULT_GZIP_LEVEL, threads: 1, keep_diff_id: false }
    }
}

impl EstargzOptions {
    fn check(&self) -> Result<(), WriteError> {
        if !(1..=limits::CHUNK_BYTES).contains(&self.chunk_bytes) {
            return Err(WriteError::Options("the length of a chunk is out of range"));
        }
        if self.level > 9 {
            return Err(WriteError::Options("levels of gzip are 0 to 9"));
        }
        Ok(())
    }
}

/// Writes the layer whose decompressed tar `tar` yields to `blob` as eStargz. The format's own files (table of contents, landmark)
/// of an input that is eStargz already are removed first. Give `blob` a buffer if its writes are costly. The memory for the table
/// of contents is charged to `allowance`.
///
/// # Errors
/// [`WriteError`]. The blob is then useless.
pub fn estargz<R: Read, W: Write>(
    tar: R,
    blob: W,
    options: &EstargzOptions,
    allowance: &Allowance,
) -> Result<Written, WriteError> {
    write(tar, blob, options, (NO_PREFETCH_LANDMARK, 0), allowance)
}

/// As [`estargz`], with the entries at `paths` before all others and in this order, each after its parent directories and, for a
/// hard link, after its target. A landmark after them marks the end of the part that readers should prefetch.
///
/// # Errors
/// [`WriteError`], also for [`EstargzOptions::keep_diff_id`], which forbids another order.
pub fn estargz_prioritised<R: Read + Seek, W: Write>(
    tar: R,
    paths: &[LayerPath],
    blob: W,
    options: &EstargzOptions,
    allowance: &Allowance,
) -> Result<Written, WriteError> {
    if options.keep_diff_id {
        return Err(WriteError::Options("another order of entries changes the diffID"));
    }
    let mut tar = Prioritised::new(tar, paths, allowance)?;
    let landmark = (PREFETCH_LANDMARK, tar.front());
    let not_prioritised = tar.take_left_out();
    Ok(Written { not_prioritised, ..write(tar, blob, options, landmark, allowance)? })
}

/// The name of the landmark, and the number of entries before it.
type Landmark = (&'static str, u64);

fn write<R: Read, W: Write>(
    tar: R,
    blob: W,
    options: &EstargzOptions,
    landmark: Landmark,
    allowance: &Allowance,
) -> Result<Written, WriteError> {
    options.check()?;
    let encoders = (0..threads(options.threads)).map(|_| Encoder::gzip(options.level)).collect();
    let writer = Writer {
        blob: OrderedWriter::new(blob, encoders, WAITING_BYTES).map_err(WriteError::Blob)?,
        contents: Contents::new(Format::Estargz, allowance),
        options,
        hasher: Hasher::new(),
        tar_bytes: 0,
        member: Piece::default(),
    };
    writer.run(Source::new(tar), landmark)
}

struct Writer<'a, W> {
    blob: OrderedWriter<W>,
    contents: Contents,
    options: &'a EstargzOptions,
    /// Hasher of the new tar.
    hasher: Hasher,
    tar_bytes: u64,
    /// The member that is being filled.
    member: Piece,
}

impl<W: Write> Writer<'_, W> {
    fn run<R: Read>(mut self, mut source: Source<R>, (landmark, after): Landmark) -> Result<Written, WriteError> {
        let mut landmark = Some(landmark).filter(|_| !self.options.keep_diff_id);
        let mut count = 0;
        let mut was_kept = true;
        loop {
            let (entry, before) = source.next()?;
            if was_kept {
                self.put(&before.padding)?;
            }
            if !self.options.keep_diff_id {
                self.pad()?;
            }
            if let Some(name) = landmark.take_if(|_| count == after) {
                self.landmark(name)?;
            }
            let Some(entry) = entry else { return self.finish(source, &before) };
            was_kept = self.entry(&mut source, entry, &before)?;
            count += u64::from(was_kept);
        }
    }

    /// Adds one entry. Returns whether it is kept.
    fn entry<R: Read>(&mut self, source: &mut Source<R>, entry: TarEntry, before: &Before) -> Result<bool, WriteError> {
        if let Some(path) = own_file(&entry) {
            match self.options.keep_diff_id {
                true if path.as_bytes() == TOC_NAME => return Err(WriteError::HoldsToc),
                true => {}
                false => return source.payload(|_| Ok(())).map(|()| false),
            }
        }
        self.put(&before.global)?;
        self.put(&before.headers)?;
        let size = entry.size;
        if self.contents.entry(entry, header::facts(&before.headers))?.is_some() {
            let whole = (size > self.options.chunk_bytes).then(Hasher::new);
            let mut file = FileSplit { left: size, room: 0, whole };
            source.payload(|bytes| self.payload(&mut file, bytes))?;
            if let Some(whole) = file.whole {
                self.contents.set_file_digest(whole.finish());
            }
        }
        Ok(true)
    }

    fn landmark(&mut self, name: &str) -> Result<(), WriteError> {
        self.put(&own_tar::header(name, LANDMARK.len() as u64))?;
        self.contents.own_file(name, LANDMARK.len() as u64)?;
        self.payload(&mut FileSplit { left: LANDMARK.len() as u64, room: 0, whole: None }, LANDMARK)?;
        self.pad()
    }

    /// Appends bytes that are no payload to the open member.
    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        for bytes in bytes.chunks(HEADER_RUN_BYTES) {
            self.take(bytes);
            if self.member.bytes.len() - self.member.payload >= HEADER_RUN_BYTES {
                self.close()?;
            }
        }
        Ok(())
    }

    fn payload(&mut self, file: &mut FileSplit, mut bytes: &[u8]) -> Result<(), WriteError> {
        if let Some(whole) = &mut file.whole {
            whole.update(bytes);
        }
        while !bytes.is_empty() {
            if file.room == 0 {
                // A full chunk stays open until here, because padding and headers may follow.
                self.close()?;
                file.room = file.left.min(self.options.chunk_bytes);
                self.member.chunk = Some(self.contents.chunk(file.room, false)?);
            }
            let (now, rest) = bytes.split_at(usize::try_from(file.room).unwrap_or(usize::MAX).min(bytes.len()));
            self.take(now);
            self.member.payload += now.len();
            file.left -= now.len() as u64;
            file.room -= now.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.tar_bytes += bytes.len() as u64;
        self.member.bytes.extend_from_slice(bytes);
    }

    fn pad(&mut self) -> Result<(), WriteError> {
        let count = self.tar_bytes.wrapping_neg() % BLOCK as u64;
        self.put(&[0; BLOCK][..usize::try_from(count).unwrap_or(0)])
    }

    /// Ends the member that is open.
    fn close(&mut self) -> Result<(), WriteError> {
        let member = std::mem::take(&mut self.member);
        if !member.bytes.is_empty() {
            self.blob.submit(member).map_err(WriteError::Blob)?;
            self.contents.land(self.blob.landed());
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), WriteError> {
        self.close()?;
        self.blob.settle().map_err(WriteError::Blob)?;
        self.contents.land(self.blob.landed());
        Ok(())
    }

    fn finish<R: Read>(mut self, source: Source<R>, before: &Before) -> Result<Written, WriteError> {
        let mut gzip = Encoder::gzip(self.options.level);
        if self.options.keep_diff_id {
            self.put(&before.headers)?;
            source.rest(|bytes| self.put(bytes))?;
        } else {
            source.rest(|_| Ok(()))?;
            self.pad()?;
        }
        self.settle()?;
        let TocJson { json, meaning, mut counts } = self.contents.tell(None)?;
        counts.pieces = self.blob.pieces();
        let toc_digest = Digest::of(&json);
        let toc_tar = own_tar::toc(json);
        let toc = gzip.encode(&toc_tar).map_err(WriteError::Blob)?;
        if toc.len() as u64 > limits::TOC_COMPRESSED_BYTES {
            return Err(WriteError::TocTooLarge);
        }
        let start = self.blob.position();
        let place = if self.options.keep_diff_id {
            self.blob.append(&own_tar::footer(b"SG\x11\0STARGZEXTERNALTOC")).map_err(WriteError::Blob)?;
            TocPlace::External { data_end: start }
        } else {
            self.hasher.update(&toc_tar);
            self.tar_bytes += toc_tar.len() as u64;
            self.blob.append(&toc).map_err(WriteError::Blob)?;
            let end = self.blob.position();
            self.blob
                .append(&own_tar::footer(format!("SG\x16\0{start:016x}STARGZ").as_bytes()))
                .map_err(WriteError::Blob)?;
            TocPlace::InBlob(start..end)
        };
        let (blob, _) = self.blob.finish().map_err(WriteError::Blob)?;
        let annotations = BTreeMap::from([
            (ESTARGZ_DIGEST.to_owned(), toc_digest.to_string()),
            (SIZE_ANNOTATION.to_owned(), self.tar_bytes.to_string()),
        ]);
        let mut written = Written {
            blob,
            compression: Compression::Gzip,
            diff_id: self.hasher.finish(),
            uncompressed_size: self.tar_bytes,
            annotations,
            external_toc: None,
            not_prioritised: Vec::new(),
            counts,
        };
        let diff_id = self.options.keep_diff_id.then(|| Digest::of(&toc_tar));
        drop(toc_tar);
        check(meaning, &written, &place, &toc)?;
        if let Some(diff_id) = diff_id {
            let layer = (EXTERNAL_TOC_LAYER_ANNOTATION.to_owned(), blob.digest.to_string());
            written.external_toc = Some(ExternalToc { bytes: toc, diff_id, annotations: BTreeMap::from([layer]) });
        }
        Ok(written)
    }
}

/// The path of an entry that belongs to the format and not to the image.
fn own_file(entry: &TarEntry) -> Option<LayerPath> {
    match LayerName::parse(&entry.name) {
        Ok(LayerName::Entry(path)) if entry.kind == TarKind::File && toc::is_toc_file(&path) => Some(path),
        _ => None,
    }
}

/// A file that is being cut into chunks.
struct FileSplit {
    /// Remaining bytes ...
    left: u64,
    /// ... and those of them that belong to the current chunk.
    room: u64,
    /// Hasher of a file of more than one chunk. A single chunk is hashed as such.
    whole: Option<Hasher>,
}
