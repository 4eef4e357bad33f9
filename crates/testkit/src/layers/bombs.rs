//! Small layers that would cost far more than their size.

use std::io::Write;

use tarpon_oci::{Compression, Hasher};

use super::estargz::estargz_from_toc;
use super::tar::{RawHeader, Tar};
use super::{Layer, Spelling, zstd_chunked_from_toc};

/// A case: its name, and a function that makes the layers of an image, each of which is valid.
pub type Bomb = (&'static str, Box<dyn Fn() -> Vec<Layer>>);

/// Images that must be refused for their cost, not for any value that they declare; or a fraction of each, for callers
/// that allow only that fraction.
pub fn bombs(part: u32) -> Vec<Bomb> {
    use Compression::{Gzip, Zstd};
    let many = 560_000 / part;
    let one = |compression, pieces: fn(u32) -> Pieces, count: u32| -> Box<dyn Fn() -> Vec<Layer>> {
        Box::new(move || vec![layer(compression, pieces(count))])
    };
    let table_of = |entries: fn(u32) -> String, count: u32| -> Box<dyn Fn() -> Vec<Layer>> {
        Box::new(move || vec![table(&entries(count))])
    };
    vec![
        ("many entries, gzip", one(Gzip, |count| entries(0..count), many)),
        ("many entries, zstd", one(Zstd, |count| entries(0..count), many)),
        (
            "many entries in many layers",
            Box::new(move || (0..8).map(|n| layer(Zstd, entries(n * many / 8..(n + 1) * many / 8))).collect()),
        ),
        ("deep paths, gzip", one(Gzip, deep, 3000 / part)),
        ("whiteouts of deep paths", one(Zstd, whiteouts, 30_000 / part)),
        ("long targets of links", one(Zstd, links, 40_000 / part)),
        ("links through a link to a long path", one(Zstd, through_link, 30_000 / part)),
        ("large xattrs", one(Zstd, xattrs, 2_500 / part)),
        (
            "windows of 128 MiB",
            Box::new(move || (0..3).map(|n| zeros((200 << 20) / u64::from(part) / (1 << 16) * (1 << 16), n)).collect()),
        ),
        ("holes", one(Gzip, |_| Box::new(std::iter::once(hole(4 << 30))), 1)),
        ("many holes", one(Zstd, |count| Box::new((0..count).map(|_| hole(8 << 20))), 200 / part)),
        ("a table of many entries", table_of(directories, 2 * many)),
        ("a table of many entries, zstd:chunked", Box::new(move || vec![chunked_table(&directories(2 * many))])),
        ("a table of blanks", table_of(blanks, (200 << 20) / part)),
        ("a chain of links to a long name", table_of(chain, 40_000 / part)),
    ]
}

/// Parts of a tar, in order.
type Pieces = Box<dyn Iterator<Item = Vec<u8>>>;

/// An image that must be accepted: the given number of empty files, in package-like folders, in one layer.
pub fn many_empty_files(files: u32) -> Layer {
    layer(
        Compression::Zstd,
        Box::new((0..files).map(|n| {
            let (package, folder) = (n / 400, n / 20 % 20);
            let name = format!("usr/lib/node_modules/package-{package}/dist/folder{folder}/module-{n:06}.js");
            RawHeader::new(name).block().to_vec()
        })),
    )
}

/// A layer of these pieces of a tar and a trailer, without keeping the pieces in memory.
fn layer(compression: Compression, pieces: Pieces) -> Layer {
    let mut encoder = Encoder::new(compression);
    let mut hasher = Hasher::new();
    for piece in pieces.chain([vec![0; 1024]]) {
        hasher.update(&piece);
        encoder.write(&piece);
    }
    Layer {
        compression,
        annotations: std::collections::BTreeMap::new(),
        blob: encoder.finish(),
        diff_id: hasher.finish(),
    }
}

enum Encoder {
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    fn new(compression: Compression) -> Self {
        match compression {
            Compression::Zstd => Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 3).expect("an encoder")),
            _ => Self::Gzip(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6))),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        match self {
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.write_all(bytes),
        }
        .expect("memory takes all bytes");
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
        .expect("memory takes all bytes")
    }
}

fn number(n: u32) -> String {
    format!("{n:07}")
}

fn entries(numbers: std::ops::Range<u32>) -> Pieces {
    // One header, in which name and checksum change: there are hundreds of thousands.
    let blank = RawHeader::new("").block();
    let sum: u32 = blank.iter().map(|byte| u32::from(*byte)).sum::<u32>()
        - blank[148..156].iter().map(|byte| u32::from(*byte)).sum::<u32>()
        + 8 * u32::from(b' ');
    Box::new(numbers.map(move |n| {
        let (mut block, name) = (blank.to_vec(), format!("d{}/{n:07}", n / 1000));
        let sum = sum + name.bytes().map(u32::from).sum::<u32>();
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }))
}

