//! The output of a detached container: lines in the format of the Kubernetes CRI, in two files of a limited size.
//!
//! `2026-01-01T00:00:00.000000000Z stdout F a line`; the tag is `P` instead of `F` if the line continues in the next one of its stream.
//! Output is written when it arrives, so a question or the last words before a hang are in the log. Readers get whole lines as far as the
//! log has them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes of a log before it is renamed to `log.1`, replacing the previous one. So the log holds between one and two times as many bytes of
/// the latest output, with the heads of its lines and of their parts.
pub(super) const LOG_BYTES: u64 = 8 << 20;

/// Maximum bytes of output in one line of the log. Longer lines are split.
const LINE_BYTES: usize = 16 << 10;

/// Bytes before the text of a line.
const HEAD_BYTES: u64 = 64;

/// Poll interval of a log that is followed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The stream that a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Standard output, or all output of a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Output {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// Its place in a list of both.
    fn number(self) -> usize {
        usize::from(self == Self::Stderr)
    }
}

/// A piece of a log: a line, or a part of one that continues in the next piece of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// When it was written: RFC 3339 with nanoseconds, UTC.
    pub time: &'a str,
    /// The stream that it was written to.
    pub output: Output,
    /// The text, with its line end if it has one.
    pub text: &'a [u8],
}

/// The part of a log to read. The default is all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRequest {
    /// Only the last so many lines of the existing log.
    pub tail: Option<usize>,
    /// Only output written at that time or later.
    pub since: Option<LogTime>,
}

/// A point in time, as a prefix of the timestamps in a log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogTime(String);

impl LogTime {
    /// Reads seconds since 1970, a date, a UTC time in RFC 3339 format, or an age such as `90s`, `10m` or `1h30m`.
    ///
    /// # Errors
    /// One line: the text is none of these.
    pub fn parse_at(text: &str, now: SystemTime) -> Result<Self, String> {
        if let Ok(seconds) = text.parse::<u32>() {
            return Ok(Self(time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into()))));
        }
        if let Some(ago) = parse_duration(text) {
            return Ok(Self(time(now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH))));
        }
        let plain = text.strip_suffix('Z').unwrap_or(text);
        if is_time(plain) {
            return Ok(Self(plain.to_owned()));
        }
        let forms = "2026-01-31, 2026-01-31T23:59:59Z (UTC), seconds since 1970, or how long ago, such as 10m";
        Err(format!("{text:?} is no time: expected {forms}"))
    }
}

/// Reads a duration such as `30d`, `1h30m` or `90s`. `None`: the text is none, or the duration is too long.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut seconds) = (text, 0_u64);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|character: char| !character.is_ascii_digit())?);
        let unit = match after.chars().next()? {
            'd' => 86_400,
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        seconds = seconds.checked_add(number.parse::<u64>().ok()?.checked_mul(unit)?)?;
        rest = &after[1..];
    }
    Some(Duration::from_secs(seconds)).filter(|_| !text.is_empty())
}

/// Whether the text is a date, optionally with a time, as far as its digits go.
fn is_time(text: &str) -> bool {
    const FORM: &str = "0000-00-00T00:00:00.000000000";
    let is_digit = |(is, form): (char, char)| if form == '0' { is.is_ascii_digit() } else { is == form };
    let is_whole = [10, 16, 19].contains(&text.len()) || (21..=FORM.len()).contains(&text.len());
    is_whole && text.is_ascii() && text.chars().zip(FORM.chars()).all(is_digit)
}

/// Writes a log and rotates it.
pub(super) struct LogWriter {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
}

impl LogWriter {
    pub(super) fn create(folder: &Path, limit: u64) -> io::Result<Self> {
        let path = folder.join("log");
        let file = open(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { path, file, size, limit })
    }

