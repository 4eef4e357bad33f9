//! zstd:chunked: zstd frames of the unchanged tar, and skippable frames with the table of contents, the tar-split data and a footer.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use tarpon_oci::{Compression, Digest, Hasher, limits};

use super::contents::{Contents, TocJson};
use super::crc64::Crc64;
use super::cutter::{self, Cut, Cutter};
use super::encode::Encoder;
use super::error::WriteError;
use super::header::{self, Facts};
use super::ordered::{HEADER_RUN_BYTES, OrderedWriter, Piece, WAITING_BYTES, threads};
use super::source::{Before, Source};
use super::tar_split::{Done, TarSplit};
use super::written::{Written, check};
use crate::allowance::Allowance;
use crate::tar::TarEntry;
use crate::toc::{Format, TocPlace};

/// The default level of zstd. Measured on two Debian layers (tars of 50 and 79 MB) against containers/storage 1.59, whose default
/// is the best level of its Go encoder: at this level blobs are 0 to 2.1 % larger than its, at level 3 it is 4 to 9 %.
pub const DEFAULT_ZSTD_LEVEL: i32 = 6;

/// The prefix of the annotations of containers/storage since 1.44.
const PREFIX: &str = "io.github.containers.zstd-chunked.";
const SKIPPABLE_MAGIC: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];
const FOOTER_MAGIC: &[u8; 8] = b"GNUlInUx";
/// The only kind of table of contents.
const MANIFEST_TYPE: u64 = 1;
/// Most bytes of trailing zeros in one segment of tar-split data.
const TRAILER_BYTES: usize = 1 << 20;

/// Options for writing zstd:chunked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdChunkedOptions {
    /// Level of zstd, 1 to 22.
    pub level: i32,
    /// Threads that compress, besides the caller's, which reads, cuts, hashes and writes.
    pub threads: usize,
}

impl Default for ZstdChunkedOptions {
    fn default() -> Self {
        Self { level: DEFAULT_ZSTD_LEVEL, threads: 1 }
    }
}

/// Writes the layer whose decompressed tar `tar` yields to `blob` as zstd:chunked. The tar, and so the diffID, stay unchanged. Give
/// `blob` a buffer if its writes are costly.
///
/// The blob has tar-split data unless that would make containers/storage, its only reader, refuse the layer: if a name occurs
/// twice, or if its tar reader and ours may see different entries. It then pulls such a layer as a whole.
///
/// The memory for the table of contents is charged to `allowance`.
///
/// # Errors
/// [`WriteError`]. The blob is then useless.
pub fn zstd_chunked<R: Read, W: Write>(
    tar: R,
    blob: W,
    options: &ZstdChunkedOptions,
    allowance: &Allowance,
) -> Result<Written, WriteError> {
    if !(1..=22).contains(&options.level) {
        return Err(WriteError::Options("levels of zstd are 1 to 22"));
    }
    let encoders = (0..threads(options.threads)).map(|_| Encoder::zstd(options.level));
    let encoders = encoders.collect::<Result<_, _>>().map_err(WriteError::Blob)?;
    let writer = Writer {
        blob: OrderedWriter::new(blob, encoders, WAITING_BYTES).map_err(WriteError::Blob)?,
        contents: Contents::new(Format::ZstdChunked, allowance),
        level: options.level,
        hasher: Hasher::new(),
        frame: Vec::new(),
        split: Some(TarSplit::new(options.level).map_err(WriteError::Blob)?),
    };
    writer.run(Source::new(tar))
}

struct Writer<W> {
    blob: OrderedWriter<W>,
    contents: Contents,
    level: i32,
    /// Hasher of the tar.
    hasher: Hasher,
    /// Bytes of the open frame, none of them payload.
    frame: Vec<u8>,
    /// `None` if containers/storage would refuse it.
    split: Option<TarSplit>,
}

impl<W: Write> Writer<W> {
    fn run<R: Read>(mut self, mut source: Source<R>) -> Result<Written, WriteError> {
        loop {
            let (entry, before) = source.next()?;
            for bytes in [&before.padding, &before.global, &before.headers] {
                self.put(bytes)?;
            }
            let Some(entry) = entry else { return self.finish(source, &before) };
            self.entry(&mut source, entry, &before)?;
        }
    }

