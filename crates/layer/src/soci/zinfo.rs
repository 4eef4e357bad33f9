//! The checkpoints of a ztoc and the spans between them.
//!
//! | part | bytes | |
//! |---|---|---|
//! | count | 4 | of checkpoints, the first included |
//! | span size | 8 | what the writer aimed at |
//! | checkpoints | 32,785 each | offset in the blob 8, in the decoded layer 8, bits 1, window 32,768 |
//!
//! `bits` is the number of high bits of the byte *before* the offset that belong to the span. The first version of the format omits
//! the first checkpoint, which is behind a header of ten bytes there. The length distinguishes them.

use std::str::FromStr;

use tarpon_oci::Digest;

use super::ZtocError;
use super::flat::Table;
use crate::spans::{Checkpoint, FAST_WINDOW_LEVEL, WINDOW_BYTES, pack};

const HEADER: usize = 12;
const RECORD: usize = 17 + WINDOW_BYTES;
/// A gzip header without optional fields.
const PLAIN_HEADER: u64 = 10;
/// The algorithm of a ztoc that states none.
const GZIP: u8 = 1;

/// A span: the unit of fetching, comparing and decoding.
#[derive(Debug)]
pub(super) struct Span {
    /// Offset in the blob of its first byte, which the span before may share.
    pub(super) offset: u64,
    /// Length in encoded bytes.
    pub(super) length: u64,
    /// Offset of its first byte in the decoded layer.
    pub(super) decoded: u64,
    /// Digest of its encoded bytes.
    pub(super) digest: Digest,
    bits: u8,
    window: Window,
}

type Window = Option<Box<[u8]>>;

/// A checkpoint in its stored form.
struct Record<'a> {
    offset: u64,
    decoded: u64,
    bits: u8,
    /// `None`: zeros.
    window: Option<&'a [u8; WINDOW_BYTES]>,
}

impl Record<'_> {
    fn parse(record: &[u8; RECORD]) -> Option<Record<'_>> {
        let (offset, rest) = record.split_first_chunk::<8>()?;
        let (decoded, rest) = rest.split_first_chunk::<8>()?;
        let ([bits], window) = rest.split_first_chunk::<1>()?;
        let number = |bytes: &[u8; 8]| u64::try_from(i64::from_le_bytes(*bytes)).ok();
        let window = window.first_chunk::<WINDOW_BYTES>();
        Some(Record { offset: number(offset)?, decoded: number(decoded)?, bits: *bits, window })
    }

    fn start(&self) -> Option<u64> {
        self.offset.checked_sub(u64::from(self.bits > 0))
    }
}

/// The spans that `info` describes of a blob of `blob_size` bytes, ascending; at least one.
pub(super) fn spans(info: &Table<'_, '_>, blob_size: u64) -> Result<Vec<Span>, ZtocError> {
    if info.byte(0, GZIP)? != GZIP {
        return Err(ZtocError::NotLazy("about a layer that is not gzip"));
    }
    let records = records(info.bytes(3)?)?;
    let digests = info.offsets(2)?;
    let last = usize::try_from(info.int(1)?).ok();
    if last.and_then(|last| last.checked_add(1)) != Some(records.len()) || digests.len() != records.len() {
        return Err(ZtocError::Malformed("it has another number of spans than of digests"));
    }
    let ends = records.iter().skip(1).map(|next| next.offset).chain([blob_size]);
    let spans = records.iter().zip(ends).zip(digests.strings()).map(|((record, end), digest)| {
        let wrong = ZtocError::Malformed("a span is not where it can be");
        let offset = record.start().filter(|_| record.bits < 8).ok_or(wrong.clone())?;
        let length = end.checked_sub(offset).filter(|length| *length > 0 && end <= blob_size).ok_or(wrong)?;
        let digest = std::str::from_utf8(digest?).ok().and_then(|text| Digest::from_str(text).ok());
        let digest = digest.ok_or(ZtocError::Malformed("the digest of a span is none"))?;
        let window = record.window.map(|window| pack(window, FAST_WINDOW_LEVEL));
        Ok(Span { offset, length, decoded: record.decoded, digest, bits: record.bits, window })
    });
    let spans: Vec<Span> = spans.collect::<Result<_, ZtocError>>()?;
    let is_ascending =
        spans.windows(2).all(|pair| pair[0].offset < pair[1].offset && pair[0].decoded <= pair[1].decoded);
    if !is_ascending || spans.first().is_none_or(|first| first.decoded != 0) {
        return Err(ZtocError::Malformed("its spans do not follow each other"));
    }
    Ok(spans)
}

fn records(checkpoints: &[u8]) -> Result<Vec<Record<'_>>, ZtocError> {
    let wrong = ZtocError::Malformed("its checkpoints have another length than they say");
    let (header, rest) = checkpoints.split_first_chunk::<HEADER>().ok_or(wrong.clone())?;
    let count =
        header.first_chunk().map(|count| i32::from_le_bytes(*count)).and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|count| *count > 0).ok_or(wrong.clone())?;
    let (all, odd) = rest.as_chunks::<RECORD>();
    let is_implied = all.len() + 1 == count;
    if !odd.is_empty() || !(is_implied || all.len() == count) {
        return Err(wrong);
    }
    let implied = is_implied.then_some(Record { offset: PLAIN_HEADER, decoded: 0, bits: 0, window: None });
    let records = all.iter().map(|record| Record::parse(record).ok_or(ZtocError::Malformed("a checkpoint is nowhere")));
    implied.into_iter().map(Ok).chain(records).collect()
}

impl Span {
    /// The checkpoint that decoding it starts from.
    pub(super) fn checkpoint(self) -> Checkpoint {
        let window = self.window.unwrap_or_else(|| pack(&[0; WINDOW_BYTES], FAST_WINDOW_LEVEL));
        Checkpoint { offset: self.offset, used_bits: (8 - self.bits) % 8, window }
    }
}
