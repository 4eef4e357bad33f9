//! Writes layers that can be read piece by piece: [`estargz`] and [`zstd_chunked`].
//!
//! A writer reads the decompressed tar of a layer and returns a blob, and its description for a manifest ([`Written`]). The tar is
//! walked by the same reader that imports plain layers. A tar that it refuses cannot be converted. At the end the new table of
//! contents is read back as any reader does, and must describe exactly the tar: a layer that would look different after conversion
//! is an error ([`WriteError::OrderMatters`]).
//!
//! The same tar and options give the same bytes, whatever the number of threads: a blob does not depend on the clock, the host or
//! the order in which threads finish. Memory does not grow with the files of a layer, only with their number, and that is charged
//! to an [`Allowance`] before it is used.
//!
//! [`OrderedWriter`] compresses the pieces of such blobs on several threads.

mod contents;
mod crc64;
mod cutter;
mod encode;
mod error;
mod estargz;
mod header;
mod ordered;
mod own_tar;
mod prioritised;
mod record;
mod source;
mod tar_split;
pub(crate) mod time;
mod written;
mod zstd_chunked;

pub use contents::Counts;
pub use encode::Encoder;
pub use error::{Unrepresentable, WriteError};
pub use estargz::{DEFAULT_ESTARGZ_CHUNK_BYTES, DEFAULT_GZIP_LEVEL, EstargzOptions, estargz, estargz_prioritised};
pub use ordered::{Landed, OrderedWriter, Piece};
pub use written::{ExternalToc, Written};
pub use zstd_chunked::{DEFAULT_ZSTD_LEVEL, ZstdChunkedOptions, zstd_chunked};
