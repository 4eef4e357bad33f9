//! Invariant: whatever requests a kernel sends, in any order, each that expects an answer gets exactly one. The answers
//! are those of a naive model: for an image a list of names with their contents, for the file system of objects a table
//! of references.
//!
//! Requests are whole, as those of a kernel, but what is in them is arbitrary. Left out are those for which `fuser` itself
//! relies on the kernel's lengths (WRITE, SETXATTR, IOCTL).

use super::fuse::{Input, image, objects};

/// Sends the requests in `data` to one of the file systems.
pub fn fuse_requests(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let input = Input::new(rest);
    match kind & 1 {
        0 => image::run(input, *kind >> 1),
        _ => objects::run(input, *kind >> 1),
    }
}
