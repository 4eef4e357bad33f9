//! Headers of tars that this program writes: ustar, with a PAX header for values that do not fit into it.

use std::io::Write as _;

use super::{BLOCK, TarKind, pax};
use crate::index::{Attributes, Timestamp};

/// Zeros behind the last entry: the end of an archive.
pub const TRAILER_BYTES: usize = 2 * BLOCK;

/// Longest name or link target in a ustar header.
const NAME_BYTES: usize = 100;
/// Largest number in a field of eight bytes.
const SHORT_NUMBER: u64 = 0o777_7777;
/// Largest number in a field of twelve bytes.
const LONG_NUMBER: u64 = 0o777_7777_7777;

/// The headers before the payload of an entry. `name` of a directory ends with a slash. `link` is empty unless it is one. `size` is
/// that of a file. No xattr name contains a `=`. Equal entries have equal headers.
pub fn headers(name: &[u8], kind: TarKind, link: &[u8], attributes: &Attributes, size: u64) -> Vec<u8> {
    let records = records(name, link, attributes, size);
    let mut headers = Vec::with_capacity(BLOCK);
    if !records.is_empty() {
        let of_records = Attributes { mode: 0o644, ..Attributes::default() };
        let plain = own(b"PaxHeaders.0", b'x', b"", &of_records, records.len() as u64, (0, 0));
        headers.extend_from_slice(&plain);
        headers.extend_from_slice(&records);
        headers.resize(headers.len() + padding(records.len() as u64), 0);
    }
    let (flag, device) = match kind {
        TarKind::File => (b'0', (0, 0)),
        TarKind::HardLink => (b'1', (0, 0)),
        TarKind::Symlink => (b'2', (0, 0)),
        TarKind::CharDevice(device) => (b'3', (device.major, device.minor)),
        TarKind::BlockDevice(device) => (b'4', (device.major, device.minor)),
        TarKind::Directory => (b'5', (0, 0)),
        TarKind::Fifo => (b'6', (0, 0)),
    };
    headers.extend_from_slice(&own(name, flag, link, attributes, size, device));
    headers
}

/// Zeros behind a payload of this size.
pub fn padding(size: u64) -> usize {
    usize::try_from(size.wrapping_neg() % BLOCK as u64).unwrap_or(0)
}

/// The PAX records of values that do not fit into the header, in a fixed order.
fn records(name: &[u8], link: &[u8], attributes: &Attributes, size: u64) -> Vec<u8> {
    let mut records = Vec::new();
    let mut record = |key: &[u8], value: &[u8]| append(&mut records, key, value);
    let mtime = attributes.mtime;
    if !is_plain_time(mtime) {
        record(b"mtime", time(mtime).as_bytes());
    }
    if !is_plain_text(name) {
        record(b"path", name);
    }
    if !is_plain_text(link) {
        record(b"linkpath", link);
    }
    if size > LONG_NUMBER {
        record(b"size", size.to_string().as_bytes());
    }
    for (key, id) in [(&b"uid"[..], attributes.uid), (b"gid", attributes.gid)] {
        if u64::from(id) > SHORT_NUMBER {
            record(key, id.to_string().as_bytes());
        }
    }
    for xattr in &attributes.xattrs {
        record(&[pax::XATTR, &xattr.name].concat(), &xattr.value);
    }
    records
}

fn is_plain_text(text: &[u8]) -> bool {
    text.len() <= NAME_BYTES && text.is_ascii()
}

