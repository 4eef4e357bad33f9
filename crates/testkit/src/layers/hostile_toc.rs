//! Malformed, contradictory or absurd TOCs, numbered and named. The tests of `layer` snapshot their verdicts.

use serde_json::{Value, json};
use tarpon_oci::Digest;

use super::estargz::{FooterKind, estargz_from_toc, footer, toc_member};
use super::tar::{RawHeader, Tar};
use super::{Layer, Spelling, gzip, zstd_chunked_from_toc};

/// A numbered case: its name and the layer.
type Case = (&'static str, Layer);

/// Length of the data before the TOC in most cases.
const DATA: u64 = 10_000;

/// All cases. Append new ones: numbers must stay.
pub fn hostile_tocs() -> Vec<Case> {
    [documents(), entries(), chunks(), zstd(), frames()].concat()
}

fn text(json: &[u8]) -> Layer {
    estargz_from_toc(&vec![0; 10_000], json)
}

fn toc(entries: &Value) -> Layer {
    text(json!({ "version": 1, "entries": entries }).to_string().as_bytes())
}

fn digest(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

/// A file of four bytes in one chunk, with changes.
fn file(changes: Value) -> Value {
    let digest = digest("data");
    let mut entry =
        json!({ "name": "a", "type": "reg", "size": 4, "offset": 100, "digest": digest, "chunkDigest": digest });
    merge(&mut entry, changes);
    entry
}

fn merge(entry: &mut Value, changes: Value) {
    let Value::Object(changes) = changes else { return };
    for (key, value) in changes {
        match value {
            Value::Null => drop(entry.as_object_mut().map(|entry| entry.remove(&key))),
            value => entry[key] = value,
        }
    }
}

fn documents() -> Vec<Case> {
    vec![
        ("000-nothing", text(b"")),
        ("001-no JSON", text(b"<html>")),
        ("002-a list", text(b"[]")),
        ("003-no version", text(br#"{"entries":[]}"#)),
        ("004-another version", text(br#"{"version":2,"entries":[]}"#)),
        ("005-no entries", text(br#"{"version":1}"#)),
        ("006-entries twice", text(br#"{"version":1,"entries":[],"entries":[]}"#)),
        ("007-entries in another case", text(br#"{"version":1,"entries":[],"Entries":[]}"#)),
        ("008-something after the end", text(br#"{"version":1,"entries":[]}{"#)),
        ("009-ends too early", text(br#"{"version":1,"entries":[{"name":"a""#)),
        ("010-a million brackets", text(&[b"{\"version\":1,\"entries\":".as_slice(), &vec![b'['; 1_000_000]].concat())),
        ("011-deep in an ignored key", text(&[b"{\"x\":".as_slice(), &vec![b'['; 1_000_000]].concat())),
        ("012-empty", toc(&json!([]))),
    ]
}

fn entries() -> Vec<Case> {
    let dir = |name: &str| json!({ "name": name, "type": "dir", "mode": 0o755 });
    let link = |name: &str, target: &str| json!({ "name": name, "type": "hardlink", "linkName": target });
    vec![
        ("020-no type", toc(&json!([{ "name": "a" }]))),
        ("021-no name", toc(&json!([{ "type": "dir" }]))),
        ("022-unknown type", toc(&json!([{ "name": "a", "type": "socket" }]))),
        ("023-name twice", toc(&json!([dir("a"), dir("./a/")]))),
        ("024-key twice", text(br#"{"version":1,"entries":[{"name":"a","name":"b","type":"dir"}]}"#)),
        ("025-key in another case", text(br#"{"version":1,"entries":[{"name":"a","NAME":"b","type":"dir"}]}"#)),
        ("026-negative size", toc(&json!([{ "name": "a", "type": "reg", "size": -1 }]))),
        ("027-size of 2^60", toc(&json!([file(json!({ "size": 1_u64 << 60 }))]))),
        ("028-name out of the root", toc(&json!([dir("../a")]))),
        ("029-root as a file", toc(&json!([file(json!({ "name": "/" }))]))),
        ("030-below a file", toc(&json!([file(json!({})), dir("a/b")]))),
        ("031-below a file that comes later", toc(&json!([dir("a/b"), file(json!({}))]))),
        ("032-hard link to itself", toc(&json!([link("a", "a")]))),
        ("033-hard links in a circle", toc(&json!([link("a", "b"), link("b", "c"), link("c", "a")]))),
        ("034-chain of hard links before its end", toc(&json!([link("z", "y"), link("y", "a"), file(json!({}))]))),
        ("035-hard link to a directory", toc(&json!([dir("d"), link("a", "d")]))),
        ("036-hard link without target", toc(&json!([{ "name": "a", "type": "hardlink" }]))),
        ("037-device 0:0", toc(&json!([{ "name": "a", "type": "char" }]))),
        ("038-device of 2^40", toc(&json!([{ "name": "a", "type": "block", "devMajor": 1_u64 << 40 }]))),
        ("039-owner of 2^32", toc(&json!([{ "name": "a", "type": "dir", "uid": 1_u64 << 32 }]))),
        ("040-time that is none", toc(&json!([{ "name": "a", "type": "dir", "modtime": "yesterday" }]))),
        ("041-xattr that is no base64", toc(&json!([{ "name": "a", "type": "dir", "xattrs": { "user.a": "!" } }]))),
        (
            "042-overlay xattr",
            toc(&json!([{ "name": "a", "type": "dir", "xattrs": { "user.overlay.opaque": "eQ==" } }])),
        ),
        ("043-name with a replaced byte", toc(&json!([dir("a\u{fffd}")]))),
        ("044-landmark and TOC are hidden", {
            toc(&json!([
                file(json!({ "name": ".prefetch.landmark" })),
                file(json!({ "name": "stargz.index.json", "offset": 200 })),
                file(json!({ "name": "sub/.prefetch.landmark", "offset": 300 })),
            ]))
        }),
        ("045-whiteout of nothing", toc(&json!([{ "name": "a/.wh.", "type": "reg" }]))),
        (
            "046-markers",
            toc(&json!([{ "name": "a/.wh.b", "type": "reg" }, { "name": "a/.wh..wh..opq", "type": "reg" }])),
        ),
        ("047-below a symlink", toc(&json!([{ "name": "a", "type": "symlink", "linkName": "/b" }, dir("a/c")]))),
        (
            "048-below a symlink that comes later",
            toc(&json!([dir("a/c"), { "name": "a", "type": "symlink", "linkName": "/b" }])),
        ),
        (
            "049-whiteout below a symlink",
            toc(&json!([{ "name": "a/.wh.b", "type": "reg" }, { "name": "a", "type": "symlink", "linkName": "/b" }])),
        ),
    ]
}

fn chunks() -> Vec<Case> {
    let (one, two) = (digest("da"), digest("ta"));
    let first = |changes: Value| {
        let mut first = file(json!({ "chunkSize": 2, "chunkDigest": one }));
        merge(&mut first, changes);
        first
    };
    let second = |changes: Value| {
        let mut second = json!({ "name": "a", "type": "chunk", "offset": 200, "chunkOffset": 2, "chunkSize": 2, "chunkDigest": two });
        merge(&mut second, changes);
        second
    };
    let pair = |one: Value, two: Value| toc(&json!([first(one), second(two)]));
    vec![
        ("060-two chunks", pair(json!({}), json!({}))),
        ("061-gap between chunks", pair(json!({}), json!({ "chunkOffset": 3, "chunkSize": 1 }))),
        ("062-chunks overlap", pair(json!({}), json!({ "chunkOffset": 1, "chunkSize": 3 }))),
        ("063-chunk beyond the file", pair(json!({}), json!({ "chunkSize": 3 }))),
        ("064-chunk missing", toc(&json!([first(json!({}))]))),
        ("065-chunk too many", toc(&json!([file(json!({})), second(json!({ "chunkOffset": 4 }))]))),
        ("066-chunk of another file", pair(json!({}), json!({ "name": "b" }))),
        ("067-chunk without a file", toc(&json!([second(json!({}))]))),
        ("068-chunk after a directory", toc(&json!([{ "name": "a", "type": "dir" }, second(json!({}))]))),
        ("069-no offset", toc(&json!([file(json!({ "offset": null }))]))),
        ("070-offset in the TOC", toc(&json!([file(json!({ "offset": DATA }))]))),
        ("071-offset beyond the blob", toc(&json!([file(json!({ "offset": u64::MAX }))]))),
        ("072-only chunk and file have two digests", toc(&json!([file(json!({ "chunkDigest": one }))]))),
        ("073-only the chunk has a digest", toc(&json!([file(json!({ "digest": null }))]))),
        ("074-only the file has a digest", toc(&json!([file(json!({ "chunkDigest": null }))]))),
        ("075-no digest", toc(&json!([file(json!({ "digest": null, "chunkDigest": null }))]))),
        ("076-several chunks and no digest of the file", pair(json!({ "digest": null }), json!({}))),
        ("077-a chunk without digest", pair(json!({}), json!({ "chunkDigest": null }))),
        ("078-digest of another algorithm", toc(&json!([file(json!({ "digest": "md5:00" }))]))),
        ("079-empty file with a digest of something", toc(&json!([file(json!({ "size": 0 }))]))),
        ("080-chunk of 20 MiB", toc(&json!([file(json!({ "size": 20 << 20 }))]))),
        ("081-too deep in a member", toc(&json!([file(json!({ "innerOffset": 1_u64 << 40 }))]))),
        ("082-inner offset wraps", toc(&json!([file(json!({ "innerOffset": u64::MAX }))]))),
        ("083-unknown kind of chunk", toc(&json!([file(json!({ "chunkType": "random" }))]))),
        ("084-in the first member", toc(&json!([file(json!({ "offset": null, "innerOffset": 512 }))]))),
        ("085-the digest of nothing", {
            toc(&json!([file(json!({ "digest": digest(""), "chunkDigest": digest("") }))]))
        }),
        ("086-two chunks under the digest of nothing", pair(json!({ "digest": digest("") }), json!({}))),
        ("087-a chunk with the digest of nothing", pair(json!({}), json!({ "chunkDigest": digest("") }))),
        ("088-one digest of two lengths", {
            let other = json!({ "name": "b", "size": 5, "offset": 300 });
            toc(&json!([file(json!({})), file(other)]))
        }),
        ("089-a chunk with the digest of its file", pair(json!({}), json!({ "chunkDigest": digest("data") }))),
        ("090-one place with two digests", {
            let other = json!({ "name": "b", "digest": one, "chunkDigest": one });
            toc(&json!([file(json!({})), file(other)]))
        }),
    ]
}

fn zstd() -> Vec<Case> {
    let toc = |entries: Value| {
        let json = json!({ "version": 1, "entries": entries }).to_string();
        zstd_chunked_from_toc(&[0; 10_000], json.as_bytes(), Spelling::New)
    };
    let at = |name: &str, offset: u64, end: u64| file(json!({ "name": name, "offset": offset, "endOffset": end }));
    let hole = |size: u64| {
        toc(json!([file(json!({ "chunkType": "zeros", "chunkDigest": null, "size": size, "endOffset": 120 }))]))
    };
    vec![
        ("100-two files", toc(json!([at("a", 100, 120), at("b", 120, 140)]))),
        ("101-files share a place", toc(json!([at("a", 100, 120), at("b", 100, 120)]))),
        ("102-files overlap", toc(json!([at("a", 100, 120), at("b", 110, 140)]))),
        ("103-files out of order", toc(json!([at("a", 200, 220), at("b", 100, 120)]))),
        ("104-ends before it starts", toc(json!([at("a", 100, 100)]))),
        ("105-ends in the TOC", toc(json!([at("a", 100, DATA + 1)]))),
        ("106-hole of a terabyte", hole(1 << 40)),
        ("107-no end", toc(json!([file(json!({}))]))),
        ("108-hole under the digest of something", hole(4)),
        ("109-hole that takes long to hash", hole(5 << 30)),
        ("110-the digest of nothing", {
            toc(json!([file(json!({ "digest": digest(""), "chunkDigest": digest(""), "endOffset": 120 }))]))
        }),
        ("111-one digest of two lengths", {
            let other = json!({ "name": "b", "size": 5, "offset": 120, "endOffset": 140 });
            toc(json!([at("a", 100, 120), file(other)]))
        }),
    ]
}

fn frames() -> Vec<Case> {
    let json = br#"{"version":1,"entries":[]}"#;
    let good = text(json);
    let with_tail = |tail: &[u8]| {
        let mut layer = good.clone();
        let end = layer.blob.len() - 51;
        layer.blob.truncate(end);
        layer.blob.extend_from_slice(tail);
        layer
    };
    let with_member = |member: Vec<u8>| {
        let mut layer = good.clone();
        layer.blob = [vec![0; 10_000], member, footer(DATA, FooterKind::Current)].concat();
        layer
    };
    let toc_header = || RawHeader::new("stargz.index.json");
    vec![
        ("120-no footer", with_tail(b"")),
        ("121-footer of another program", with_tail(&[0; 51])),
        ("122-footer points at itself", with_tail(&footer(good.blob.len() as u64 - 51, FooterKind::Current))),
        ("123-footer points beyond", with_tail(&footer(u64::MAX, FooterKind::Current))),
        ("124-footer points into the data", with_tail(&footer(1, FooterKind::Legacy))),
        ("125-another file", with_member(gzip(&Tar::new().sized(RawHeader::new("index.json"), json).finish()))),
        ("126-a directory", with_member(gzip(&Tar::new().entry(&toc_header().kind(b'5'), b"").finish()))),
        ("127-nothing", with_member(gzip(&[0; 1024]))),
        ("128-no tar", with_member(gzip(b"hello"))),
        ("129-truncated member", with_member(toc_member(json)[..20].to_vec())),
        (
            "130-something after the TOC",
            with_member(gzip(&Tar::new().sized(toc_header(), json).sized(RawHeader::new("b"), b"x").finish())),
        ),
        (
            "131-TOC of 200 MiB claimed",
            with_member(gzip(&Tar::new().entry(&toc_header().size(200 << 20), b"").finish())),
        ),
        ("132-another TOC", with_member(toc_member(br#"{"version":1,"entries":[ ]}"#))),
    ]
}
