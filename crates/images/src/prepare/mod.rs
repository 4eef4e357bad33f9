//! From an image reference to a complete record in the store.

pub mod assemble;
mod beginning;
pub mod complete;
mod exclusive;
mod kept;
pub mod known;
pub mod layer;
mod layers;
mod local;
mod obtain;
pub mod pipe;
mod platform;
pub mod preparation;
mod shared;
mod stream;
mod stream_job;
pub mod toc;
mod unstreamed;

pub use layers::STREAMS;
