//! Both edges of `tarpon-fetch` in memory: a source that follows a script, a store that fails on demand, and layers whose
//! contents are known.

mod blobs;
mod packed;
mod store;

pub use blobs::{MemorySource, Reply, Requested, Then};
pub use packed::{Form, PackedLayer, Packer, table_of};
pub use store::{HeldHashing, MemoryStore, Refusal};
