//! Files of an image in the format of `ls`, as lines and as JSON.

use serde::Serialize;

use super::table::Table;
use crate::line::escape;

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Directory,
    File,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
}

/// One file of an image.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// The printed name: a name, or a path if several folders are listed. Escaped.
    pub(crate) name: String,
    /// The path from the image's root. Escaped.
    pub(crate) path: String,
    /// The path's bytes in hexadecimal, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_hex: Option<String>,
    pub(crate) kind: Kind,
    /// Permission bits with setuid, setgid and sticky.
    pub(crate) mode: u16,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// Seconds since 1970.
    pub(crate) mtime: i64,
    pub(crate) mtime_nanoseconds: u32,
    /// Target of a symbolic link. Escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Major and minor number of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<(u32, u32)>,
}

impl Row {
    /// Name and path of a row, escaped, and the path in hexadecimal if it is not UTF-8.
    pub(crate) fn names(path: &[u8]) -> (String, String, Option<String>) {
        let name = path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty()).unwrap_or(b"/");
        let hex = std::str::from_utf8(path)
            .is_err()
            .then(|| path.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        (escape(name), escape(path), hex)
    }
}

/// As `ls -l` prints it, times in UTC.
pub(crate) fn long(rows: &[Row]) -> String {
    let mut table = Table::new(&["", ">", ">", ">", ">", "", ""]);
    for row in rows {
        let size = match row.device {
            Some((major, minor)) => format!("{major}, {minor}"),
            None => row.size.to_string(),
        };
        let arrow = row.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
        table.row([
            mode(row.kind, row.mode),
            row.links.to_string(),
            row.uid.to_string(),
            row.gid.to_string(),
            size,
            time(row.mtime),
            format!("{}{arrow}", row.name),
        ]);
    }
    table.to_string()
}

/// One name per line.
pub(crate) fn short(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{}\n", row.name)).collect()
}

/// `drwxr-xr-x`, with `s`, `S`, `t` and `T` as `ls` writes them.
fn mode(kind: Kind, mode: u16) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        Kind::Directory => 'd',
        Kind::File => '-',
        Kind::Symlink => 'l',
        Kind::CharDevice => 'c',
        Kind::BlockDevice => 'b',
        Kind::Fifo => 'p',
    });
    for (shift, special, with, without) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2026-01-01 00:00 UTC`.
pub(crate) fn time(seconds: i64) -> String {
    const DAY: i64 = 86_400;
    let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

/// The date that is `days` after 1970-01-01, in the Gregorian calendar. Counts in eras of 400 years that begin on
/// 1 March, so that the leap day is the last of its year.
fn civil(days: i64) -> (i128, i64, i64) {
    const ERA: i128 = 146_097;
    let days = i128::from(days) + 719_468;
    let (era, day_of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    (year, i64::try_from(month).unwrap_or(0), i64::try_from(day).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &[u8], kind: Kind, mode: u16) -> Row {
        let (name, path, path_hex) = Row::names(path);
        let plain = Row {
            name,
            path,
            path_hex,
            kind,
            mode,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            mtime: 1_767_225_600,
            mtime_nanoseconds: 0,
            target: None,
            device: None,
        };
        match kind {
            Kind::Symlink => Row { target: Some("busybox".into()), size: 7, ..plain },
            Kind::CharDevice | Kind::BlockDevice => Row { device: Some((1, 3)), ..plain },
            Kind::File => Row { size: 123_456, links: 2, uid: 100_000, ..plain },
            _ => plain,
        }
    }

    #[test]
    fn the_long_format_is_that_of_ls() {
        insta::assert_snapshot!(long(&[
            row(b"/bin", Kind::Directory, 0o755),
            row(b"/tmp", Kind::Directory, 0o1777),
            row(b"/odd", Kind::Directory, 0o1776),
            row(b"/bin/su", Kind::File, 0o4755),
            row(b"/bin/sg", Kind::File, 0o2644),
            row(b"/bin/sh", Kind::Symlink, 0o777),
            row(b"/dev/null", Kind::CharDevice, 0o666),
            row(b"/dev/loop", Kind::BlockDevice, 0o660),
            row(b"/pipe", Kind::Fifo, 0o600),
            row(b"/new\nline\xff", Kind::File, 0o644),
        ]));
    }

    #[test]
    fn the_json_of_a_file_has_a_stable_shape() {
        let rows = [row(b"/bin/sh", Kind::Symlink, 0o777), row(b"/dev/null\xff", Kind::CharDevice, 0o666)];
        insta::assert_snapshot!(serde_json::to_string_pretty(&rows).expect("serialisable"));
    }

    #[test]
    fn dates_are_right_in_any_century() {
        let table = [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_767_225_600, "2026-01-01 00:00"),
            (4_107_542_400, "2100-03-01 00:00"),
            (-62_135_596_800, "0001-01-01 00:00"),
        ];
        for (seconds, text) in table {
            assert_eq!(time(seconds), format!("{text} UTC"));
        }
        for extreme in [i64::MIN, i64::MAX] {
            assert!(!time(extreme).is_empty(), "no overflow");
        }
    }
}
