//! The API as its clients see it: over its socket, with every answer held against the description.
#![allow(clippy::unwrap_used, reason = "tests")]

mod description;
mod failures;
mod isolation;
mod lab;
mod listening;
mod mounting;
mod preparing;