fn links(count: u32) -> Pieces {
    let target = vec![b't'; 4000];
    Box::new((0..count).map(move |n| {
        Tar::new().pax(&[("linkpath", &target)]).entry(&RawHeader::new(number(n)).kind(b'2'), b"").unfinished()
    }))
}

fn xattrs(count: u32) -> Pieces {
    let note = vec![0; 60_000];
    Box::new((0..count).map(move |n| {
        Tar::new().pax(&[("SCHILY.xattr.user.note", &note)]).entry(&RawHeader::new(number(n)), b"").unfinished()
    }))
}

/// A path with the maximum number of folders, none of them shared with another path.
fn deep_path(n: u32) -> Vec<u8> {
    format!("{n:07}{}", "/aaaaaaaaaaaaaaa".repeat(254)).into_bytes()
}

fn deep(count: u32) -> Pieces {
    Box::new(
        (0..count).map(|n| Tar::new().pax(&[("path", &deep_path(n))]).entry(&RawHeader::new("x"), b"").unfinished()),
    )
}

fn whiteouts(count: u32) -> Pieces {
    Box::new((0..count).map(|n| {
        let path = [&deep_path(n)[..3900], b"/.wh.a"].concat();
        Tar::new().pax(&[("path", &path)]).entry(&RawHeader::new("x"), b"").unfinished()
    }))
}

/// Short names below a link to a name of thousands of bytes.
fn through_link(count: u32) -> Pieces {
    let link = Tar::new().pax(&[("linkpath", &deep_path(0)[..4000])]).entry(&RawHeader::new("l").kind(b'2'), b"");
    let below = (0..count).map(|n| RawHeader::new(format!("l/{n:07}")).block().to_vec());
    Box::new(std::iter::once(link.unfinished()).chain(below))
}

/// An old GNU header of a file that consists of a hole.
fn hole(size: i64) -> Vec<u8> {
    RawHeader::new("hole").gnu().kind(b'S').size(0).number(483, 12, size).block().to_vec()
}

/// One file of zeros, a multiple of 64 KiB, in a frame with the largest window.
fn zeros(size: u64, n: u32) -> Layer {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("an encoder");
    encoder.window_log(27).and_then(|()| encoder.long_distance_matching(true)).expect("a known parameter");
    let mut hasher = Hasher::new();
    let block = vec![0; 1 << 16];
    let header = RawHeader::new(format!("zeros{n}")).size(size).block();
    let pieces = std::iter::once(&header[..])
        .chain(std::iter::repeat_n(&block[..], usize::try_from(size >> 16).expect("small")));
    for piece in pieces {
        hasher.update(piece);
        encoder.write_all(piece).expect("memory takes all bytes");
    }
    let blob = encoder.finish().expect("memory takes all bytes");
    Layer {
        compression: Compression::Zstd,
        annotations: std::collections::BTreeMap::new(),
        blob,
        diff_id: hasher.finish(),
    }
}

fn directories(count: u32) -> String {
    let entries: Vec<String> = (0..count).map(|n| format!("{{\"name\":\"d{n}\",\"type\":\"dir\"}}")).collect();
    entries.join(",")
}

fn blanks(count: u32) -> String {
    format!("{{\"name\":\"d\",\"type\":\"dir\"}}{}", " ".repeat(count as usize))
}

fn chain(count: u32) -> String {
    let long = "n".repeat(200);
    let long = vec![long.as_str(); 20].join("/");
    let first = format!(
        "{{\"name\":\"{long}\",\"type\":\"fifo\"}},{{\"name\":\"l0\",\"type\":\"hardlink\",\"linkName\":\"{long}\"}}"
    );
    let rest = (1..count).map(|n| format!(",{{\"name\":\"l{n}\",\"type\":\"hardlink\",\"linkName\":\"l{}\"}}", n - 1));
    first + &rest.collect::<String>()
}

fn document(entries: &str) -> Vec<u8> {
    format!("{{\"version\":1,\"entries\":[{entries}]}}").into_bytes()
}

fn table(entries: &str) -> Layer {
    estargz_from_toc(&[0; 10_000], &document(entries))
}

fn chunked_table(entries: &str) -> Layer {
    zstd_chunked_from_toc(&[0; 10_000], &document(entries), Spelling::New)
}
