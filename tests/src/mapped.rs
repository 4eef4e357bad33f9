//! Reads a file through a mapping.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// Size of a page, at most.
const PAGE: usize = 4096;

/// A file, whose pages were all read through a mapping. A read that fails is a SIGBUS, which ends the process.
#[expect(unsafe_code, reason = "a mapping is what is tested")]
pub fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the file belongs to a read-only mount of an image: its bytes never change.
    let map = unsafe { Mmap::map(&file)? };
    std::hint::black_box(map.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
    Ok(map)
}
