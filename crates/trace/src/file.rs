//! A trace as a file: JSON lines, the header first.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarpon_oci::{Digest, limits};

use crate::model::{Header, LONGEST, Origin, TOUCHES, Touch, Trace, micros};
use crate::ranges::Ranges;

/// The version of the format that this code reads and writes.
const VERSION: u64 = 1;
/// Maximum size of a file in bytes: the maximum number of touches, with digests and paths of usual length.
pub const FILE_BYTES: usize = 128 << 20;
/// Maximum size of a line in bytes: the longest path with every byte escaped is 24 KiB; the rest is for command lines.
pub const LINE_BYTES: usize = 256 << 10;

/// Why a file is not a valid trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct InvalidTrace {
    /// The line, counted from 1.
    pub line: usize,
    /// The problem.
    pub problem: Problem,
}

/// Problem of a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is longer than [`FILE_BYTES`].
    #[error("the file has more than {FILE_BYTES} bytes")]
    FileTooLarge,
    /// The line is longer than [`LINE_BYTES`].
    #[error("the line has more than {LINE_BYTES} bytes")]
    LineTooLong,
    /// There are more than [`TOUCHES`] touches.
    #[error("there are more than {TOUCHES} touches")]
    TooManyTouches,
    /// The first line is not the header of a trace.
    #[error("not a trace: it does not start with the line {{\"tarpon-trace\":{VERSION},…}}")]
    NoTrace,
    /// The version of the format is not supported.
    #[error("unknown version {0}; only {VERSION} is supported")]
    Version(u64),
    /// The line is not valid JSON, or not of the expected form.
    #[error("{0}")]
    Json(String),
    /// The range is empty or outside of the object.
    #[error("{start}..{end} is not a range of an object of {size} bytes")]
    Range {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
        /// The object's size.
        size: u64,
    },
    /// The object is larger than [`limits::BLOB_BYTES`].
    #[error("an object of {0} bytes is over the limit of {limit}", limit = limits::BLOB_BYTES)]
    ObjectTooLarge(u64),
    /// An earlier line has another size for the same object.
    #[error("{object} has {first} bytes in an earlier line and {second} in this one")]
    Sizes {
        /// The object.
        object: Digest,
        /// Its size in the earlier line.
        first: u64,
        /// Its size in this line.
        second: u64,
    },
    /// An earlier line contains bytes of this range.
    #[error("part of this range was touched in an earlier line")]
    Twice,
    /// The time is before that of the previous line.
    #[error("this is earlier than the line before")]
    Order,
    /// A time is over [`LONGEST`].
    #[error("a time of {0} microseconds is over the limit of {limit}", limit = LONGEST.as_micros())]
    TooLate(u64),
    /// The path is longer than [`limits::PATH_BYTES`].
    #[error("a path of {0} bytes is over the limit of {limit}", limit = limits::PATH_BYTES)]
    PathTooLong(usize),
}

#[derive(Deserialize)]
struct VersionField {
    #[serde(rename = "tarpon-trace")]
    version: u64,
}

#[derive(Serialize, Deserialize)]
struct HeaderLine {
    #[serde(rename = "tarpon-trace")]
    version: u64,
    image: String,
    manifest: Digest,
    profile: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready_micros: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Versions of this program that count no starts ignore it, and write none.
    #[serde(default, skip_serializing_if = "is_uncounted")]
    starts: u32,
}

