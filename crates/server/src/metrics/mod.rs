//! The server's metrics over HTTP, in the text format of Prometheus.
//!
//! One endpoint per server, from the first mount that requests one until the server ends. It covers all mounts of the store.

mod endpoint;
mod scrape;
mod text;

pub(super) use endpoint::Endpoint;
pub(super) use scrape::{expose, open, serve_again};
