//! The faults, as data.

use std::time::Duration;

use bytes::Bytes;
use tarpon_testkit::registry::Fault;
use tarpon_testkit::seeds::Random;

/// Offsets in an answer are below this; answers are longer and shorter.
const NEAR: usize = 3_000;
/// More than any document may have.
const TOO_LARGE: usize = 5 << 20;
/// Deeper than any parser should follow.
const TOO_DEEP: usize = 100_000;

/// A row of the matrix.
pub(crate) struct Row {
    /// Its name.
    pub(crate) name: &'static str,
    /// How many requests of the phase it affects.
    pub(crate) times: usize,
    /// What a start makes of it.
    pub(crate) expect: Expect,
    make: fn(&mut Random) -> Fault,
}

/// The least that a start must make of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// The right bytes: it lasts shortly, or does no harm.
    Right,
    /// The right bytes or an error.
    Either,
}

impl Row {
    /// The fault.
    pub(crate) fn fault(&self, random: &mut Random) -> Fault {
        (self.make)(random)
    }
}

/// One request has the fault, and the next has not: the client must try again.
const fn once(name: &'static str, make: fn(&mut Random) -> Fault) -> Row {
    Row { name, times: 1, expect: Expect::Right, make }
}

/// As [`once`], for answers that a client may take at their word.
const fn final_once(name: &'static str, make: fn(&mut Random) -> Fault) -> Row {
    Row { name, times: 1, expect: Expect::Either, make }
}

/// All requests of the phase have the fault.
const fn always(name: &'static str, make: fn(&mut Random) -> Fault) -> Row {
    Row { name, times: usize::MAX, expect: Expect::Either, make }
}

