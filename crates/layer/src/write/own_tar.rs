//! The eStargz additions to a tar: headers of its own files, the entry with the table of contents, and the footer.

use crate::tar::BLOCK;
use crate::toc::TOC_NAME;

/// The header of a regular file of the format: no mode, owner or time.
pub(super) fn header(name: &str, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut field = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    field(0, name.as_bytes());
    for at in [100, 108, 116] {
        field(at, b"0000000");
    }
    field(124, format!("{size:011o}").as_bytes());
    field(136, b"00000000000");
    field(148, b"        ");
    field(156, b"0");
    field(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// The end of a tar: the table of contents and the trailer. The JSON is not copied, because it can be large.
pub(super) fn toc(mut json: Vec<u8>) -> Vec<u8> {
    let header = header(&String::from_utf8_lossy(TOC_NAME), json.len() as u64);
    let blocks = json.len().next_multiple_of(BLOCK);
    json.reserve_exact(blocks - json.len() + 3 * BLOCK);
    json.splice(..0, header);
    json.resize(blocks + 3 * BLOCK, 0);
    json
}

/// An empty gzip member with this extra field.
pub(super) fn footer(extra: &[u8]) -> Vec<u8> {
    let mut footer = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff".to_vec();
    footer.extend_from_slice(&u16::try_from(extra.len()).unwrap_or(u16::MAX).to_le_bytes());
    footer.extend_from_slice(extra);
    // An empty stored block, the checksum and the length of nothing.
    footer.extend_from_slice(b"\x01\0\0\xff\xff\0\0\0\0\0\0\0\0");
    footer
}
