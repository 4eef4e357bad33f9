//! One header block: fields, dialect, checksum.

use super::error::TarProblem;
use super::{BLOCK, number};

/// The dialect announced by a header's magic. It determines the meaning of the bytes from 329 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    V7,
    Ustar,
    Star,
    Gnu,
}

/// A header block whose checksum is right.
pub(super) struct Header<'a> {
    block: &'a [u8; BLOCK],
}

impl<'a> Header<'a> {
    pub(super) fn parse(block: &'a [u8; BLOCK]) -> Result<Self, TarProblem> {
        let claimed = number::parse(&block[148..156]).ok_or(TarProblem::Checksum)?;
        let (unsigned, signed) = checksums(block);
        // Old writers summed signed bytes. Every reader accepts both.
        if claimed == unsigned || claimed == signed { Ok(Self { block }) } else { Err(TarProblem::Checksum) }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match &self.block[257..265] {
            b"ustar  \0" => Dialect::Gnu,
            magic if magic.starts_with(b"ustar\0") => match &self.block[508..512] {
                b"tar\0" => Dialect::Star,
                _ => Dialect::Ustar,
            },
            _ => Dialect::V7,
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.block[156]
    }

    /// Appends the name, with the prefix where the dialect has one.
    pub(super) fn name_into(&self, name: &mut Vec<u8>) {
        let prefix = match self.dialect() {
            Dialect::Ustar => text(&self.block[345..500]),
            Dialect::Star => text(&self.block[345..476]),
            Dialect::Gnu if self.has_mixed_prefix() => text(&self.block[345..500]),
            Dialect::V7 | Dialect::Gnu => b"",
        };
        if !prefix.is_empty() {
            name.extend_from_slice(prefix);
            name.push(b'/');
        }
        name.extend_from_slice(text(&self.block[..100]));
    }

    /// Whether the header is of GNU's form and has a prefix as in ustar, where GNU has the times of access and of change. Go before 1.8 wrote such
    /// headers, and all later versions read them by this rule (<https://go.dev/issue/12594>).
    fn has_mixed_prefix(&self) -> bool {
        let times = [&self.block[345..357], &self.block[357..369]];
        !times.into_iter().all(is_time_to_go) && text(&self.block[345..500]).is_ascii()
    }

    pub(super) fn link(&self) -> &'a [u8] {
        text(&self.block[157..257])
    }

    pub(super) fn mode(&self) -> Result<u16, TarProblem> {
        let mode = number::parse(&self.block[100..108]).ok_or(TarProblem::Number("mode"))?;
        u16::try_from(mode & 0o7777).map_err(|_| TarProblem::Number("mode"))
    }

    /// Not checked: a PAX record may replace it.
    pub(super) fn uid(&self) -> Option<i64> {
        number::parse(&self.block[108..116])
    }

    /// As [`Header::uid`].
    pub(super) fn gid(&self) -> Option<i64> {
        number::parse(&self.block[116..124])
    }

    pub(super) fn size(&self) -> Result<u64, TarProblem> {
        number::parse_unsigned(&self.block[124..136]).ok_or(TarProblem::Number("size"))
    }

    pub(super) fn mtime(&self) -> Result<i64, TarProblem> {
        number::parse(&self.block[136..148]).ok_or(TarProblem::Number("mtime"))
    }

    pub(super) fn device_major(&self) -> Result<u64, TarProblem> {
        self.device(329, "device number")
    }

    pub(super) fn device_minor(&self) -> Result<u64, TarProblem> {
        self.device(337, "device number")
    }

    fn device(&self, at: usize, what: &'static str) -> Result<u64, TarProblem> {
        match self.dialect() {
            Dialect::V7 => Ok(0),
            _ => number::parse_unsigned(&self.block[at..at + 8]).ok_or(TarProblem::Number(what)),
        }
    }

    /// The first four segments, the "more blocks follow" flag and the real size of an old GNU sparse entry.
    pub(super) fn gnu_sparse(&self) -> Result<(&'a [u8], bool, u64), TarProblem> {
        let size = number::parse_unsigned(&self.block[483..495]).ok_or(TarProblem::Number("real size"))?;
        Ok((&self.block[386..482], self.block[482] != 0, size))
    }
}

/// A text field: up to its first NUL.
fn text(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

/// Whether Go reads the field of a time, or skips it as unused. Unlike [`number::parse`] it wants nothing behind the digits.
fn is_time_to_go(field: &[u8]) -> bool {
    match field.first() {
        None | Some(0) => true,
        Some(first) if first & 0x80 != 0 => number::parse(field).is_some(),
        Some(_) => {
            let is_padding = |byte: &u8| matches!(byte, b' ' | 0);
            let start = field.iter().position(|byte| !is_padding(byte)).unwrap_or(field.len());
            let end = field.iter().rposition(|byte| !is_padding(byte)).map_or(start, |last| last + 1);
            text(&field[start..end]).iter().all(|byte| matches!(byte, b'0'..=b'7'))
        }
    }
}

/// The sums of the block's bytes, taken as unsigned and as signed, with the checksum field as spaces.
fn checksums(block: &[u8; BLOCK]) -> (i64, i64) {
    let sum: i64 = block.iter().map(|byte| i64::from(*byte)).sum();
    let field: i64 = block[148..156].iter().map(|byte| i64::from(*byte)).sum();
    let high = |bytes: &[u8]| 256 * i64::try_from(bytes.iter().filter(|byte| **byte >= 0x80).count()).unwrap_or(0);
    let unsigned = sum - field + 8 * i64::from(b' ');
    (unsigned, unsigned - (high(block) - high(&block[148..156])))
}