/// As [`always`], for what is none of a client's business.
const fn harmless(name: &'static str, make: fn(&mut Random) -> Fault) -> Row {
    Row { name, times: usize::MAX, expect: Expect::Right, make }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The faults.
pub(crate) const FAULTS: &[Row] = &[
    // Connections.
    once("refused once", |_| Fault::Connect),
    always("refused", |_| Fault::Connect),
    always("unreachable", |_| Fault::Unreachable(seconds(4))),
    always("no TLS", |_| Fault::NotTls),
    always("untrusted certificate", |_| Fault::Certificate),
    once("reset before the answer once", |_| Fault::Broken),
    always("reset before the answer", |_| Fault::Broken),
    once("answered after 4 s once", |_| Fault::Late(seconds(4))),
    harmless("answered after 2 s", |_| Fault::Late(seconds(2))),
    always("answered after 6 s", |_| Fault::Late(seconds(6))),
    always("answered after 60 s", |_| Fault::Late(seconds(60))),
    once("no answer once", |_| Fault::Never),
    always("no answer", |_| Fault::Never),
    // Bodies.
    once("body reset once", |random| Fault::BreakAfter(random.index(NEAR))),
    always("body reset", |random| Fault::BreakAfter(random.index(NEAR))),
    always("body reset at its start", |_| Fault::BreakAfter(0)),
    once("body stalls once", |random| Fault::StallAfter(random.index(NEAR))),
    always("body stalls", |random| Fault::StallAfter(random.index(NEAR))),
    always("body of 10 bytes a second", |_| Fault::Trickle(10)),
    always("body ends early", |random| Fault::EndAfter(random.index(NEAR))),
    always("empty body without a length", |_| Fault::EndAfter(0)),
    always("body longer than announced", |_| Fault::LengthOff(-7)),
    always("body shorter than announced", |_| Fault::LengthOff(7)),
    always("body longer than requested", |_| Fault::Overlong),
    always("body without an end", |_| Fault::Endless),
    once("first byte wrong once", |_| Fault::FlipAt(0)),
    always("first byte wrong", |_| Fault::FlipAt(0)),
    always("a byte in the middle wrong", |random| Fault::FlipAt(random.index(NEAR))),
    always("last byte wrong", |_| Fault::FlipBit),
    // Lengths and ranges.
    harmless("no Content-Length", |_| Fault::Header("content-length", "")),
    always("Content-Length of no number", |_| Fault::Header("content-length", "many")),
    always("two Content-Lengths", |_| Fault::MoreHeader("content-length", "1")),
    always("Content-Length of 2^64 - 1", |_| Fault::Header("content-length", "18446744073709551615")),
    harmless("range ignored", |_| Fault::IgnoreRange),
    always("another range", |random| Fault::RangeOff(1 + random.below(9).cast_signed(), 0)),
    always("another total", |random| Fault::RangeOff(0, 1 + random.below(9).cast_signed())),
    always("no Content-Range", |_| Fault::Header("content-range", "")),
    always("Content-Range of no numbers", |_| Fault::Header("content-range", "bytes a-b/c")),
    always("several parts", |_| Fault::Multipart),
    always("416", |_| Fault::Unsatisfiable),
    // Other headers.
    always("encoded", |_| Fault::Header("content-encoding", "gzip")),
    harmless("Content-Encoding identity", |_| Fault::Header("content-encoding", "identity")),
    always("wrong Content-Type", |_| Fault::Header("content-type", "image/png")),
    always("wrong Docker-Content-Digest", |_| Fault::Header("docker-content-digest", OTHER_DIGEST)),
    harmless("Docker-Content-Digest of no digest", |_| Fault::Header("docker-content-digest", "sha256:../../etc")),
    // Statuses.
    final_once("401 once", |_| Fault::Status(401)),
    always("401", |_| Fault::Status(401)),
    always("403", |_| Fault::Status(403)),
    always("404", |_| Fault::Status(404)),
    final_once("404 once", |_| Fault::Status(404)),
    once("429 once", |_| Fault::Status(429)),
    once("429 once, again in 3 s", |_| Fault::RetryAfter(429, "3")),
    final_once("429 once, again tomorrow", |_| Fault::RetryAfter(429, "86400")),
    always("429, again in -1 s", |_| Fault::RetryAfter(429, "-1")),
    always("429, again tomorrow", |_| Fault::RetryAfter(429, "86400")),
    once("500 once", |_| Fault::Status(500)),
    always("500", |_| Fault::Status(500)),
    once("502 once", |_| Fault::Status(502)),
    once("503 once", |_| Fault::Status(503)),
    once("503 once, again at no time", |_| Fault::RetryAfter(503, "soon")),
    always("503", |_| Fault::Status(503)),
    once("504 once", |_| Fault::Status(504)),
    always("204", |_| Fault::Status(204)),
    always("304", |_| Fault::Status(304)),
    always("418", |_| Fault::Status(418)),
    // Redirects.
    always("redirect to itself", |_| Fault::RedirectHere(307)),
    always("redirect to another host", |_| Fault::Redirect(307, "https://evil.test/v2/".to_owned())),
    always("redirect to a host that refuses", |_| Fault::Redirect(302, "https://cdn.test/blobs/x?sig=0".to_owned())),
    always("redirect to plain HTTP", |_| Fault::Redirect(301, "http://registry.test/v2/".to_owned())),
    always("redirect to a file", |_| Fault::Redirect(302, "file:///etc/shadow".to_owned())),
    always("redirect with a password", |_| Fault::Redirect(302, "https://a:b@cdn.test/".to_owned())),
    always("redirect to nowhere", |_| Fault::Status(307)),
    // Other documents.
    always("a page of HTML", |_| Fault::Html),
    always("an empty document", |_| Fault::Instead(Bytes::new())),
    always("JSON of another type", |_| Fault::Instead(Bytes::from_static(b"[{}, 7]"))),
    always("JSON without fields", |_| Fault::Instead(Bytes::from_static(b"{}"))),
    always("JSON with wrong fields", |_| Fault::Instead(Bytes::from_static(WRONG_FIELDS))),
    always("JSON too deep", |_| Fault::Instead(Bytes::from("[".repeat(TOO_DEEP)))),
    always("a document too large", |_| Fault::Instead(Bytes::from(vec![b' '; TOO_LARGE]))),
];

/// Of no content here.
const OTHER_DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Fields of all documents, of wrong types.
const WRONG_FIELDS: &[u8] =
    br#"{"schemaVersion":2,"manifests":{},"layers":7,"config":[],"subject":"x","token":["t"],"expires_in":-1}"#;
