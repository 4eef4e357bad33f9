//! The client side of the OCI distribution protocol, above [`crate::transport`].
//!
//! ```text
//! reader    pieces of a range; stalls, broken connections
//!   session   one request: scheme, token, redirect, presigned address, retry, checks of the answer
//!     auth      headers, tokens, challenges          locations   presigned addresses
//!       wire      single requests, counted and timed
//! ```

mod auth;
mod body;
mod challenge;
mod locations;
mod range;
mod reader;
mod retry;
mod session;
mod token;
mod wire;

pub use challenge::Challenge;
pub use range::ContentRange;
pub(crate) use reader::RemoteBlobs;
pub(crate) use session::Session;
