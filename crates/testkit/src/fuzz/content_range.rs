//! Invariant: an accepted range is consistent and prints as text that parses to the same range.

use tarpon_registry::ContentRange;

/// Parses `data` as the value of `Content-Range`.
pub fn content_range(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(range) = ContentRange::parse(text) else { return };
    let printed = match range {
        ContentRange::Bytes { first, last, total } => {
            assert!(first <= last && total.is_none_or(|total| last < total));
            let total = total.map_or("*".to_owned(), |total| total.to_string());
            format!("bytes {first}-{last}/{total}")
        }
        ContentRange::Unsatisfied { total } => format!("bytes */{total}"),
    };
    assert_eq!(ContentRange::parse(&printed), Some(range));
}
