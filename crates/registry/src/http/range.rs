//! `Content-Range` (RFC 9110 §14.4), single byte ranges only.

/// The range of a 206 or 416. Both ends are inclusive, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRange {
    /// `bytes FIRST-LAST/TOTAL`; `None` stands for a total of `*`.
    Bytes {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte.
        last: u64,
        /// Length of the whole.
        total: Option<u64>,
    },
    /// `bytes */TOTAL`: the range is not satisfiable.
    Unsatisfied {
        /// Length of the whole.
        total: u64,
    },
}

impl ContentRange {
    /// Parses the value of the header. Anything that is not exactly one consistent range is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim().split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, total) = rest.trim().split_once('/')?;
        let total = match total.trim() {
            "*" => None,
            number => Some(digits(number)?),
        };
        if range.trim() == "*" {
            return Some(Self::Unsatisfied { total: total? });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (digits(first.trim())?, digits(last.trim())?);
        let consistent = first <= last && total.is_none_or(|total| last < total);
        consistent.then_some(Self::Bytes { first, last, total })
    }
}

/// A decimal number without sign.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_of_rfc_9110_are_understood() {
        let bytes = |first, last, total| Some(ContentRange::Bytes { first, last, total });
        assert_eq!(ContentRange::parse("bytes 0-99/1234"), bytes(0, 99, Some(1234)));
        assert_eq!(ContentRange::parse("Bytes 5-5/*"), bytes(5, 5, None));
        assert_eq!(ContentRange::parse("bytes */47"), Some(ContentRange::Unsatisfied { total: 47 }));
    }

    #[test]
    fn inconsistent_ranges_are_none() {
        for text in [
            "",
            "bytes",
            "bytes 0-99",
            "bytes 9-0/10",
            "bytes 0-10/10",
            "bytes -5/10",
            "bytes +1-5/10",
            "bytes 0-5, 7-9/10",
            "items 0-1/2",
            "bytes */*",
            "bytes 0-18446744073709551616/*",
        ] {
            assert_eq!(ContentRange::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(first in 0..1u64 << 40, length in 1..1u64 << 20, rest in 0..1u64 << 20) {
            let last = first + length - 1;
            let total = last + 1 + rest;
            let read = ContentRange::parse(&format!("bytes {first}-{last}/{total}"));
            prop_assert_eq!(read, Some(ContentRange::Bytes { first, last, total: Some(total) }));
        }
    }
}
