//! Values in the headers of an entry that [`TarEntry`](crate::tar::TarEntry) drops and other writers put into TOCs.
//!
//! The tar reader has checked these headers, so unsupported values are not an error here. They only mean that Go's reader, which
//! other tools are built on, may see the entry differently ([`Facts::is_ordinary`]).

use std::collections::BTreeMap;

use crate::index::Timestamp;
use crate::tar::{BLOCK, number, pax};

/// A time in a header of old GNU tar or star.
type TimeField = std::ops::Range<usize>;

/// The values in the headers of one entry.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Mode with the type bits of the archive, if any.
    pub(super) mode: i64,
    /// Target of a link. Other kinds of entry may have a meaningless one.
    pub(super) link: Vec<u8>,
    pub(super) major: i64,
    pub(super) minor: i64,
    pub(super) accessed: Option<Timestamp>,
    pub(super) changed: Option<Timestamp>,
    /// All xattrs, including those that images may not set.
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Whether other tools are sure to read the entry as we do.
    pub(super) is_ordinary: bool,
}

/// Reads the headers of one entry: extension headers with their data, and the entry's own header.
pub(super) fn facts(mut headers: &[u8]) -> Facts {
    let mut extensions = Extensions::default();
    while let Some((block, rest)) = headers.split_first_chunk::<BLOCK>() {
        if !matches!(block[156], b'x' | b'L' | b'K') {
            return own(block, extensions, rest.is_empty());
        }
        let size = number::parse(&block[124..136]).and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        extensions.take(block[156], rest.get(..size).unwrap_or(rest));
        headers = rest.get(size.next_multiple_of(BLOCK)..).unwrap_or(&[]);
    }
    Facts::default()
}

#[derive(Default)]
struct Extensions {
    link: Option<Vec<u8>>,
    accessed: Option<Timestamp>,
    changed: Option<Timestamp>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    is_odd: bool,
}

impl Extensions {
    fn take(&mut self, kind: u8, data: &[u8]) {
        match kind {
            b'K' => self.link = data.split(|byte| *byte == 0).next().map(<[u8]>::to_vec),
            b'x' => pax::split(data).for_each(|record| match record {
                Ok((key, value)) => self.record(key, value),
                Err(_) => self.is_odd = true,
            }),
            _ => {}
        }
    }

    fn record(&mut self, key: &[u8], value: &[u8]) {
        let time = || if value.is_empty() { None } else { pax::timestamp(value) };
        match key {
            b"linkpath" if !value.is_empty() => self.link = Some(value.to_vec()),
            b"atime" => self.accessed = time(),
            b"ctime" => self.changed = time(),
            _ => {
                if let Some(name) = key.strip_prefix(pax::XATTR) {
                    // Go refuses records of these names with a NUL, and cuts nothing off.
                    self.is_odd |= name.is_empty();
                    self.xattrs.insert(name.to_vec(), value.to_vec());
                }
            }
        }
        let is_bad_time = matches!(key, b"atime" | b"ctime") && !value.is_empty() && time().is_none();
        // Go also applies these, by rules of its own.
        self.is_odd |= is_bad_time || matches!(key, b"hdrcharset" | b"charset");
    }
}

/// The entry's own header, the last one.
fn own(block: &[u8; BLOCK], extensions: Extensions, is_last: bool) -> Facts {
    let number = |at: usize, width: usize| number::parse(&block[at..at + width]);
    let has_devices = &block[257..262] == b"ustar";
    let devices = if has_devices { (number(329, 8), number(337, 8)) } else { (Some(0), Some(0)) };
    let link = extensions.link.unwrap_or_else(|| until_nul(&block[157..257]).to_vec());
    let times = times(block).map(|field| {
        let is_set = block[field.start] != 0;
        if is_set { number::parse(&block[field]).map(Some) } else { Some(None) }
    });
    let stamp = |seconds: Option<Option<i64>>| seconds.flatten().map(|seconds| Timestamp { seconds, nanoseconds: 0 });
    let mode = number(100, 8);
    let is_link_with_size = block[156] == b'1' && number(124, 12) != Some(0);
    let is_ordinary = is_last
        && !extensions.is_odd
        && !is_link_with_size
        && matches!(block[156], 0 | b'0'..=b'6')
        && mode.is_some_and(|mode| mode >= 0)
        && [devices.0, devices.1].iter().all(|device| device.is_some_and(|device| device >= 0))
        && times.iter().all(Option::is_some);
    Facts {
        mode: mode.filter(|mode| *mode >= 0).unwrap_or_else(|| mode.unwrap_or(0) & 0o7777),
        link,
        major: devices.0.unwrap_or(0).max(0),
        minor: devices.1.unwrap_or(0).max(0),
        accessed: extensions.accessed.or(stamp(times[0])),
        changed: extensions.changed.or(stamp(times[1])),
        xattrs: extensions.xattrs,
        is_ordinary,
    }
}

/// The position of the times of access and change in a header, if its dialect has them. Otherwise two empty fields.
fn times(block: &[u8; BLOCK]) -> [TimeField; 2] {
    match &block[257..265] {
        b"ustar  \0" => [345..357, 357..369],
        magic if magic.starts_with(b"ustar\0") && &block[508..512] == b"tar\0" => [476..488, 488..500],
        // The last bytes of the other dialects, which are always empty.
        _ => [511..512, 511..512],
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}
