//! A tier: layers that hosts share in a bucket (S3, Google Cloud Storage, Azure) or in a folder of a shared file system.
//!
//! A layer that one host has streamed need not be fetched from its registry by others. The tier has of each such layer:
//!
//! | object | contents | proof |
//! |---|---|---|
//! | `v1/layers/HEX/blob` | the layer's blob, as its registry sends it | HEX is its sha256 |
//! | `v1/layers/HEX/index-SHA256` | its index: where its files are | its name has its own sha256; that it describes the layer is a claim of who wrote it |
//! | `v1/layers/HEX/claim-N` | the host that streams the layer now, and how much it has received ([`claim`]) | none |
//! | `v1/layers/HEX/used` | nothing; its time is when a host last used the layer, within a day | none |
//!
//! Blobs and indexes are named by their digests, so hosts that write one at the same time write the same. A claim is created only if it is
//! absent, and changed by its owner. No clock decides about claims; clocks of hosts and the store are compared by the day, for `used`.
//!
//! Objects with other names are not a tier's: they are neither read, nor counted, nor removed. Neither are symbolic links in a folder, nor
//! what is behind them. Failures of reads and of writes are apart: a tier that is full, or may only be read, is still read.
//!
//! A tier is never needed: if it is away, full, slow or wrong, bytes come from the registry, and nothing that it returns is used before its
//! digest was compared. Out of scope: what an index means, and when a layer is shared.

pub mod claim;
mod contents;
mod error;
mod folder;
mod health;
mod layer;
mod leftovers;
mod links;
mod listing;
mod location;
mod names;
mod options;
mod parts;
mod reads;
#[cfg(test)]
mod tests;
mod tier;
mod timing;
mod upload;

pub use contents::{LayerUse, Usage, Verdict};
pub use error::{Error, ErrorKind, Result};
pub use layer::{LayerState, SharedLayer};
pub use leftovers::Leftovers;
pub use location::{InvalidLocation, TierLocation};
pub use options::TierOptions;
pub use reads::TieredBlobs;
pub use tier::{Tier, TierAccount};
pub use upload::Upload;
