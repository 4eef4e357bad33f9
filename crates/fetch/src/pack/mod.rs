//! Boot packs: the bytes that a recorded start touched, in the order of first touch, as zstd frames in a blob of their own.
//!
//! A pack does not decide which bytes are right: each chunk of a frame is checked against the chunk table of the image, as if it came from
//! its layer. A pack that is wrong, truncated or absent costs time and nothing else.

mod index;
pub(crate) mod places;
mod write;

pub use index::{BOOT_FRAMES, BOOT_PIECES, BootFrame, BootIndex, BootPiece, InvalidBootIndex, PROFILE_BYTES};
pub use write::BootWriter;
