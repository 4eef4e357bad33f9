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

/// Default of options that are on unless they are switched off.
fn on() -> bool {
    true
}

pub use router::description;
pub(crate) use router::router;
