//! The API as its clients see it: over its socket, with every response checked against the description.
#![allow(clippy::unwrap_used, reason = "tests")]

mod description;
mod failures;
mod fixture;
mod isolation;
mod learning;
mod listening;
mod mounting;
mod preparing;
