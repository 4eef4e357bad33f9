//! Invariant: a TOC is refused or gives an index that keeps its promises and stays inside the blob's data; any position
//! in the annotation is refused or lies inside the blob.

use std::collections::BTreeMap;

use tarpon_layer::toc::Claim;
use tarpon_oci::{Compression, Digest, MediaType};

use super::toc_of;
use crate::layers::{Spelling, check_index, zstd_chunked_from_toc};

/// Parses `data` as the position of a TOC, and as its JSON.
pub fn zstd_chunked_toc(data: &[u8]) {
    let text = String::from_utf8_lossy(&data[..data.len().min(100)]).into_owned();
    let prefix = "io.github.containers.zstd-chunked.manifest-";
    let annotations = BTreeMap::from([
        (format!("{prefix}checksum"), Digest::of(data).to_string()),
        (format!("{prefix}position"), text),
    ]);
    if let Ok(Claim::Toc(claim)) = Claim::of(&MediaType::Layer(Compression::Zstd), &annotations, 1 << 20) {
        assert!(claim.first_range().end <= 1 << 20 && !claim.first_range().is_empty());
    }
    let layer = zstd_chunked_from_toc(&[0; 1 << 16], data, Spelling::New);
    if let Ok(index) = toc_of(&layer).index() {
        check_index(&index, 1 << 16);
    }
}
