//! New images from what was written over old ones.
//!
//! ```text
//! request    what to commit
//! image      the new image: its layer, its documents, its place in the store
//! input      the upper directory that is read, and the image below it
//! marks      overlayfs's attributes of a file
//! upper      the upper directory, entry by entry
//! stream     … as the tar of a layer
//! layer      … written, compressed
//! change_watch  whether it changed while it was read
//! base       the image below: manifest and config
//! change     changes to the config
//! document   config and manifest of the new image
//! push       its way to a registry
//! ```
//!
//! Nothing of the base's layers is read. They stay where they are, and a push has the registry mount them from the base's repository.

mod base;
mod change;
mod change_watch;
mod document;
mod image;
mod input;
mod layer;
mod marks;
mod push;
mod request;
mod stream;
mod upper;

pub use self::change::Change;
pub use self::image::commit;
pub use self::push::{PushRequest, Pushed, PushedLayer, PushedOutcome, push};
pub use self::request::{CommitReport, CommitRequest, CommitSource};
