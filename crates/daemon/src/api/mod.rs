//! The requests of the API.

mod about;
mod containers;
mod events;
mod extract;
mod images;
mod jobs;
mod mounts;
mod recordings;
mod router;

pub use router::description;
pub(crate) use router::router;
