//! Layers and images in memory: tars in all dialects, their compressions, eStargz, zstd:chunked, OCI layouts.
//!
//! The writers do what tests need: their output is valid and exercises every feature of the readers, on request.

pub mod bombs;
mod check;
mod compress;
mod estargz;
mod hostile_tar;
mod hostile_toc;
mod image;
mod item;
pub mod random;
mod soci;
mod tar;
mod toc;
mod zstd_chunked;

use std::collections::BTreeMap;

use tarpon_oci::{Blob, Compression, Digest};

pub use check::check_index;
pub use compress::{gzip, gzip_members, gzip_with_header, skippable_frame, zstd, zstd_frames};
pub use estargz::{EstargzOptions, FooterKind, estargz, estargz_from_toc, external_toc, footer, toc_member};
pub use hostile_tar::hostile_tars;
pub use hostile_toc::hostile_tocs;
pub use image::{Image, ImageBuilder};
pub use item::{Item, ItemKind};
pub use soci::{SOCI_V1, SOCI_V2, SpanStart, Value, Ztoc, ZtocEntry, flatbuffer, soci_manifest, with_soci_index};
pub use tar::{Dialect, RawHeader, Tar, pad, pax_record, tar};
pub use zstd_chunked::{Spelling, ZstdChunkedOptions, zstd_chunked, zstd_chunked_from_toc};

/// A layer as stored in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// How the blob is compressed.
    pub compression: Compression,
    /// Annotations of the descriptor.
    pub annotations: BTreeMap<String, String>,
    /// The blob.
    pub blob: Vec<u8>,
    /// Digest of the decompressed blob.
    pub diff_id: Digest,
}

impl Layer {
    /// Compresses `tar` in one piece.
    pub fn plain(tar: &[u8], compression: Compression) -> Self {
        let blob = match compression {
            Compression::None => tar.to_vec(),
            Compression::Gzip => gzip(tar),
            Compression::Zstd => zstd(tar),
        };
        Self { compression, annotations: BTreeMap::new(), blob, diff_id: Digest::of(tar) }
    }

    /// A gzip-compressed tar of these entries.
    pub fn gzip(items: &[Item]) -> Self {
        Self::plain(&tar(items, Dialect::Pax), Compression::Gzip)
    }

    /// An eStargz layer of these entries.
    pub fn estargz(items: &[Item]) -> Self {
        estargz(items, EstargzOptions::default())
    }

    /// Digest and size of the blob.
    pub fn descriptor(&self) -> Blob {
        Blob { digest: Digest::of(&self.blob), size: self.blob.len() as u64 }
    }
}
