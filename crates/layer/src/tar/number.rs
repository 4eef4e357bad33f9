//! The numbers of tar headers: octal text, or GNU's base-256. Extended headers have decimal ones.

/// A number in a header field: octal digits between optional spaces and NULs, or, where the first byte has its high bit set,
/// big-endian two's complement in the remaining bits. An empty field is 0. `None` for anything else.
pub(crate) fn parse(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => base256(field),
        _ => octal(field),
    }
}

/// As [`parse`], for values that cannot be negative.
pub(super) fn parse_unsigned(field: &[u8]) -> Option<u64> {
    parse(field).and_then(|number| u64::try_from(number).ok())
}

/// Parses decimal digits and nothing else.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

fn octal(field: &[u8]) -> Option<i64> {
    let start = field.iter().position(|byte| !matches!(byte, b' ' | 0)).unwrap_or(field.len());
    let mut number: i64 = 0;
    for byte in &field[start..] {
        match byte {
            b'0'..=b'7' => number = number.checked_mul(8)?.checked_add(i64::from(byte - b'0'))?,
            b' ' | 0 => break,
            _ => return None,
        }
    }
    Some(number)
}

fn base256(field: &[u8]) -> Option<i64> {
    let negative = field[0] & 0x40 != 0;
    let mut number: i64 = if negative { -1 } else { 0 };
    let first = if negative { field[0] } else { field[0] & 0x7f };
    for byte in std::iter::once(first).chain(field[1..].iter().copied()) {
        number = number.checked_mul(256)?.checked_add(i64::from(byte))?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_fields_of_all_dialects() {
        for field in [&b"0000644\0"[..], b"   644 \0", b"000644 \0", b"644\0junk", b"00000644", b"\0\x20644\0\0\0"] {
            assert_eq!(parse(field), Some(0o644), "{}", field.escape_ascii());
        }
        assert_eq!(parse(b"\0\0\0\0"), Some(0));
        assert_eq!(parse(b"        "), Some(0));
        assert_eq!(parse(b"777777777777"), Some((1 << 36) - 1));
        for field in [&b"-000001\0"[..], b"0000648\0", b"0x1\0", b"77777777777777777777777777"] {
            assert_eq!(parse(field), None, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn base_256_is_two_complement() {
        assert_eq!(parse(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(parse(&[0xff; 12]), Some(-1));
        assert_eq!(parse(&[0xff, 0xff, 0xff, 0xfe]), Some(-2));
        assert_eq!(parse(&[0x80, 0xb2, 0xd0, 0x5e, 0]), Some(3_000_000_000));
        assert_eq!(parse(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Some(i64::MAX));
        assert_eq!(parse(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(parse_unsigned(&[0xff; 8]), None);
    }
}
