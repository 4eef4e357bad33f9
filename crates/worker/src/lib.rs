//! The confined process that receives and decodes bytes of strangers, and its users' side.
//!
//! A worker confines itself before it receives a byte ([`tarpon_sandbox`]). It connects to hosts, and reads certificates, the resolver's
//! configuration, and what its image needs of a layout, an archive or the folder of a tier. Only a worker that prepares or completes an
//! image writes: in the store, and one that prepares also in the folder of a tier. What it sends is hostile to its user, which checks
//! digests as if the bytes came from the network. A worker that ends is replaced: its user sends each request again.
//!
//! ```text
//! workers      the workers of a server, as Sources; slot: the place of each process
//! policy       what a worker may read; folder_probe: whether the folder of a tier answers
//! process      one process, and its channels
//! image, response, decoder   blobs and decoded chunks through a worker; accounts: what endpoints were asked for
//! preparer, event            images prepared in a worker of their own
//! completion                 images completed in a worker of their own, which has no network
//! supervise    answers questions for credentials, and watches for signs of life; log: what workers log
//! message, frames, packets   what is sent
//! blob_channel, blob_service, chunk_call, layer_call   requests, and how they are answered
//! service      the worker itself
//! ```

mod accounts;
mod blob_channel;
mod blob_service;
mod chunk_call;
mod completion;
mod decoder;
mod distrusted;
mod event;
mod folder_probe;
mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod image;
mod image_state;
mod layer_call;
mod log;
mod message;
mod packets;
mod policy;
mod preparer;
mod process;
mod response;
mod service;
mod slot;
mod supervise;
#[cfg(test)]
mod tests;
mod workers;

pub use preparer::WorkerPreparer;
pub use service::serve;
#[cfg(feature = "misbehave")]
pub use service::serve_and;
pub use workers::Workers;
