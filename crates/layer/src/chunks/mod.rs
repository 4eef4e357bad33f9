//! [`ChunkTable`]: where the bytes of every object of an image are, as one file that is mapped and searched without a parse.
//!
//! One table per image. It is written once ([`ChunkTableBuilder`]) and checked once when it is opened; after that every answer
//! is a binary search. The check makes sure that no answer can leave the table, and that each object's chunks cover it
//! exactly. It does not know whether the digests are true: whoever reads bytes compares them.

mod builder;
mod format;
mod table;

pub use builder::{ChunkTableBuilder, ChunkTableError};
pub use table::{CheckpointEntry, ChunkEntry, ChunkTable, InvalidChunkTable, LayerEntry, ObjectEntry};
