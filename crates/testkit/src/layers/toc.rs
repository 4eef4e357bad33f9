//! The common part of both formats' TOC entries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Item, ItemKind};

/// The entry of an item, without fields about its data.
pub(super) fn entry(item: &Item) -> Map<String, Value> {
    let mut entry = Map::new();
    let mut set = |key: &str, value: Value| entry.insert(key.to_owned(), value);
    let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes).into_owned());
    set("name", text(&item.wire_name()));
    let kind = match &item.kind {
        ItemKind::File(_) | ItemKind::Whiteout | ItemKind::Opaque => "reg",
        ItemKind::Directory => "dir",
        ItemKind::Symlink(_) => "symlink",
        ItemKind::HardLink(_) => "hardlink",
        ItemKind::CharDevice(..) => "char",
        ItemKind::BlockDevice(..) => "block",
        ItemKind::Fifo => "fifo",
    };
    set("type", kind.into());
    if let ItemKind::Symlink(target) | ItemKind::HardLink(target) = &item.kind {
        set("linkName", text(target));
    }
    if let ItemKind::CharDevice(major, minor) | ItemKind::BlockDevice(major, minor) = &item.kind {
        set("devMajor", (*major).into());
        set("devMinor", (*minor).into());
    }
    set("mode", item.mode.into());
    for (key, number) in [("uid", item.uid), ("gid", item.gid)] {
        if number != 0 {
            set(key, number.into());
        }
    }
    if item.mtime != (0, 0) {
        set("modtime", rfc3339(item.mtime).into());
    }
    if !item.xattrs.is_empty() {
        let xattr = |(name, value): &(Vec<u8>, Vec<u8>)| {
            (String::from_utf8_lossy(name).into_owned(), json!(STANDARD.encode(value)))
        };
        set("xattrs", Value::Object(item.xattrs.iter().map(xattr).collect()));
    }
    entry
}

/// Howard Hinnant's civil-from-days, the inverse of the reader's conversion.
pub(super) fn rfc3339((seconds, nanoseconds): (i64, u32)) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let fraction = if nanoseconds == 0 { String::new() } else { format!(".{nanoseconds:09}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}
