//! Mounts on the real kernel, in both modes, over objects in memory. Needs root and `/dev/fuse`; says so and passes without.

mod bed;
mod failures;
mod lifecycle;
mod objects;
mod operations;
mod unprivileged;
mod writable;
