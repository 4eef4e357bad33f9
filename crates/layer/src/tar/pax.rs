//! Extended headers (`x` and `g`): records of `LENGTH KEY=VALUE\n`.

use super::error::TarProblem;
use super::number::decimal;
use super::sparse::{self, PaxSparse};
use crate::index::{Timestamp, XattrSet};

/// PAX records that are xattrs.
pub(crate) const XATTR: &[u8] = b"SCHILY.xattr.";

/// The values of one extended header for the entry after it.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<i64>,
    pub(super) gid: Option<i64>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) xattrs: XattrSet,
    pub(super) sparse: PaxSparse,
}

/// Parses the records of one entry.
pub(super) fn parse(data: &[u8]) -> Result<Records, TarProblem> {
    let mut records = Records::default();
    for record in split(data) {
        let (key, value) = record?;
        apply(&mut records, key, value)?;
    }
    records.sparse.finish()?;
    Ok(records)
}

/// Refuses global records that would change entries: POSIX and GNU tar apply them to all entries that follow, Go's reader (and so
/// every container tool) to none. Comments and similar records pass.
pub(super) fn check_global(data: &[u8]) -> Result<(), TarProblem> {
    for record in split(data) {
        let (key, _) = record?;
        let changes = matches!(key, b"path" | b"linkpath" | b"size" | b"uid" | b"gid" | b"mtime" | b"hdrcharset")
            || key.starts_with(XATTR)
            || key.starts_with(sparse::PREFIX);
        if changes {
            return Err(TarProblem::GlobalRecord(super::error::printable(key)));
        }
    }
    Ok(())
}

fn apply(records: &mut Records, key: &[u8], value: &[u8]) -> Result<(), TarProblem> {
    // An empty value resets what a global header set. Those are not applied here, so the header's own field counts.
    match key {
        b"path" => records.path = text(value)?,
        b"linkpath" => records.link = text(value)?,
        b"size" => records.size = optional(value, |value| decimal(value).ok_or("size"))?,
        b"uid" => records.uid = optional(value, |value| signed(value).ok_or("uid"))?,
        b"gid" => records.gid = optional(value, |value| signed(value).ok_or("gid"))?,
        b"mtime" => records.mtime = optional(value, |value| timestamp(value).ok_or("mtime"))?,
        _ => {
            if let Some(name) = key.strip_prefix(XATTR) {
                records.xattrs.insert(name, value)?;
            } else if let Some(name) = key.strip_prefix(sparse::PREFIX) {
                records.sparse.record(name, value)?;
            }
        }
    }
    Ok(())
}

fn text(value: &[u8]) -> Result<Option<Vec<u8>>, TarProblem> {
    if value.contains(&0) {
        return Err(TarProblem::Pax("a NUL byte in a name"));
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

fn optional<T>(value: &[u8], parse: impl Fn(&[u8]) -> Result<T, &'static str>) -> Result<Option<T>, TarProblem> {
    if value.is_empty() { Ok(None) } else { parse(value).map(Some).map_err(TarProblem::Pax) }
}

/// The records of an extended header's data.
pub(crate) fn split(mut data: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), TarProblem>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let record = split_one(data);
        data = match &record {
            Some((_, _, rest)) => rest,
            None => &[],
        };
        Some(record.map(|(key, value, _)| (key, value)).ok_or(TarProblem::Pax("a record that is none")))
    })
}

fn split_one(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(21).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&data[..space])?).ok()?;
    let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let key = &record[..equals];
    (!key.is_empty() && !key.contains(&0)).then(|| (key, &record[equals + 1..], &data[length..]))
}

fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => i64::try_from(decimal(digits)?).ok()?.checked_neg(),
        None => i64::try_from(decimal(text)?).ok(),
    }
}

/// Parses `[-]SECONDS[.FRACTION]`. Digits beyond nanoseconds are cut off.
pub(crate) fn timestamp(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (seconds, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let seconds = i64::try_from(decimal(seconds)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = digits.fold(0_u32, |number, digit| number * 10 + u32::from(digit - b'0'));
    Some(match (negative, nanoseconds) {
        (false, _) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds },
        (true, _) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_signs_and_fractions() {
        let at = |seconds, nanoseconds| Some(Timestamp { seconds, nanoseconds });
        assert_eq!(timestamp(b"1234567890.987654321"), at(1_234_567_890, 987_654_321));
        assert_eq!(timestamp(b"1.9999999999"), at(1, 999_999_999));
        assert_eq!(timestamp(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(timestamp(b"-3"), at(-3, 0));
        assert_eq!(timestamp(b"-0.5"), at(-1, 500_000_000));
        assert_eq!(timestamp(b"7."), at(7, 0));
        for text in [&b""[..], b".5", b"1.x", b"+1", b"1e9", b"--1", b"99999999999999999999"] {
            assert_eq!(timestamp(text), None, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn records_are_measured_by_their_own_length() {
        let records = parse(b"11 path=ab\n13 uid=70000\n26 SCHILY.xattr.user.a=\n\0\n").unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"ab"[..]));
        assert_eq!(records.uid, Some(70000));
        for data in [
            &b"11 path=abc\n"[..],
            b"10 path=ab\n",
            b"99 path=ab\n",
            b"path=ab\n",
            b" 11 path=ab\n",
            b"6 =ab\n",
            b"5 ab\n",
        ] {
            assert!(matches!(parse(data), Err(TarProblem::Pax(_))), "{}", data.escape_ascii());
        }
    }

    #[test]
    fn global_comments_pass_and_global_names_do_not() {
        assert!(check_global(b"13 comment=1\n").is_ok());
        assert!(matches!(check_global(b"10 path=a\n"), Err(TarProblem::GlobalRecord(_))));
        assert!(matches!(check_global(b"x"), Err(TarProblem::Pax(_))));
    }
}
