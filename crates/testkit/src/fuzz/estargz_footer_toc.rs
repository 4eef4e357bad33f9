//! Invariant: the end of a blob gives a position inside the blob or an error; a TOC is refused or gives an index that
//! keeps its promises and stays inside the blob's data.

use std::collections::BTreeMap;

use tarpon_layer::toc::{Claim, TocPlace};
use tarpon_oci::{Compression, Digest, MediaType};

use super::toc_of;
use crate::layers::{check_index, estargz_from_toc};

/// Parses `data` as the end of a blob, and as the JSON of a TOC.
pub fn estargz_footer_toc(data: &[u8]) {
    let name = "containerd.io/snapshot/stargz/toc.digest".to_owned();
    let annotations = BTreeMap::from([(name, Digest::of(data).to_string())]);
    let size = data.len() as u64;
    let Ok(Claim::Toc(claim)) = Claim::of(&MediaType::Layer(Compression::Gzip), &annotations, size) else {
        panic!("the claim is sound")
    };
    let first = &data[usize::try_from(claim.first_range().start).expect("small")..];
    match claim.locate(first) {
        Ok(TocPlace::InBlob(range)) => assert!(range.start < range.end && range.end <= size),
        Ok(TocPlace::External { data_end }) => assert!(data_end <= size),
        Err(_) => {}
    }
    let layer = estargz_from_toc(&[0; 1 << 16], data);
    if let Ok(index) = toc_of(&layer).index() {
        check_index(&index, 1 << 16);
    }
}
