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
mod layer;
pub mod random;
mod soci;
mod tar;
mod toc;
mod zstd_chunked;

pub use check::check_index;
pub use compress::{gzip, gzip_members, gzip_with_header, skippable_frame, zstd, zstd_frames};
pub(crate) use estargz::estargz_from_toc;
pub use estargz::{EstargzOptions, FooterKind, estargz, external_toc, footer};
pub use hostile_tar::hostile_tars;
pub use hostile_toc::hostile_tocs;
pub use image::{Image, ImageBuilder};
pub use item::{Item, ItemKind};
pub use layer::Layer;
pub use soci::{SOCI_V1, SOCI_V2, SpanStart, Value, Ztoc, ZtocEntry, soci_manifest, with_soci_index};
pub use tar::{Dialect, RawHeader, Tar, pad, pax_record, tar};
pub(crate) use zstd_chunked::zstd_chunked_from_toc;
pub use zstd_chunked::{Spelling, ZstdChunkedOptions, zstd_chunked};
