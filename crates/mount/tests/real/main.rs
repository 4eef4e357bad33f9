//! Mounts on the real kernel, in both modes, over objects in memory. Without root or `/dev/fuse`, prints so and passes.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::expect_used)]

mod failures;
mod fixture;
mod handles;
mod lifecycle;
mod objects;
mod operations;
mod unprivileged;
mod writable;
