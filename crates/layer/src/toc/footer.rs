//! The footer at the end of a blob: the place of its TOC.

/// Bytes before the body of a skippable zstd frame: magic and length.
pub(super) const SKIPPABLE_HEADER: u64 = 8;

const CURRENT: usize = 51;
const LEGACY: usize = 47;
const EXTERNAL: usize = 46;

/// The content of an eStargz footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Footer {
    /// The TOC starts here. `length` is that of the footer.
    At { toc: u64, length: u64 },
    /// The TOC is in another image. `length` is that of the footer.
    External { length: u64 },
}

/// Parses the eStargz footer at the end of `tail`, which is the end of the blob. It is an empty gzip member whose extra field
/// contains the offset. The legacy form lacks the subfield's header.
pub(super) fn parse(tail: &[u8]) -> Option<Footer> {
    let current = extra(tail, CURRENT, 26).and_then(|extra| extra.strip_prefix(b"SG\x16\0"));
    if let Some(toc) = current.and_then(offset) {
        return Some(Footer::At { toc, length: CURRENT as u64 });
    }
    if let Some(toc) = extra(tail, LEGACY, 22).and_then(offset) {
        return Some(Footer::At { toc, length: LEGACY as u64 });
    }
    let external = extra(tail, EXTERNAL, 21)?.strip_prefix(b"SG\x11\0")?;
    (external == b"STARGZEXTERNALTOC").then_some(Footer::External { length: EXTERNAL as u64 })
}

/// The extra field of a gzip header at `length` bytes before the end.
fn extra(tail: &[u8], length: usize, extra: u8) -> Option<&[u8]> {
    let footer = tail.get(tail.len().checked_sub(length)?..)?;
    let field = footer.get(12..12 + usize::from(extra))?;
    (footer.starts_with(b"\x1f\x8b\x08\x04") && footer[10..12] == [extra, 0]).then_some(field)
}

/// Parses `%016x` and the magic.
fn offset(field: &[u8]) -> Option<u64> {
    let digits = field.strip_suffix(b"STARGZ").filter(|digits| digits.len() == 16)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A gzip member without content whose extra field is this.
    pub(in crate::toc) fn footer(extra: &[u8]) -> Vec<u8> {
        let mut footer = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff".to_vec();
        footer.extend_from_slice(&[u8::try_from(extra.len()).unwrap(), 0]);
        footer.extend_from_slice(extra);
        footer.extend_from_slice(b"\x01\0\0\xff\xff\0\0\0\0\0\0\0\0");
        footer
    }

    #[test]
    fn all_three_footers_are_found_at_the_end() {
        let at = |length| Some(Footer::At { toc: 0x1a2b, length });
        assert_eq!(parse(&[b"junk".as_slice(), &footer(b"SG\x16\x000000000000001a2bSTARGZ")].concat()), at(51));
        assert_eq!(parse(&footer(b"0000000000001a2bSTARGZ")), at(47));
        assert_eq!(parse(&footer(b"SG\x11\0STARGZEXTERNALTOC")), Some(Footer::External { length: 46 }));
    }

    #[test]
    fn anything_else_is_no_footer() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(&footer(b"SG\x16\0+00000000000001aSTARGZ")), None);
        assert_eq!(parse(&footer(b"SG\x16\x000000000000001a2bSTARGX")), None);
        for (place, byte) in [(0, 0), (3, 0), (10, 25), (11, 1)] {
            let mut other = footer(b"SG\x16\x000000000000001a2bSTARGZ");
            other[place] = byte;
            assert_eq!(parse(&other), None, "not a gzip member with such a field: byte {place}");
        }
        let mut long = footer(b"SG\x16\x000000000000001a2bSTARGZ");
        long.push(0);
        assert_eq!(parse(&long), None);
    }
}
