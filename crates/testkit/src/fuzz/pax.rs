//! Invariant: an extended header applies to the entry after it only; for any records in it, a following entry is read as
//! it is written (CVE-2025-62518).

use tarpon_layer::tar::{TarKind, TarReader};

use crate::layers::{RawHeader, Tar};

/// Parses `data` as the records of an extended header.
pub fn pax(data: &[u8]) {
    let header = RawHeader::new("PaxHeaders/x").kind(b'x');
    let bytes =
        Tar::new().sized(header, data).sized(RawHeader::new("first"), b"").sized(RawHeader::new("second"), b"2");
    let bytes = bytes.finish();
    let mut tar = TarReader::new(&bytes[..]);
    let Ok(Some(first)) = tar.next_entry() else { return };
    assert_eq!(first.kind, TarKind::File);
    if first.size > 0 && !first.is_sparse {
        // A size record made the second entry part of the first one's data.
        return;
    }
    let second = tar.next_entry().expect("it is sound").expect("it is there");
    assert_eq!((&*second.name, second.size), (&b"second"[..], 1));
    assert!(second.attributes.xattrs.is_empty() && second.attributes.uid == 0);
    assert_eq!(second.attributes.mtime.seconds, 1_700_000_000);
    assert!(tar.next_entry().expect("it is sound").is_none());
}
