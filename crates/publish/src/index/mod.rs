//! Index artifacts: made locally, published, found and checked.
//!
//! A layer without a table of contents must be read once from beginning to end. The result can be stored beside the image in its registry
//! ([`artifact`](tarpon_images::index::artifact)), so that all others mount lazily from then on.

mod boot;
mod check;
mod make;
mod packs;
mod sign;
#[cfg(test)]
mod tests;

pub use self::boot::{BootPack, TraceCoverage};
pub use self::check::{IndexCheck, check_index};
pub use self::make::{ImageIndexArtifact, IndexedLayer, destination, make_index, make_index_from, publish_index};
pub use self::sign::sign;
