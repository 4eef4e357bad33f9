//! Many at once: preparing one image, and root file systems of it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cold;
mod lab;
mod rootfs;
