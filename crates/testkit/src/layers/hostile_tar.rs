//! Malformed, ambiguous or absurd tars, numbered and named. The tests of `layer` snapshot their verdicts.

use super::tar::{Dialect, RawHeader, Tar, pax_record};
use super::{Item, tar};

/// A numbered case: its name and the tar.
type Case = (&'static str, Vec<u8>);

/// All cases. Append new ones: numbers must stay.
pub fn hostile_tars() -> Vec<Case> {
    [headers(), extensions(), sparse(), names(), links(), repeated()].concat()
}

fn file(name: impl AsRef<[u8]>) -> Tar {
    Tar::new().sized(RawHeader::new(name), b"x")
}

fn headers() -> Vec<Case> {
    let valid = file("a").finish();
    vec![
        ("000-empty stream", Vec::new()),
        ("001-half a header", valid[..300].to_vec()),
        ("002-ends in the data", Tar::new().entry(&RawHeader::new("a").size(5000), b"x").unfinished()),
        ("003-no padding at the end", valid[..513].to_vec()),
        ("004-wrong checksum", Tar::new().entry(&RawHeader::new("a").checksum(b"000001\0 "), b"").finish()),
        ("005-checksum is no number", Tar::new().entry(&RawHeader::new("a").checksum(b"zzzzzz\0 "), b"").finish()),
        ("006-text instead of a tar", b"hello world\n".repeat(100)),
        ("007-lone block of zeros", Tar::new().raw(&[0; 512]).sized(RawHeader::new("a"), b"x").finish()),
        ("008-one block of zeros at the end", file("a").raw(&[0; 512]).unfinished()),
        ("009-entries after the trailer", file("a").raw(&[0; 1024]).sized(RawHeader::new("b"), b"x").finish()),
        ("010-garbage after the trailer", [valid.clone(), b"garbage".to_vec()].concat()),
        ("011-size is no number", Tar::new().entry(&RawHeader::new("a").field(124, b"12x45678901\0"), b"").finish()),
        ("012-negative size", Tar::new().entry(&RawHeader::new("a").number(124, 12, -1), b"").finish()),
        ("013-size of 2^62", Tar::new().entry(&RawHeader::new("a").size(1 << 62), b"").finish()),
        ("014-negative owner", Tar::new().entry(&RawHeader::new("a").number(108, 8, -2), b"").finish()),
        ("015-owner of 2^32-1", Tar::new().entry(&RawHeader::new("a").ids(u32::MAX, 0), b"").finish()),
        ("016-owner of 2^32", Tar::new().entry(&RawHeader::new("a").number(108, 8, 1 << 32), b"").finish()),
        ("017-unknown type", Tar::new().entry(&RawHeader::new("a").kind(b'Q'), b"").finish()),
        ("018-volume label", Tar::new().entry(&RawHeader::new("a").kind(b'V'), b"").finish()),
        ("019-multi-volume part", Tar::new().entry(&RawHeader::new("a").kind(b'M'), b"").finish()),
        ("020-directory with data", Tar::new().sized(RawHeader::new("a/").kind(b'5'), b"x").finish()),
        ("021-symlink with data", Tar::new().sized(RawHeader::new("a").kind(b'2').link("b"), b"x").finish()),
        ("022-file named as a directory", Tar::new().sized(RawHeader::new("a/"), b"x").finish()),
        ("023-device 0:0", Tar::new().entry(&RawHeader::new("a").kind(b'3').device(0, 0), b"").finish()),
        ("024-device 4096:0", Tar::new().entry(&RawHeader::new("a").kind(b'3').device(4096, 0), b"").finish()),
        ("025-mode is no number", Tar::new().entry(&RawHeader::new("a").field(100, b"rwxr-xr\0"), b"").finish()),
        ("026-contiguous file", Tar::new().sized(RawHeader::new("a").kind(b'7'), b"x").finish()),
        ("027-old directory", Tar::new().entry(&RawHeader::new("a/").v7().kind(0), b"").finish()),
    ]
}

fn extensions() -> Vec<Case> {
    let x = |data: &[u8]| Tar::new().sized(RawHeader::new("x").kind(b'x'), data);
    let g = |data: &[u8]| Tar::new().sized(RawHeader::new("g").kind(b'g'), data);
    let long = |kind, text: &[u8]| Tar::new().sized(RawHeader::new("././@LongLink").gnu().kind(kind), text);
    let then = |tar: Tar| tar.sized(RawHeader::new("a"), b"x").finish();
    // The header states 0 bytes, the record 1024: the following data must not be read as a header.
    let smuggled = Tar::new().sized(RawHeader::new("smuggled"), b"").unfinished();
    let smuggled = [smuggled, vec![0; 512]].concat();
    vec![
        ("030-record without length", then(x(b"path=b\n"))),
        ("031-record longer than the header", then(x(b"99 path=b\n"))),
        ("032-record without newline", then(x(b"9 path=bb"))),
        ("033-record without key", then(x(b"5 =b\n"))),
        ("034-record without equals", then(x(b"7 path\n"))),
        ("035-length of zero", then(x(b"0 path=b\n"))),
        ("036-NUL in a path", then(Tar::new().pax(&[("path", b"a\0b")]))),
        ("037-size is no number", then(Tar::new().pax(&[("size", b"-1")]))),
        ("038-size overflows", then(Tar::new().pax(&[("size", b"99999999999999999999")]))),
        ("039-mtime is no number", then(Tar::new().pax(&[("mtime", b"soon")]))),
        ("040-uid out of range", then(Tar::new().pax(&[("uid", b"4294967295")]))),
        ("041-header at the end", Tar::new().pax(&[("path", b"b")]).finish()),
        ("042-two headers for one entry", then(Tar::new().pax(&[("path", b"b")]).pax(&[("path", b"c")]))),
        ("043-two long names", then(long(b'L', b"b\0").raw(&long(b'L', b"c\0").unfinished()))),
        ("044-long name and path differ", then(long(b'L', b"b\0").pax(&[("path", b"c")]))),
        ("045-long name and path agree", then(long(b'L', b"b\0").pax(&[("path", b"b")]))),
        ("046-header of two megabytes", then(x(&vec![b'0'; 2 << 20]))),
        ("047-global path", then(g(&pax_record(b"path", b"b")))),
        ("048-global comment", then(g(&pax_record(b"comment", b"b")))),
        ("049-global header in between", then(Tar::new().pax(&[("path", b"b")]).raw(&g(b"").unfinished()))),
        (
            "050-size only in the record",
            Tar::new().pax(&[("size", b"1024")]).entry(&RawHeader::new("a"), &smuggled).finish(),
        ),
        (
            "051-size record before a long name",
            Tar::new()
                .pax(&[("size", b"1024")])
                .raw(&long(b'L', b"b\0").unfinished())
                .entry(&RawHeader::new("a").gnu(), &smuggled)
                .finish(),
        ),
        ("052-xattr value too long", then(Tar::new().pax(&[("SCHILY.xattr.user.a", &vec![0; 70_000])]))),
        ("053-xattr without name", then(Tar::new().pax(&[("SCHILY.xattr.user.", b"v")]))),
        ("054-overlay xattrs", then(Tar::new().pax(&[("SCHILY.xattr.trusted.overlay.redirect", b"/etc/shadow")]))),
        ("055-empty long name", then(long(b'L', b"\0"))),
    ]
}

fn sparse() -> Vec<Case> {
    let v1 = |map: &[u8], real: &[u8], data: &[u8]| {
        let mut body = map.to_vec();
        super::tar::pad(&mut body);
        body.extend_from_slice(data);
        Tar::new()
            .pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", real)])
            .sized(RawHeader::new("a"), &body)
            .finish()
    };
    let v01 = |map: &[u8], real: &[u8]| {
        Tar::new()
            .pax(&[("GNU.sparse.map", map), ("GNU.sparse.size", real)])
            .sized(RawHeader::new("a"), b"data")
            .finish()
    };
    let old = |segments: &[(i64, i64)], real: i64, more: u8| {
        let mut header = RawHeader::new("a").gnu().kind(b'S').size(4).number(483, 12, real).field(482, [more]);
        for (number, (offset, length)) in segments.iter().enumerate() {
            header = header.number(386 + 24 * number, 12, *offset).number(398 + 24 * number, 12, *length);
        }
        Tar::new().entry(&header, b"data").finish()
    };
    vec![
        ("060-sparse 1.0", v1(b"1\n4096\n4\n", b"8192", b"data")),
        ("061-sparse 1.0 map too short", v1(b"2\n4096\n4\n", b"8192", b"data")),
        ("062-sparse 1.0 segments overlap", v1(b"2\n0\n2\n1\n2\n", b"8192", b"data")),
        ("063-sparse 1.0 beyond the end", v1(b"1\n8190\n4\n", b"8192", b"data")),
        ("064-sparse 1.0 other amount of data", v1(b"1\n4096\n5\n", b"8192", b"data")),
        ("065-sparse 1.0 wraps around", v1(b"1\n18446744073709551615\n4\n", b"8192", b"data")),
        ("066-sparse 1.0 with a billion segments", v1(b"1000000000\n", b"8192", b"data")),
        ("067-sparse 1.0 number without end", v1(&[b'1'; 600], b"8192", b"data")),
        ("068-sparse 1.0 of 8 EiB", v1(b"1\n0\n4\n", b"9223372036854775807", b"data")),
        ("069-sparse 1.0 of a terabyte", v1(b"1\n0\n4\n", b"1099511627776", b"data")),
        ("070-sparse 0.1", v01(b"0,2,100,2", b"200")),
        ("071-sparse 0.1 odd map", v01(b"0,2,100", b"200")),
        ("072-sparse 0.1 empty number", v01(b"0,,100,2", b"200")),
        ("073-old sparse", old(&[(0, 2), (100, 2)], 200, 0)),
        ("074-old sparse descending", old(&[(100, 2), (0, 2)], 200, 0)),
        ("075-old sparse with a missing extension", old(&[(0, 4)], 200, 1)),
        ("076-old sparse without GNU magic", { Tar::new().sized(RawHeader::new("a").kind(b'S'), b"data").finish() }),
        (
            "077-sparse directory",
            Tar::new()
                .pax(&[("GNU.sparse.map", b"0,0"), ("GNU.sparse.size", b"9")])
                .entry(&RawHeader::new("a").kind(b'5'), b"")
                .finish(),
        ),
        (
            "078-unknown version of sparse",
            Tar::new()
                .pax(&[("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"4")])
                .sized(RawHeader::new("a"), b"data")
                .finish(),
        ),
        ("079-sparse file of 4 GiB in a kilobyte", old(&[(0, 4)], 4 << 30, 0)),
    ]
}

fn names() -> Vec<Case> {
    let one = |name: &[u8]| Tar::new().pax(&[("path", name)]).sized(RawHeader::new("a"), b"x").finish();
    vec![
        ("080-no name", Tar::new().sized(RawHeader::new(""), b"x").finish()),
        ("081-out of the root", one(b"../../etc/shadow")),
        ("082-out of the root, later", one(b"a/../../etc/shadow")),
        ("083-up inside of the root", one(b"a/b/../c")),
        ("084-root as a file", one(b"./")),
        ("085-root as a directory", tar(&[Item::directory("./").mode(0o700)], Dialect::Pax)),
        ("086-name of 256 bytes", one(&[b'n'; 256])),
        ("087-path of 5000 bytes", one(&b"nnnnnnnnn/".repeat(500))),
        ("088-path of 300 components", one(&b"n/".repeat(300)[..599])),
        ("089-whiteout of nothing", file("a/.wh.").finish()),
        ("090-whiteout of dot", file("a/.wh..").finish()),
        ("091-whiteout of dot dot", file("a/.wh...").finish()),
        ("092-file below a whiteout", file(".wh.a/b").finish()),
        ("093-AUFS bookkeeping", file(".wh..wh.plnk/1.2").finish()),
        ("094-bytes that are no text", file(b"\xff\xfe\n\x1b[31m").finish()),
    ]
}

fn links() -> Vec<Case> {
    let items = |items: &[Item]| tar(items, Dialect::Pax);
    vec![
        ("100-hard link to itself", items(&[Item::hard_link("a", "./a")])),
        ("101-hard link before its target", items(&[Item::hard_link("a", "b"), Item::file("b", "x")])),
        ("102-hard link to a directory", items(&[Item::directory("d"), Item::hard_link("a", "d")])),
        ("103-hard link to an implied directory", items(&[Item::file("d/f", "x"), Item::hard_link("a", "d")])),
        ("104-hard link out of the root", items(&[Item::hard_link("a", "../b")])),
        ("105-hard link to a lower layer", items(&[Item::hard_link("a", "lower")])),
        (
            "106-hard links in a circle",
            items(&[Item::hard_link("a", "lower"), Item::hard_link("b", "a"), Item::hard_link("lower", "b")]),
        ),
        ("107-symlink without target", items(&[Item::symlink("a", "")])),
        ("108-symlink of 5000 bytes", items(&[Item::symlink("a", vec![b't'; 5000])])),
        ("109-symlink named dot", items(&[Item::symlink(".", "/etc")])),
        ("110-file below a symlink", items(&[Item::symlink("a", "/etc"), Item::file("a/shadow", "x")])),
        ("111-file below a file", items(&[Item::file("a", "x"), Item::file("a/b", "x")])),
        (
            "112-usrmerge in one layer",
            items(&[
                Item::directory("usr/lib"),
                Item::symlink("lib", "usr/lib"),
                Item::file("lib/a", "x"),
                Item::whiteout("lib/gone"),
                Item::hard_link("b", "lib/a"),
                Item::symlink("usr/lib/up", "../../../lib/sub"),
                Item::file("lib/up/deep/c", "x"),
            ]),
        ),
        (
            "113-symlinks in a circle",
            items(&[Item::symlink("a", "b"), Item::symlink("b", "a"), Item::file("a/c", "x")]),
        ),
        ("114-dots behind a name in a symlink", items(&[Item::symlink("a", "b/../c"), Item::file("a/d", "x")])),
        ("115-symlink that grows", items(&[Item::symlink("a", "a/".repeat(200)), Item::file("a/d", "x")])),
    ]
}

fn repeated() -> Vec<Case> {
    let items = |items: &[Item]| tar(items, Dialect::Pax);
    vec![
        ("120-file twice", items(&[Item::file("a", "old"), Item::file("a", "newer")])),
        (
            "121-directory twice",
            items(&[Item::directory("a"), Item::file("a/b", "x"), Item::directory("a").mode(0o700)]),
        ),
        (
            "122-first name of a hard link again",
            items(&[
                Item::file("a", "old"),
                Item::hard_link("b", "a"),
                Item::hard_link("c", "b"),
                Item::file("a", "newer"),
            ]),
        ),
        (
            "123-directory becomes a file",
            items(&[
                Item::directory("d"),
                Item::file("d/in", "in"),
                Item::hard_link("kept", "d/in"),
                Item::file("d", "file"),
            ]),
        ),
        (
            "124-and a directory again",
            items(&[Item::file("d/in", "in"), Item::file("d", "file"), Item::directory("d"), Item::file("d/new", "x")]),
        ),
        (
            "125-whiteout and entry of one name",
            items(&[Item::file("a", "x"), Item::whiteout("a"), Item::whiteout("a")]),
        ),
        (
            "126-hard link over its own target",
            items(&[Item::file("a", "x"), Item::hard_link("b", "a"), Item::hard_link("a", "b")]),
        ),
    ]
}
