//! Opens a claimed TOC: from the claim to verified bytes.

use std::io::Read;
use std::ops::Range;

use tarpon_oci::{Digest, Verified, limits};

use super::claim::{Format, TocClaim};
use super::error::{NotLazy, TocError};
use super::footer::{self, Footer, SKIPPABLE_HEADER};
use super::{TOC_NAME, build};
use crate::decode::{Compression, DecodeError, LayerReader};
use crate::index::LayerIndex;
use crate::tar::{TarKind, TarReader};
use crate::{Allowance, Excess, Share};

/// Bounds of the first estimate of the length of an eStargz TOC and footer.
const TAIL: Range<u64> = 64 << 10..4 << 20;

/// Bytes of a TOC that are decoded at a time.
const STEP: u64 = 64 << 10;

/// The place of a TOC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TocPlace {
    /// In these bytes of the layer's blob.
    InBlob(Range<u64>),
    /// Not in the blob but in an image of its own: see [`EXTERNAL_TOC_TAG_SUFFIX`](super::EXTERNAL_TOC_TAG_SUFFIX).
    External {
        /// End of the data of the layer's blob.
        data_end: u64,
    },
}

/// A TOC whose digest was checked.
#[derive(Debug)]
pub struct Toc {
    json: Vec<u8>,
    format: Format,
    data_end: u64,
    /// Memory of the JSON.
    memory: Share,
}

impl TocClaim {
    /// The claimed format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The digest that the TOC must have: of its JSON for eStargz, of its compressed bytes for zstd:chunked.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The bytes of the blob to fetch first. They always suffice to find the TOC, and usually contain it. Empty for an empty blob.
    pub fn first_range(&self) -> Range<u64> {
        match self.format {
            Format::ZstdChunked => self.position.offset..self.position.offset + self.position.compressed,
            // TOCs are about one percent of the blob.
            Format::Estargz => {
                self.blob_size.saturating_sub((self.blob_size / 64).clamp(TAIL.start, TAIL.end))..self.blob_size
            }
        }
    }

    /// The place of the TOC, given the bytes of [`TocClaim::first_range`].
    ///
    /// # Errors
    /// [`TocError::Footer`], or [`TocError::NotLazy`] if it is too long.
    pub fn locate(&self, first: &[u8]) -> Result<TocPlace, TocError> {
        let place = match self.format {
            Format::ZstdChunked => {
                if self.position.decoded > limits::TOC_BYTES {
                    return Err(TocError::NotLazy(NotLazy::TocTooLarge(self.position.decoded)));
                }
                self.first_range()
            }
            Format::Estargz => match footer::parse(first) {
                None => return Err(TocError::Footer("there is none")),
                Some(Footer::External { length }) => {
                    return Ok(TocPlace::External { data_end: self.blob_size.saturating_sub(length) });
                }
                Some(Footer::At { toc, length }) => {
                    let end = self.blob_size.saturating_sub(length);
                    if toc >= end {
                        return Err(TocError::Footer("it points outside the blob"));
                    }
                    toc..end
                }
            },
        };
        let length = place.end - place.start;
        if length > limits::TOC_COMPRESSED_BYTES {
            return Err(TocError::NotLazy(NotLazy::TocTooLarge(length)));
        }
        Ok(TocPlace::InBlob(place))
    }

    /// The part of `first` (the bytes of [`TocClaim::first_range`]) that is the TOC, if it is complete.
    pub fn within<'a>(&self, place: &TocPlace, first: &'a [u8]) -> Option<&'a [u8]> {
        let TocPlace::InBlob(range) = place else { return None };
        let start = usize::try_from(range.start.checked_sub(self.first_range().start)?).ok()?;
        let length = usize::try_from(range.end - range.start).ok()?;
        first.get(start..)?.get(..length)
    }

    /// Decodes and checks the TOC from its bytes in the blob, or from the blob of the external TOC's layer. The result is charged
    /// to `allowance`.
    ///
    /// # Errors
    /// [`TocError`], in particular when the digest is not the claimed one.
    pub fn open(&self, place: &TocPlace, encoded: &[u8], allowance: &Allowance) -> Result<Toc, TocError> {
        let (data_end, needed) = match place {
            TocPlace::External { data_end } => (*data_end, None),
            TocPlace::InBlob(range) => match self.format {
                Format::Estargz => (range.start, Some(range)),
                Format::ZstdChunked => (range.start.saturating_sub(SKIPPABLE_HEADER), Some(range)),
            },
        };
        if let Some(Range { start, end }) = needed.filter(|range| range.end - range.start != encoded.len() as u64) {
            return Err(TocError::Incomplete { needed_from: *start, needed_to: *end, got: encoded.len() });
        }
        let mut memory = allowance.share();
        let json = match self.format {
            Format::Estargz => Verified::check(&self.digest, estargz_json(encoded, &mut memory)?)?.into_inner(),
            Format::ZstdChunked => {
                let encoded = Verified::check(&self.digest, encoded)?;
                zstd_json(&encoded, self.position.decoded, &mut memory)?
            }
        };
        Ok(Toc { json, format: self.format, data_end, memory })
    }
}

impl Toc {
    /// Parses the TOC.
    ///
    /// # Errors
    /// [`TocError::NotLazy`] if the layer must be streamed, any other if it must be refused.
    pub fn index(&self) -> Result<LayerIndex, TocError> {
        self.index_and_prefetch().map(|(index, _)| index)
    }

