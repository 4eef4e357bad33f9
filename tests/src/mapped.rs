//! Reads a file through a mapping.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// Size of a page, at most.
const PAGE: usize = 4096;
/// Bytes between two calls of `step`: what the kernel reads ahead.
const STEP: usize = 128 << 10;

/// A file, whose pages were all read through a mapping. A read that fails is a SIGBUS, which ends the process. `step` is called after each
/// 128 KiB.
#[expect(unsafe_code, reason = "a mapping is what is tested")]
pub fn map(path: &Path, mut step: impl FnMut()) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the file belongs to a read-only mount of an image: its bytes never change.
    let map = unsafe { Mmap::map(&file)? };
    for part in map.chunks(STEP) {
        std::hint::black_box(part.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
        step();
    }
    Ok(map)
}
