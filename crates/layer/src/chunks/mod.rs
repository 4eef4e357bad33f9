//! [`ChunkTable`]: the places of all objects of an image, in one file that is mapped and searched without parsing.
//!
//! One table per image. It is written once ([`ChunkTableBuilder`]) and checked once when it is opened. After that every look-up is
//! a binary search. The check ensures that no look-up leaves the table, and that each object's chunks cover it exactly. It does not
//! verify the digests: the reader of the bytes compares them.

mod builder;
mod format;
mod table;

pub use builder::{ChunkTableBuilder, ChunkTableError};
pub use table::{CheckpointEntry, ChunkEntry, ChunkTable, InvalidChunkTable, LayerEntry, ObjectEntry};