    fn entry<R: Read>(&mut self, source: &mut Source<R>, entry: TarEntry, before: &Before) -> Result<(), WriteError> {
        let facts = header::facts(&before.headers);
        let (name, size) = (String::from_utf8_lossy(&entry.name).into_owned(), entry.size);
        self.keep_split(&facts, before);
        let is_file = self.contents.entry(entry, facts)?.is_some();
        if self.contents.has_duplicates() {
            self.split = None;
        }
        let checksum = if is_file { Some(self.payload(source, size)?) } else { None };
        if let Some(split) = &mut self.split {
            split.segment(&[&before.padding[..], &before.headers].concat()).map_err(WriteError::Blob)?;
            split.file(&name, size, checksum).map_err(WriteError::Blob)?;
        }
        Ok(())
    }

    fn keep_split(&mut self, facts: &Facts, before: &Before) {
        if !facts.is_ordinary || !before.global.is_empty() || before.lacks_padding > 0 {
            self.split = None;
        }
    }

    /// Appends bytes that are no payload.
    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.hasher.update(bytes);
        for bytes in bytes.chunks(HEADER_RUN_BYTES) {
            self.frame.extend_from_slice(bytes);
            if self.frame.len() >= HEADER_RUN_BYTES {
                self.close()?;
            }
        }
        Ok(())
    }

    /// Ends the frame that is open.
    fn close(&mut self) -> Result<(), WriteError> {
        let bytes = std::mem::take(&mut self.frame);
        if bytes.is_empty() { Ok(()) } else { self.submit(Piece { bytes, ..Piece::default() }) }
    }

    fn submit(&mut self, piece: Piece) -> Result<(), WriteError> {
        self.blob.submit(piece).map_err(WriteError::Blob)?;
        self.contents.land(self.blob.landed());
        Ok(())
    }

    /// Passes the payload of a file, and returns its checksum for tar-split.
    fn payload<R: Read>(&mut self, source: &mut Source<R>, size: u64) -> Result<Crc64, WriteError> {
        self.close()?;
        let mut cutter = Cutter::new();
        let mut cuts = Vec::new();
        let mut checksum = Crc64::new();
        let mut file = FileCut { size, place: 0, bytes: Vec::new(), whole: Hasher::new(), hole: None };
        source.payload(|bytes| {
            self.hasher.update(bytes);
            checksum.update(bytes);
            file.bytes.extend_from_slice(bytes);
            cutter.push(bytes, &mut cuts);
            cuts.drain(..).try_for_each(|cut| self.cut(&mut file, cut))?;
            if cutter.is_in_hole() && file.bytes.len() as u64 >= cutter::CHUNK_BYTES {
                self.hole(&mut file)?;
            }
            Ok(())
        })?;
        cutter.finish(&mut cuts);
        cuts.drain(..).try_for_each(|cut| self.cut(&mut file, cut))?;
        Ok(checksum)
    }

    /// Completes the chunk that ends at `cut`.
    fn cut(&mut self, file: &mut FileCut, cut: Cut) -> Result<(), WriteError> {
        let length = usize::try_from(cut.end - file.place).unwrap_or(usize::MAX).min(file.bytes.len());
        let rest = file.bytes.split_off(length);
        if cut.is_hole {
            self.hole(file)?;
            if let Some((chunk, hasher)) = file.hole.take() {
                self.contents.set_chunk_digest(chunk, hasher.finish());
            }
        } else {
            let bytes = std::mem::take(&mut file.bytes);
            // The digest of a file that is one chunk is that of the chunk.
            if cut.end < file.size || file.place > 0 {
                file.whole.update(&bytes);
            }
            let chunk = Some(self.contents.chunk(bytes.len() as u64, false)?);
            self.submit(Piece { payload: bytes.len(), bytes, chunk })?;
        }
        let is_whole = length as u64 == file.size && !cut.is_hole;
        file.place = cut.end;
        file.bytes = rest;
        if file.place == file.size && !is_whole {
            self.contents.set_file_digest(std::mem::take(&mut file.whole).finish());
        }
        Ok(())
    }

    /// Writes the current zeros as a frame of the hole that they are a part of.
    fn hole(&mut self, file: &mut FileCut) -> Result<(), WriteError> {
        let bytes = std::mem::take(&mut file.bytes);
        let count = bytes.len() as u64;
        if count == 0 {
            return Ok(());
        }
        file.place += count;
        file.whole.update(&bytes);
        let chunk = match &mut file.hole {
            Some((chunk, hasher)) => {
                self.contents.extend_chunk(*chunk, count);
                hasher.update(&bytes);
                *chunk
            }
            none => {
                let chunk = self.contents.chunk(count, true)?;
                let (_, hasher) = none.insert((chunk, Hasher::new()));
                hasher.update(&bytes);
                chunk
            }
        };
        self.submit(Piece { bytes, payload: 0, chunk: Some(chunk) })
    }

    fn finish<R: Read>(mut self, source: Source<R>, before: &Before) -> Result<Written, WriteError> {
        let mut tar_bytes = source.position();
        if before.lacks_padding > 0 && !before.padding.is_empty() {
            self.split = None;
        }
        let mut trailer = [&before.padding[..], &before.headers].concat();
        source.rest(|bytes| {
            tar_bytes += bytes.len() as u64;
            self.put(bytes)?;
            self.trail(&mut trailer, bytes)
        })?;
        self.trail(&mut trailer, &[])?;
        if let Some(split) = &mut self.split {
            split.segment(&trailer).map_err(WriteError::Blob)?;
        }
        self.close()?;
        self.blob.settle().map_err(WriteError::Blob)?;
        self.contents.land(self.blob.landed());
        let split = self.split.take().map(TarSplit::finish).transpose().map_err(WriteError::Blob)?.flatten();
        self.conclude(tar_bytes, split.as_ref())
    }

    /// Adds bytes behind the archive's end to the tar-split data, which is dropped unless all are zeros: containers/storage would
    /// look for headers there.
    fn trail(&mut self, trailer: &mut Vec<u8>, bytes: &[u8]) -> Result<(), WriteError> {
        if bytes.iter().any(|byte| *byte != 0) {
            self.split = None;
        }
        let Some(split) = &mut self.split else { return Ok(()) };
        trailer.extend_from_slice(bytes);
        if trailer.len() >= TRAILER_BYTES {
            split.segment(trailer).map_err(WriteError::Blob)?;
            trailer.clear();
        }
        Ok(())
    }

    /// Appends the skippable frames.
    fn conclude(mut self, tar_bytes: u64, split: Option<&Done>) -> Result<Written, WriteError> {
        let TocJson { json, meaning, mut counts } = self.contents.tell(split.map(|split| &split.digest))?;
        counts.pieces = self.blob.pieces();
        let json_length = json.len() as u64;
        let encoded = Encoder::zstd(self.level).and_then(|mut encoder| encoder.encode(&json));
        let toc = encoded.map_err(WriteError::Blob)?;
        drop(json);
        if toc.len() as u64 > limits::TOC_COMPRESSED_BYTES {
            return Err(WriteError::TocTooLarge);
        }
        let start = skippable(&mut self.blob, &toc)?;
        let place = TocPlace::InBlob(start..self.blob.position());
        let position = [start, toc.len() as u64, json_length, MANIFEST_TYPE];
        let mut annotations = BTreeMap::from([
            (format!("{PREFIX}manifest-checksum"), Digest::of(&toc).to_string()),
            (format!("{PREFIX}manifest-position"), colons(&position)),
        ]);
        let mut split_position = [0; 3];
        if let Some(Done { compressed, decoded, .. }) = split {
            split_position = [skippable(&mut self.blob, compressed)?, compressed.len() as u64, *decoded];
            annotations.insert(format!("{PREFIX}tarsplit-position"), colons(&split_position));
        }
        let words = position.iter().chain(&split_position).flat_map(|word| word.to_le_bytes());
        let footer: Vec<u8> = words.chain(*FOOTER_MAGIC).collect();
        skippable(&mut self.blob, &footer)?;
        let (blob, _) = self.blob.finish().map_err(WriteError::Blob)?;
        let written = Written {
            blob,
            compression: Compression::Zstd,
            diff_id: self.hasher.finish(),
            uncompressed_size: tar_bytes,
            annotations,
            external_toc: None,
            not_prioritised: Vec::new(),
            counts,
        };
        check(meaning, &written, &place, &toc)?;
        Ok(written)
    }
}

/// Appends a frame that decoders skip, and returns where its body starts.
fn skippable<W: Write>(blob: &mut OrderedWriter<W>, body: &[u8]) -> Result<u64, WriteError> {
    let length = u32::try_from(body.len()).map_err(|_| WriteError::TocTooLarge)?;
    blob.append(&SKIPPABLE_MAGIC).map_err(WriteError::Blob)?;
    blob.append(&length.to_le_bytes()).map_err(WriteError::Blob)?;
    let start = blob.position();
    blob.append(body).map_err(WriteError::Blob)?;
    Ok(start)
}

fn colons(words: &[u64]) -> String {
    words.iter().map(u64::to_string).collect::<Vec<_>>().join(":")
}

/// A file that is being cut into chunks.
struct FileCut {
    size: u64,
    /// Offset of `bytes` in the file.
    place: u64,
    /// Bytes of the incomplete chunk.
    bytes: Vec<u8>,
    /// Hasher of the cut part of the file. Unused for a file of one chunk of data.
    whole: Hasher,
    /// The incomplete hole, of which frames were written already.
    hole: Option<(usize, Hasher)>,
}
