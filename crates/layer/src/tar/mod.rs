//! Parses a tar stream entry by entry, strictly.
//!
//! Reads V7, ustar, star, GNU and PAX archives front to back. The dialects' extensions (long names, sparse files, extended headers)
//! are applied to the one entry that they precede and to nothing else (CVE-2025-62518). Malformed input, and input that the tools
//! that unpack images would read differently, is an error that names the entry.
//!
//! [`headers`] is the reverse, for tars that this program writes itself.
//!
//! Does not check names (see [`LayerName`](crate::LayerName)), nor relate entries to each other: [`plain`](crate::plain) does that.

mod encode;
mod error;
mod header;
mod input;
pub(crate) mod number;
pub(crate) mod pax;
mod reader;
pub(crate) mod sparse;

pub use encode::{TRAILER_BYTES, headers, padding};
pub(crate) use error::printable;
pub use error::{TarError, TarProblem};
pub use reader::{Piece, TarEntry, TarKind, TarReader};

/// Unit of a tar: headers are one block, data is padded to a multiple.
pub(crate) const BLOCK: usize = 512;