    /// As [`Toc::index`], with the end of the part of the blob to prefetch, if a landmark marks it (eStargz).
    ///
    /// # Errors
    /// As [`Toc::index`].
    pub fn index_and_prefetch(&self) -> Result<(LayerIndex, Option<u64>), TocError> {
        build::index(&self.json, self.format, self.data_end, self.memory.allowance())
    }

    /// The JSON, for inspection.
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

/// The payload of the tar in the TOC's gzip member.
fn estargz_json(encoded: &[u8], memory: &mut Share) -> Result<Vec<u8>, TocError> {
    // Room for the TOC, its tar headers and the trailer.
    let limit = limits::TOC_BYTES + limits::TAR_EXTENSION_BYTES;
    let decoder = LayerReader::new(encoded, Compression::Gzip).map_err(|error| gzip_error(&error))?;
    let mut tar = TarReader::new(decoder.take(limit));
    let entry = tar.next_entry()?.ok_or(TocError::Container("the archive is empty"))?;
    if entry.kind != TarKind::File || entry.name != TOC_NAME || entry.is_sparse {
        return Err(TocError::Container("the archive holds something else"));
    }
    if entry.size > limits::TOC_BYTES {
        return Err(TocError::NotLazy(NotLazy::TocTooLarge(entry.size)));
    }
    let json = read_within(&mut tar, memory)?.map_err(|error| gzip_error(&error))?;
    if tar.next_entry()?.is_some() {
        return Err(TocError::Container("the TOC is not the last entry of the archive"));
    }
    Ok(json)
}

/// All bytes of `reader`, as far as there is memory for them.
fn read_within(reader: &mut impl Read, memory: &mut Share) -> Result<std::io::Result<Vec<u8>>, Excess> {
    let mut all = Vec::new();
    loop {
        memory.take(STEP)?;
        match reader.take(STEP).read_to_end(&mut all) {
            Ok(0) => return Ok(Ok(all)),
            Ok(_) => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}

fn gzip_error(error: &std::io::Error) -> TocError {
    DecodeError::Malformed { codec: "gzip", problem: error.to_string() }.into()
}

fn zstd_json(encoded: &[u8], decoded: u64, memory: &mut Share) -> Result<Vec<u8>, TocError> {
    let error = |error: std::io::Error| DecodeError::Malformed { codec: "zstd", problem: error.to_string() };
    let decoder = LayerReader::with_window_log(encoded, Compression::Zstd, limits::ZSTD_CHUNK_WINDOW_LOG);
    let decoder = decoder.map_err(error)?;
    let json = read_within(&mut decoder.take(decoded + 1), memory)?.map_err(error)?;
    if json.len() as u64 != decoded {
        return Err(TocError::Container("its decoded length differs from the annotation"));
    }
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::super::claim::Position;
    use super::*;

    const FOOTER: u64 = 51;

    fn zstd_chunked(compressed: u64, decoded: u64) -> TocClaim {
        let position = Position { offset: 100, compressed, decoded };
        TocClaim { format: Format::ZstdChunked, digest: Digest::of(b"toc"), blob_size: 1 << 40, position }
    }

    /// The verdict on an eStargz of this size whose footer points to `toc`.
    fn located(toc: u64, blob_size: u64) -> Result<TocPlace, TocError> {
        let (digest, position) = (Digest::of(b"toc"), Position::default());
        let claim = TocClaim { format: Format::Estargz, digest, blob_size, position };
        let extra = [b"SG\x16\0".as_slice(), format!("{toc:016x}STARGZ").as_bytes()].concat();
        claim.locate(&footer::tests::footer(&extra))
    }

    #[test]
    fn a_toc_may_be_as_large_as_the_limits_and_not_larger() {
        let (most, decoded) = (limits::TOC_COMPRESSED_BYTES, limits::TOC_BYTES);
        assert_eq!(zstd_chunked(most, decoded).locate(&[]).unwrap(), TocPlace::InBlob(100..100 + most));
        assert_eq!(located(100, 100 + most + FOOTER).unwrap(), TocPlace::InBlob(100..100 + most));
        for (too_large, size) in [
            (zstd_chunked(most + 1, decoded).locate(&[]), most + 1),
            (zstd_chunked(most, decoded + 1).locate(&[]), decoded + 1),
            (located(100, 101 + most + FOOTER), most + 1),
        ] {
            assert!(matches!(too_large, Err(TocError::NotLazy(NotLazy::TocTooLarge(is))) if is == size), "{size}");
        }
    }

    #[test]
    fn a_toc_with_a_larger_window_than_a_chunk_may_have_is_refused() {
        use std::io::Write as _;
        let json = vec![b' '; 1 << 20];
        let encoded = |window_log| {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(window_log).unwrap();
            encoder.write_all(&json).unwrap();
            encoder.finish().unwrap()
        };
        let read = |window_log| {
            let mut memory = Allowance::default().share();
            zstd_json(&encoded(window_log), json.len() as u64, &mut memory)
        };
        assert!(read(limits::ZSTD_CHUNK_WINDOW_LOG).unwrap() == json);
        assert!(matches!(read(limits::ZSTD_CHUNK_WINDOW_LOG + 1), Err(TocError::Decode(_))));
    }

    #[test]
    fn a_footer_that_points_to_itself_or_behind_it_is_refused() {
        assert_eq!(located(999, 1000 + FOOTER).unwrap(), TocPlace::InBlob(999..1000));
        for toc in [1000, 1001, u64::MAX] {
            assert!(matches!(located(toc, 1000 + FOOTER), Err(TocError::Footer(_))), "{toc}");
        }
    }
}
