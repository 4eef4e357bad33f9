//! Boot packs: the bytes that a recorded start touched, in the order of first touch, as zstd frames in a blob of their own.
//!
//! A pack says nothing about what bytes are right: each chunk that comes out of a frame is checked against the chunk table of
//! the image, as if it had come from its layer. A pack that lies, or ends early, or is gone, costs time and nothing else.

mod index;
mod places;
mod replay;
mod write;

pub use index::{BOOT_FRAMES, BOOT_PIECES, BootFrame, BootIndex, BootPiece, InvalidBootIndex, PROFILE_BYTES};
pub(crate) use places::Pack;
pub use replay::{REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES, REPLAY_REQUESTS};
pub use write::{BootWriter, FRAME_BYTES};
