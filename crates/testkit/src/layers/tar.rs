//! Writes tars: valid ones of [`Item`]s, and invalid ones header by header.

use super::{Item, ItemKind};

/// Encoding of values that do not fit into a plain header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Extended headers. The only dialect with xattrs and nanoseconds.
    Pax,
    /// `@LongLink` and base-256 numbers.
    Gnu,
}

/// A tar under construction.
#[derive(Debug, Clone, Default)]
pub struct Tar(Vec<u8>);

impl Tar {
    /// An empty tar.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a header and its data, padded.
    #[must_use]
    pub fn entry(mut self, header: &RawHeader, data: &[u8]) -> Self {
        self.0.extend_from_slice(&header.block());
        self.0.extend_from_slice(data);
        pad(&mut self.0);
        self
    }

    /// Appends a header with the size of its data, and the data.
    #[must_use]
    pub fn sized(self, header: RawHeader, data: &[u8]) -> Self {
        self.entry(&header.size(data.len() as u64), data)
    }

    /// Appends an extended header (`x`) of these records.
    #[must_use]
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let data: Vec<u8> = records.iter().flat_map(|(key, value)| pax_record(key.as_bytes(), value)).collect();
        self.sized(RawHeader::new("PaxHeaders/x").kind(b'x'), &data)
    }

    /// Appends an item.
    #[must_use]
    pub fn item(mut self, item: &Item, dialect: Dialect) -> Self {
        self.0.extend_from_slice(&headers(item, dialect));
        self.0.extend_from_slice(item.content());
        pad(&mut self.0);
        self
    }

    /// Appends any bytes.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// The bytes so far, without a trailer.
    pub fn unfinished(self) -> Vec<u8> {
        self.0
    }

    /// The bytes with the usual trailer.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// A tar of these items, with trailer.
pub fn tar(items: &[Item], dialect: Dialect) -> Vec<u8> {
    items.iter().fold(Tar::new(), |tar, item| tar.item(item, dialect)).finish()
}

/// Pads to a multiple of a block.
pub fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(512), 0);
}

/// One record of an extended header, with its length.
pub fn pax_record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length += 1;
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// The headers of an item, before its data.
pub(super) fn headers(item: &Item, dialect: Dialect) -> Vec<u8> {
    let name = item.wire_name();
    let (kind, link, device) = match &item.kind {
        ItemKind::File(_) | ItemKind::Whiteout | ItemKind::Opaque => (b'0', &b""[..], None),
        ItemKind::HardLink(target) => (b'1', &target[..], None),
        ItemKind::Symlink(target) => (b'2', &target[..], None),
        ItemKind::CharDevice(major, minor) => (b'3', &b""[..], Some((*major, *minor))),
        ItemKind::BlockDevice(major, minor) => (b'4', &b""[..], Some((*major, *minor))),
        ItemKind::Directory => (b'5', &b""[..], None),
        ItemKind::Fifo => (b'6', &b""[..], None),
    };
    let cut = |bytes: &[u8]| bytes[..bytes.len().min(100)].to_vec();
    let mut header = RawHeader::new(cut(&name)).kind(kind).link(cut(link));
    header = header.mode(item.mode).ids(item.uid, item.gid).size(item.content().len() as u64).mtime(item.mtime.0);
    if let Some((major, minor)) = device {
        header = header.device(major, minor);
    }
    let before = match dialect {
        Dialect::Gnu => {
            header = header.gnu();
            let long = |kind: u8, text: &[u8]| {
                let data = [text, b"\0"].concat();
                Tar::new().sized(RawHeader::new("././@LongLink").gnu().kind(kind), &data)
            };
            let names = if name.len() > 100 { long(b'L', &name).unfinished() } else { Vec::new() };
            let links = if link.len() > 100 { long(b'K', link).unfinished() } else { Vec::new() };
            [names, links].concat()
        }
        Dialect::Pax => {
            let mut records = Vec::new();
            let mut record = |key: &[u8], value: &[u8]| records.extend(pax_record(key, value));
            if name.len() > 100 {
                record(b"path", &name);
            }
            if link.len() > 100 {
                record(b"linkpath", link);
            }
            if item.uid > 0o7_777_777 {
                record(b"uid", item.uid.to_string().as_bytes());
            }
            if item.gid > 0o7_777_777 {
                record(b"gid", item.gid.to_string().as_bytes());
            }
            if item.mtime.1 != 0 || item.mtime.0 < 0 {
                record(b"mtime", decimal_time(item.mtime).as_bytes());
            }
            for (name, value) in &item.xattrs {
                record(&[b"SCHILY.xattr.", &name[..]].concat(), value);
            }
            match records.is_empty() {
                true => Vec::new(),
                false => Tar::new().sized(RawHeader::new("PaxHeaders/x").kind(b'x'), &records).unfinished(),
            }
        }
    };
    [before, header.block().to_vec()].concat()
}