    /// Writes a line, or a part of one if it has no line end.
    fn write(&mut self, output: Output, text: &[u8]) -> io::Result<()> {
        let (tag, text) = text.strip_suffix(b"\n").map_or(('P', text), |line| ('F', line));
        let mut line = format!("{} {} {tag} ", time(SystemTime::now()), output.name()).into_bytes();
        line.extend_from_slice(text);
        line.push(b'\n');
        if self.size > 0 && self.size + line.len() as u64 > self.limit {
            std::fs::rename(&self.path, self.path.with_extension("1"))?;
            self.file = open(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(&line)?;
        self.size += line.len() as u64;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Copies the output of the container to the log, line by line. The beginning of a line is not held back until the rest arrives. A full disk
/// loses lines but does not stop the container.
pub(super) fn copy(from: impl Read, output: Output, log: &parking_lot::Mutex<LogWriter>) {
    let mut from = BufReader::with_capacity(LINE_BYTES, from);
    loop {
        let length = match from.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok([]) | Err(_) => break,
            Ok(arrived) => {
                let end = arrived.iter().position(|byte| *byte == b'\n');
                let (line, _) = arrived.split_at(end.map_or(arrived.len(), |end| end + 1));
                let _lost = log.lock().write(output, line);
                line.len()
            }
        };
        from.consume(length);
    }
}

/// Consumes the pieces of a log.
pub(super) type Sink<'a> = dyn FnMut(&LogLine<'_>) -> io::Result<()> + 'a;

/// Passes the requested part of a log to `sink`, oldest first. `is_over`: `None` to stop at the end of the log, else whether no more output
/// will follow.
pub(super) fn read(
    folder: &Path,
    request: &LogRequest,
    is_over: Option<&dyn Fn() -> bool>,
    sink: &mut Sink<'_>,
) -> io::Result<()> {
    let path = folder.join("log");
    let mut lines = Lines { since: request.since.as_ref(), begun: Vec::new() };
    let mut current = open_existing(&path)?.map(BufReader::new);
    let older = open_existing(&path.with_extension("1"))?.map(BufReader::new);
    match request.tail {
        None => {
            read_existing(older, current.as_mut(), &mut lines, sink)?;
        }
        Some(wanted) => {
            let mut tail = Tail::new(wanted);
            read_existing(older, current.as_mut(), &mut lines, &mut |line| tail.take(line))?;
            tail.give(sink)?;
        }
    }
    match is_over {
        None => Ok(()),
        Some(is_over) => follow(&path, current, is_over, &mut lines, sink),
    }
}

fn read_existing(
    older: Option<BufReader<File>>,
    current: Option<&mut BufReader<File>>,
    lines: &mut Lines<'_>,
    sink: &mut Sink<'_>,
) -> io::Result<()> {
    older.into_iter().try_for_each(|mut older| drain(&mut older, lines, sink))?;
    current.into_iter().try_for_each(|current| drain(current, lines, sink))?;
    lines.finish(sink)
}

/// Passes on new output until the log is over.
fn follow(
    path: &Path,
    mut reader: Option<BufReader<File>>,
    is_over: &dyn Fn() -> bool,
    lines: &mut Lines<'_>,
    sink: &mut Sink<'_>,
) -> io::Result<()> {
    loop {
        // Checked before the last read, so that all output written until then is read.
        let is_last = is_over();
        if let Some(reader) = &mut reader {
            drain(reader, lines, sink)?;
            // The rest of a line may take long or never come.
            lines.finish(sink)?;
        }
        let newer = open_existing(path)?;
        if is_other(reader.as_ref().map(BufReader::get_ref), newer.as_ref())? {
            // The rest of the old file is read before the new file.
            if let Some(reader) = &mut reader {
                drain(reader, lines, sink)?;
            }
            reader = newer.map(BufReader::new);
        } else if is_last {
            return Ok(());
        } else {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A piece of a log that is kept.
struct Piece {
    time: String,
    output: Output,
    text: Vec<u8>,
}

impl Piece {
    fn of(line: &LogLine<'_>) -> Self {
        Self { time: line.time.to_owned(), output: line.output, text: line.text.to_vec() }
    }

    fn give(&self, sink: &mut Sink<'_>) -> io::Result<()> {
        sink(&LogLine { time: &self.time, output: self.output, text: &self.text })
    }

    fn is_end(&self) -> bool {
        self.text.ends_with(b"\n")
    }
}

/// Selects the pieces of a log and joins them to lines. Lines of the two streams may have been written at the same time.
struct Lines<'a> {
    since: Option<&'a LogTime>,
    /// The beginnings of lines whose ends were not read yet: at most one of each stream, the older one first.
    begun: Vec<Piece>,
}

impl Lines<'_> {
    fn take(&mut self, line: &LogLine<'_>, sink: &mut Sink<'_>) -> io::Result<()> {
        if self.since.is_some_and(|since| line.time < since.0.as_str()) {
            return Ok(());
        }
        let at = self.begun.iter().position(|begun| begun.output == line.output);
        let at = at.unwrap_or_else(|| {
            self.begun.push(Piece { text: Vec::new(), ..Piece::of(line) });
            self.begun.len() - 1
        });
        let Some(begun) = self.begun.get_mut(at) else { return Ok(()) };
        begun.text.extend_from_slice(line.text);
        // A longer line is passed on in pieces, so that no reader needs memory for more.
        if begun.is_end() || begun.text.len() >= LINE_BYTES { self.begun.remove(at).give(sink) } else { Ok(()) }
    }

    /// Passes on lines without an end.
    fn finish(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        self.begun.drain(..).try_for_each(|begun| begun.give(sink))
    }
}

/// The last lines of a log, which has at most two files of [`LOG_BYTES`].
struct Tail {
    lines: usize,
    pieces: VecDeque<Piece>,
    /// Of each stream: the pieces that end a line, and those of a last line without an end.
    ends: [usize; 2],
    open: [usize; 2],
}

impl Tail {
    fn new(lines: usize) -> Self {
        Self { lines, pieces: VecDeque::new(), ends: [0; 2], open: [0; 2] }
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is a sink")]
    fn take(&mut self, line: &LogLine<'_>) -> io::Result<()> {
        let (piece, stream) = (Piece::of(line), line.output.number());
        if piece.is_end() {
            self.ends[stream] += 1;
            self.open[stream] = 0;
        } else {
            self.open[stream] += 1;
        }
        self.pieces.push_back(piece);
        while self.count() > self.lines && self.drop_first() {}
        Ok(())
    }

    /// Lines among the pieces. A last line without an end counts, too.
    fn count(&self) -> usize {
        let open = self.open.iter().filter(|pieces| **pieces > 0).count();
        self.ends.iter().sum::<usize>() + open
    }

    fn drop_first(&mut self) -> bool {
        let Some(first) = self.pieces.pop_front() else { return false };
        let stream = first.output.number();
        if first.is_end() {
            self.ends[stream] -= 1;
        } else if self.ends[stream] == 0 {
            self.open[stream] -= 1;
        }
        true
    }

    fn give(self, sink: &mut Sink<'_>) -> io::Result<()> {
        self.pieces.iter().try_for_each(|piece| piece.give(sink))
    }
}

fn open_existing(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn is_other(old: Option<&File>, new: Option<&File>) -> io::Result<bool> {
    match (old, new) {
        (_, None) => Ok(false),
        (None, Some(_)) => Ok(true),
        (Some(old), Some(new)) => Ok(old.metadata()?.ino() != new.metadata()?.ino()),
    }
}

/// Passes on all lines up to the end of the file.
fn drain(from: &mut BufReader<File>, lines: &mut Lines<'_>, sink: &mut Sink<'_>) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = LINE_BYTES as u64 + HEAD_BYTES;
        let length = from.by_ref().take(limit).read_until(b'\n', &mut line)? as u64;
        if length < limit && !line.ends_with(b"\n") {
            // The rest of the line is still being written.
            return from.seek_relative(-i64::try_from(length).unwrap_or(0));
        }
        if let Some((time, output, text)) = parse(&line) {
            lines.take(&LogLine { time, output, text: &text }, sink)?;
        }
    }
}

/// The time, the stream and the text of a line, with its end if it has one. `None`: it is not a line of a log.
fn parse(line: &[u8]) -> Option<(&str, Output, Vec<u8>)> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (time, output, tag, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let output = match output {
        b"stdout" => Output::Stdout,
        b"stderr" => Output::Stderr,
        _ => return None,
    };
    let mut text = text.to_vec();
    match tag {
        b"F" => text.push(b'\n'),
        b"P" => {}
        _ => return None,
    }
    Some((std::str::from_utf8(time).ok()?, output, text))
}

/// The time as RFC 3339 with nanoseconds, UTC.
fn time(now: SystemTime) -> String {
    const DAY: u64 = 86_400;
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
    // Years begin in March, in eras of 400 years, so that the leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + carry;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn all(folder: &Path) -> Vec<(Output, String)> {
        let mut lines = Vec::new();
        read(folder, &LogRequest::default(), None, &mut |line| {
            lines.push((line.output, String::from_utf8_lossy(line.text).into_owned()));
            Ok(())
        })
        .unwrap();
        lines
    }

    fn wanted(folder: &Path, request: &LogRequest) -> String {
        let mut said = String::new();
        read(folder, request, None, &mut |line| {
            said.push_str(std::str::from_utf8(line.text).unwrap());
            Ok(())
        })
        .unwrap();
        said
    }

    fn write(log: &mut LogWriter, output: Output, text: &str) {
        log.write(output, text.as_bytes()).unwrap();
    }

    #[test]
    fn the_output_of_a_container_is_logged_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let log = parking_lot::Mutex::new(LogWriter::create(folder.path(), LOG_BYTES).unwrap());
        copy(&b"one\n\ntwo  words \nno end"[..], Output::Stdout, &log);
        copy(&b"odd\n"[..], Output::Stderr, &log);
        let said: String = all(folder.path()).into_iter().map(|(_, text)| text).collect();
        assert_eq!(said, "one\n\ntwo  words \nodd\nno end", "a line that may continue is the last one");
        assert_eq!(all(folder.path())[3].0, Output::Stderr);
        let long = "x".repeat(3 * LINE_BYTES) + "\n";
        copy(long.as_bytes(), Output::Stdout, &log);
        let said: String = all(folder.path()).into_iter().map(|(_, text)| text).collect();
        assert!(said.ends_with(&long));
    }

    #[test]
    fn the_beginning_of_a_line_is_logged_before_its_end_arrives() {
        let folder = tempfile::tempdir().unwrap();
        let log = parking_lot::Mutex::new(LogWriter::create(folder.path(), LOG_BYTES).unwrap());
        let (from, mut program) = io::pipe().unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let (say, said) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| copy(from, Output::Stdout, &log));
            let following = scope.spawn(|| {
                let is_over = || is_over.load(std::sync::atomic::Ordering::Acquire);
                read(folder.path(), &LogRequest::default(), Some(&is_over), &mut |line| {
                    say.send(String::from_utf8(line.text.to_vec()).unwrap()).map_err(io::Error::other)
                })
            });
            let next = || said.recv_timeout(Duration::from_secs(60)).unwrap();
            // The program waits for an answer to its question.
            program.write_all(b"sure? ").unwrap();
            assert_eq!(next(), "sure? ");
            program.write_all(b"yes\n").unwrap();
            assert_eq!(next(), "yes\n");
            drop(program);
            copying.join().unwrap();
            is_over.store(true, std::sync::atomic::Ordering::Release);
            following.join().unwrap().unwrap();
        });
        assert_eq!(all(folder.path()), [(Output::Stdout, "sure? yes\n".to_owned())], "which is one line");
    }

    #[test]
    fn parts_of_lines_that_both_streams_write_at_the_same_time_are_joined() {
        let folder = tempfile::tempdir().unwrap();
        let log = "2026-01-01T00:00:00Z stdout P one \n2026-01-01T00:00:01Z stderr P odd \n\
                   2026-01-01T00:00:02Z stdout F line\n2026-01-01T00:00:03Z stderr F case\n\
                   2026-01-01T00:00:04Z stdout P ..\n2026-01-01T00:00:05Z stderr P now\n\
                   2026-01-01T00:00:06Z stdout P .\n";
        std::fs::write(folder.path().join("log"), log).unwrap();
        let lines = |tail, since: Option<&str>| {
            let since = since.map(|text| LogTime::parse_at(text, SystemTime::now()).unwrap());
            let mut lines = Vec::new();
            read(folder.path(), &LogRequest { tail, since }, None, &mut |line| {
                let second = line.time.trim_end_matches('Z').rsplit(':').next().unwrap().to_owned();
                lines.push(second + " " + std::str::from_utf8(line.text).unwrap());
                Ok(())
            })
            .unwrap();
            lines
        };
        let whole = ["00 one line\n", "01 odd case\n", "04 ...", "05 now"];
        assert_eq!(lines(None, None), whole, "with the time at which the line began");
        for tail in 0..=4 {
            assert_eq!(lines(Some(tail), None), whole[4 - tail..]);
        }
        assert_eq!(lines(None, Some("2026-01-01T00:00:03")), ["03 case\n", "04 ...", "05 now"]);
        assert_eq!(lines(Some(1), Some("2026-01-01T00:00:06")), ["06 ."]);
    }

    #[test]
    fn a_log_keeps_its_limit_and_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogWriter::create(folder.path(), 1000).unwrap();
        (0..500).for_each(|number| write(&mut log, Output::Stdout, &format!("line {number}\n")));
        let bytes: u64 =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes <= 2000, "{bytes}");
        let lines = all(folder.path());
        let first: usize = lines[0].1.trim_end().strip_prefix("line ").unwrap().parse().unwrap();
        let expected: Vec<_> = (first..500).map(|number| (Output::Stdout, format!("line {number}\n"))).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_follower_sees_every_line_once_across_files() {
        let folder = tempfile::tempdir().unwrap();
        let log = std::cell::RefCell::new(LogWriter::create(folder.path(), 200).unwrap());
        let (said, mut seen) = (Cell::new(0), Vec::new());
        // One line between any two polls, and none after the tenth.
        let is_over = || {
            write(&mut log.borrow_mut(), Output::Stdout, &format!("{}\n", said.get()));
            said.set(said.get() + 1);
            said.get() >= 10
        };
        read(folder.path(), &LogRequest::default(), Some(&is_over), &mut |line| {
            seen.push(String::from_utf8_lossy(line.text).trim_end().to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        for odd in ["", "x", "t stdout F", "t stdlog F x", "t stdout Q x", "\n"] {
            assert_eq!(parse(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(parse(b"t stdout F \n"), Some(("t", Output::Stdout, b"\n".to_vec())));
    }

    #[test]
    fn the_last_lines_are_counted_across_files_and_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogWriter::create(folder.path(), 200).unwrap();
        (0..9).for_each(|number| write(&mut log, Output::Stdout, &format!("line {number}\n")));
        assert!(folder.path().join("log.1").exists());
        let tail = |lines| wanted(folder.path(), &LogRequest { tail: Some(lines), ..LogRequest::default() });
        assert_eq!(tail(3), "line 6\nline 7\nline 8\n");
        assert_eq!((tail(0), tail(1000)), (String::new(), wanted(folder.path(), &LogRequest::default())));
        for piece in ["a long", " line ", "in pieces\n"] {
            write(&mut log, Output::Stderr, piece);
        }
        assert_eq!(tail(1), "a long line in pieces\n");
        assert_eq!(tail(2), "line 8\na long line in pieces\n");
        write(&mut log, Output::Stdout, "no end");
        assert_eq!((tail(1), tail(2)), ("no end".to_owned(), "a long line in pieces\nno end".to_owned()));
    }

    #[test]
    fn lines_before_a_time_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let lines = "2026-01-01T00:00:00.000000000Z stdout F one\n2026-01-01T00:00:01.500000000Z stdout F two\n\
                     2026-01-02T00:00:00.000000000Z stderr F three\n";
        std::fs::write(folder.path().join("log"), lines).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600 + 86_400);
        let since = |text| {
            wanted(
                folder.path(),
                &LogRequest { since: Some(LogTime::parse_at(text, now).unwrap()), ..LogRequest::default() },
            )
        };
        for (text, said) in [
            ("2025-12-31", "one\ntwo\nthree\n"),
            ("2026-01-01T00:00:01Z", "two\nthree\n"),
            ("2026-01-01T00:00:01.6Z", "three\n"),
            ("1767225601", "two\nthree\n"),
            ("24h", "one\ntwo\nthree\n"),
            ("23h59m58s", "three\n"),
            ("2027-01-01T00:00", ""),
        ] {
            assert_eq!(since(text), said, "{text}");
        }
        let both = LogRequest { tail: Some(1), since: Some(LogTime::parse_at("1d", now).unwrap()) };
        assert_eq!(wanted(folder.path(), &both), "three\n");
        for odd in ["", "yesterday", "10", "2026-1-1", "2026-01-01T00:00:00+02:00", "10m5", "m", "-5m"] {
            assert_eq!(LogTime::parse_at(odd, now).is_err(), odd != "10", "{odd}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_827_400), "2000-02-29T12:30:00.000000000Z");
        assert_eq!(at(1_767_225_600), "2026-01-01T00:00:00.000000000Z");
    }
}