#[derive(Serialize, Deserialize)]
struct TouchLine {
    object: Digest,
    size: u64,
    start: u64,
    end: u64,
    micros: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<Origin>,
    #[serde(default, skip_serializing_if = "is_zero")]
    stall: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_uncounted(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Trace {
    /// Parses a file. Unknown fields are ignored.
    pub fn read(bytes: &[u8]) -> Result<Self, InvalidTrace> {
        let at = |line| move |problem| InvalidTrace { line, problem };
        if bytes.len() > FILE_BYTES {
            return Err(at(1)(Problem::FileTooLarge));
        }
        let mut lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|byte| *byte == b'\n');
        let header = read_header(lines.next().unwrap_or_default()).map_err(at(1))?;
        let (mut seen, mut touches) = (Seen::default(), Vec::new());
        for (number, line) in (2..).zip(lines) {
            if touches.len() == TOUCHES {
                return Err(at(number)(Problem::TooManyTouches));
            }
            touches.push(read_touch(line).and_then(|touch| seen.next(touch)).map_err(at(number))?);
        }
        Ok(Self { header, touches })
    }

    /// Serialises the trace. Times are in whole microseconds; a command that makes the header longer than [`LINE_BYTES`] is omitted.
    pub fn write(&self) -> Vec<u8> {
        let mut header = write_header(&self.header);
        if header.len() > LINE_BYTES {
            header = write_header(&Header { command: Vec::new(), ..self.header.clone() });
        }
        let mut file = header;
        for touch in &self.touches {
            file.push(b'\n');
            file.extend(write_touch(touch));
        }
        file.push(b'\n');
        file
    }
}

/// The content of earlier lines.
#[derive(Default)]
struct Seen {
    objects: HashMap<Digest, (u64, Ranges)>,
    last: Duration,
}

impl Seen {
    fn next(&mut self, touch: Touch) -> Result<Touch, Problem> {
        if touch.at < self.last {
            return Err(Problem::Order);
        }
        self.last = touch.at;
        let (first, ranges) = self.objects.entry(touch.object).or_insert_with(|| (touch.size, Ranges::default()));
        if *first != touch.size {
            return Err(Problem::Sizes { object: touch.object, first: *first, second: touch.size });
        }
        if ranges.add(touch.range.clone()) != [touch.range.clone()] {
            return Err(Problem::Twice);
        }
        Ok(touch)
    }
}

fn read_header(line: &[u8]) -> Result<Header, Problem> {
    let VersionField { version } = match json(line) {
        Err(Problem::Json(_)) => return Err(Problem::NoTrace),
        read => read?,
    };
    if version != VERSION {
        return Err(Problem::Version(version));
    }
    let HeaderLine { image, manifest, profile, command, ready_micros, truncated, starts, .. } = json(line)?;
    let ready = ready_micros.map(time).transpose()?;
    Ok(Header { image, manifest, profile, command, ready, truncated, starts })
}

fn read_touch(line: &[u8]) -> Result<Touch, Problem> {
    let TouchLine { object, size, start, end, micros, layer, path, from, stall } = json(line)?;
    if size > limits::BLOB_BYTES {
        return Err(Problem::ObjectTooLarge(size));
    }
    if start >= end || end > size {
        return Err(Problem::Range { start, end, size });
    }
    if let Some(path) = path.as_ref().filter(|path| path.len() > limits::PATH_BYTES) {
        return Err(Problem::PathTooLong(path.len()));
    }
    Ok(Touch { object, size, range: start..end, at: time(micros)?, layer, path, from, stall: time(stall)? })
}

/// Parses one JSON object. The derived parsers would also accept an array of the fields' values.
fn json<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Problem> {
    if line.len() > LINE_BYTES {
        return Err(Problem::LineTooLong);
    }
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::Json("expected an object of JSON".to_owned()));
    }
    serde_json::from_slice(line).map_err(|error| {
        let text = error.to_string();
        // Its own line number is always 1.
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        Problem::Json(format!("{what} (column {})", error.column()))
    })
}

fn time(micros: u64) -> Result<Duration, Problem> {
    let time = Duration::from_micros(micros);
    if time <= LONGEST { Ok(time) } else { Err(Problem::TooLate(micros)) }
}

fn write_header(header: &Header) -> Vec<u8> {
    let Header { image, manifest, profile, command, ready, truncated, starts } = header.clone();
    let ready_micros = ready.map(micros);
    line(&HeaderLine { version: VERSION, image, manifest, profile, command, ready_micros, truncated, starts })
}

fn write_touch(touch: &Touch) -> Vec<u8> {
    let Touch { object, size, range, at, layer, path, from, stall } = touch.clone();
    let (micros, stall) = (micros(at), micros(stall));
    line(&TouchLine { object, size, start: range.start, end: range.end, micros, layer, path, from, stall })
}

fn line(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and text")
}
