//! A model of a registry: the v2 API, a token service and a host for blobs behind presigned addresses, all in memory.
//!
//! It answers single requests without sockets: [`crate::transport`] puts it behind the `Transport` interface,
//! [`crate::server`] behind loopback ports.

mod faults;
mod model;
mod reply;
mod scopes;
mod uploads;
mod writes;

pub use faults::{Fault, NoAnswer, answer};
pub use model::{Auth, FakeRegistry, Hosts, IDENTITY, PASSWORD, Role, USER};
pub use uploads::{Locations, Referrers};
