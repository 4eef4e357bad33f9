//! The client side of the OCI distribution protocol, above [`crate::transport`].
//!
//! ```text
//! reader    pieces of a range; stalls, broken connections       pushes     manifests and the lists they belong to
//!   endpoints   mirrors and the registry, in turn
//!   blobs     ranges, presigned addresses (locations)             uploads    blobs; feed: their bytes, sent again
//!     session   scheme, token, redirects, retry; manifests          referrers   the referrers of a manifest
//!       auth      headers, tokens, challenges
//!         wire      single requests (call), counted and timed; hosts: how many at once
//! ```
//!
//! The left column reads, the right one writes. Both use the session.

mod answers;
mod auth;
mod blobs;
mod body;
mod call;
mod challenge;
mod endpoints;
mod feed;
mod hosts;
mod locations;
mod pushes;
mod range;
mod reader;
mod referrers;
mod retry;
mod session;
mod tags;
mod token;
mod uploads;
mod wire;

pub(crate) use auth::Purpose;
pub use challenge::Challenge;
pub(crate) use endpoints::{Endpoints, Host};
pub(crate) use feed::{Feed, read_on};
pub(crate) use hosts::Hosts;
pub use range::ContentRange;
pub(crate) use reader::RemoteBlobs;
pub(crate) use referrers::fallback_tag;
pub(crate) use retry::Position;
pub(crate) use session::Session;