fn is_plain_time(time: Timestamp) -> bool {
    time.nanoseconds == 0 && u64::try_from(time.seconds).is_ok_and(|seconds| seconds <= LONG_NUMBER)
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits too.
fn append(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + digits(length) > length {
        length += 1;
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Seconds and their fraction, counted away from zero as in PAX.
fn time(time: Timestamp) -> String {
    let (sign, seconds, nanoseconds) = match (time.seconds, time.nanoseconds) {
        (seconds, 0) => (if seconds < 0 { "-" } else { "" }, seconds.unsigned_abs(), 0),
        (seconds, part) if seconds < 0 => ("-", (seconds + 1).unsigned_abs(), 1_000_000_000 - part.min(999_999_999)),
        (seconds, part) => ("", seconds.unsigned_abs(), part),
    };
    let text = format!("{sign}{seconds}.{nanoseconds:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// One header. Values that do not fit are cut off, and stored in a record before it.
fn own(name: &[u8], flag: u8, link: &[u8], attributes: &Attributes, size: u64, device: (u32, u32)) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    text(&mut block[..NAME_BYTES], name);
    number(&mut block[100..108], attributes.mode.into());
    number(&mut block[108..116], fitting(attributes.uid.into(), SHORT_NUMBER));
    number(&mut block[116..124], fitting(attributes.gid.into(), SHORT_NUMBER));
    number(&mut block[124..136], fitting(size, LONG_NUMBER));
    number(&mut block[136..148], fitting(u64::try_from(attributes.mtime.seconds).unwrap_or(0), LONG_NUMBER));
    block[148..156].fill(b' ');
    block[156] = flag;
    text(&mut block[157..257], link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    number(&mut block[329..337], device.0.into());
    number(&mut block[337..345], device.1.into());
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    // Six digits, a NUL and the existing space.
    number(&mut block[148..155], sum);
    block
}

/// 0 for a number that is stored in a record.
fn fitting(number: u64, limit: u64) -> u64 {
    if number > limit { 0 } else { number }
}

fn text(field: &mut [u8], text: &[u8]) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text[..length]);
}

/// Octal digits that fill the field except for the NUL at its end.
fn number(field: &mut [u8], number: u64) {
    let width = field.len() - 1;
    let mut rest = &mut field[..width];
    let fits = write!(rest, "{number:0width$o}").is_ok();
    debug_assert!(fits, "{number} in {width} digits");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::{Device, Xattr};
    use crate::tar::{TarEntry, TarReader};

    fn read(tar: &[u8]) -> Vec<(TarEntry, Vec<u8>)> {
        use std::io::Read as _;
        let mut reader = TarReader::new(tar);
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            let mut data = Vec::new();
            reader.read_to_end(&mut data).unwrap();
            entries.push((entry, data));
        }
        entries
    }

    fn attributes() -> impl Strategy<Value = Attributes> {
        let id = prop_oneof![Just(0_u32), 0..3_000_000_u32, Just(u32::MAX - 1)];
        let seconds = prop_oneof![Just(0_i64), -5_000_000_000..5_000_000_000_i64, Just(100_000_000_000)];
        let mtime = (seconds, prop_oneof![Just(0_u32), 0..1_000_000_000_u32]);
        let xattrs = prop::collection::btree_map("user\\.[a-z]{1,5}", prop::collection::vec(any::<u8>(), 0..150), 0..3);
        (0..0o10000_u16, id.clone(), id, mtime, xattrs).prop_map(|(mode, uid, gid, mtime, xattrs)| Attributes {
            mode,
            uid,
            gid,
            mtime: Timestamp { seconds: mtime.0, nanoseconds: mtime.1 },
            xattrs: xattrs
                .into_iter()
                .map(|(name, value)| Xattr { name: name.into_bytes().into(), value: value.into() })
                .collect(),
        })
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        let byte = any::<u8>().prop_filter("no NUL and no slash", |byte| !matches!(byte, 0 | b'/'));
        prop_oneof![
            "[a-z\n]{1,12}".prop_map(String::into_bytes),
            prop::collection::vec(byte.clone(), 1..20),
            prop::collection::vec(byte, 95..110),
        ]
    }

    fn kind() -> impl Strategy<Value = TarKind> {
        let device = Device { major: 0xfff, minor: 0xf_ffff };
        prop_oneof![
            Just(TarKind::File),
            Just(TarKind::HardLink),
            Just(TarKind::Symlink),
            Just(TarKind::CharDevice(device)),
            Just(TarKind::BlockDevice(device)),
            Just(TarKind::Directory),
            Just(TarKind::Fifo),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entries in prop::collection::vec((name(), kind(), name(), attributes(), 0..1500_usize), 0..6)) {
            let mut tar = Vec::new();
            let mut expected = Vec::new();
            for (mut name, kind, link, attributes, size) in entries {
                if kind == TarKind::Directory {
                    name.push(b'/');
                }
                let link = if matches!(kind, TarKind::HardLink | TarKind::Symlink) { link } else { Vec::new() };
                let data = if kind == TarKind::File { vec![b'x'; size] } else { Vec::new() };
                tar.extend_from_slice(&headers(&name, kind, &link, &attributes, data.len() as u64));
                tar.extend_from_slice(&data);
                tar.resize(tar.len() + padding(data.len() as u64), 0);
                expected.push((name, kind, link, attributes, data));
            }
            tar.resize(tar.len() + TRAILER_BYTES, 0);
            let found: Vec<_> = read(&tar)
                .into_iter()
                .map(|(entry, data)| (entry.name, entry.kind, entry.link, entry.attributes, data))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn files_of_any_size_can_be_described() {
        for size in [LONG_NUMBER, LONG_NUMBER + 1, 1 << 42] {
            let headers = headers(b"large", TarKind::File, b"", &Attributes::default(), size);
            let entry = TarReader::new(&headers[..]).next_entry().unwrap().unwrap();
            assert_eq!(entry.size, size);
        }
    }

    #[test]
    fn a_record_counts_the_digits_of_its_length() {
        for length in (1..120).chain(980..1020) {
            let mut records = Vec::new();
            append(&mut records, b"user.a", &vec![b'v'; length]);
            let read: Vec<_> = pax::split(&records).collect::<Result<_, _>>().unwrap();
            assert_eq!(read.len(), 1);
            assert_eq!(read[0].1.len(), length);
        }
    }
}
