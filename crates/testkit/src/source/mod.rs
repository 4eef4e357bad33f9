//! Both edges of `tarpon-fetch` in memory: a scripted source, a store that fails on demand, and layers with known contents.

mod blobs;
mod packed;
mod store;
mod traffic;

pub use blobs::{MemorySource, Reply, Requested, Then};
pub use packed::{Form, PackedLayer, Packer, table_of};
pub use store::{HeldHashing, MemoryStore, Refusal};
pub use traffic::{Peaks, Traffic};