/// Seconds and nanoseconds as a decimal fraction. Before 1970 the fraction counts away from zero.
fn decimal_time((seconds, nanoseconds): (i64, u32)) -> String {
    match (seconds < 0, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (false, _) => format!("{seconds}.{nanoseconds:09}"),
        (true, _) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
    }
}

/// One header block, field by field. The checksum is computed last, unless it was set.
#[derive(Debug, Clone)]
pub struct RawHeader {
    block: [u8; 512],
    has_checksum: bool,
}

impl RawHeader {
    /// A ustar header of an empty file.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        let mut header = Self { block: [0; 512], has_checksum: false };
        header.block[257..265].copy_from_slice(b"ustar\x0000");
        header.field(0, name).kind(b'0').mode(0o644).ids(0, 0).size(0).mtime(1_700_000_000)
    }

    /// Overwrites bytes from `at` on.
    #[must_use]
    pub fn field(mut self, at: usize, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.block[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// The magic of GNU tar.
    #[must_use]
    pub fn gnu(self) -> Self {
        self.field(257, b"ustar  \0")
    }

    /// No magic at all.
    #[must_use]
    pub fn v7(self) -> Self {
        self.field(257, [0; 8])
    }

    /// Sets the entry type.
    #[must_use]
    pub fn kind(self, kind: u8) -> Self {
        self.field(156, [kind])
    }

    /// Sets the target name of a link.
    #[must_use]
    pub fn link(self, target: impl AsRef<[u8]>) -> Self {
        self.field(157, target)
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(self, mode: u16) -> Self {
        self.number(100, 8, mode.into())
    }

    /// Sets owner and group.
    #[must_use]
    pub fn ids(self, uid: u32, gid: u32) -> Self {
        self.number(108, 8, uid.into()).number(116, 8, gid.into())
    }

    /// Sets the size of the following data.
    #[must_use]
    pub fn size(self, size: u64) -> Self {
        self.number(124, 12, i64::try_from(size).unwrap_or(i64::MAX))
    }

    /// Sets the modification time, in seconds since 1970.
    #[must_use]
    pub fn mtime(self, seconds: i64) -> Self {
        self.number(136, 12, seconds)
    }

    /// Sets the device numbers.
    #[must_use]
    pub fn device(self, major: u32, minor: u32) -> Self {
        self.number(329, 8, major.into()).number(337, 8, minor.into())
    }

    /// Sets a wrong checksum, or one of another kind.
    #[must_use]
    pub fn checksum(mut self, text: impl AsRef<[u8]>) -> Self {
        self.has_checksum = true;
        self.field(148, text)
    }

    /// Writes a number: octal if it fits, base-256 otherwise.
    #[must_use]
    pub fn number(mut self, at: usize, width: usize, number: i64) -> Self {
        let field = &mut self.block[at..at + width];
        let octal = format!("{number:0width$o}\0", width = width - 1);
        if number >= 0 && octal.len() == width {
            field.copy_from_slice(octal.as_bytes());
        } else {
            field.fill(if number < 0 { 0xff } else { 0 });
            let bytes = number.to_be_bytes();
            let shown = width.min(8);
            field[width - shown..].copy_from_slice(&bytes[8 - shown..]);
            field[0] |= 0x80;
        }
        self
    }

    /// The block.
    pub fn block(&self) -> [u8; 512] {
        let mut block = self.block;
        if !self.has_checksum {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        block
    }
}
