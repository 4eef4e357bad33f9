//! The output of a detached container: lines in the format of the Kubernetes CRI, in two files of a limited size.
//!
//! `2026-01-01T00:00:00.000000000Z stdout F a line`; `P` instead of `F` where a line goes on in the next one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes of a log before it is put aside as `log.1`, instead of the one that was there: so a container keeps between one and two
/// times as many of its last bytes.
pub(super) const LOG_BYTES: u64 = 8 << 20;

/// Bytes of output that are one line of the log at most: longer ones are split.
const LINE_BYTES: usize = 16 << 10;

/// Bytes before the text of a line.
const HEAD_BYTES: u64 = 64;

/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Where a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Standard output, and all that a terminal shows.
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
}

/// A log that is written.
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

    /// Writes a line, or a part of one if it does not end.
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

/// Writes all that comes `from` the container, line by line. A disk that is full costs lines, and does not stop the container.
pub(super) fn copy(from: impl Read, output: Output, log: &parking_lot::Mutex<LogWriter>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while matches!(from.by_ref().take(LINE_BYTES as u64).read_until(b'\n', &mut line), Ok(1..)) {
        let _lost = log.lock().write(output, &line);
        line.clear();
    }
}

/// Gives what a log holds to `sink`, oldest first. `is_over`: none if nobody waits for more, else whether no more will come.
pub(super) fn read(
    folder: &Path,
    is_over: Option<&dyn Fn() -> bool>,
    sink: &mut dyn FnMut(Output, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let path = folder.join("log");
    let mut current = open_existing(&path)?;
    if let Some(older) = open_existing(&path.with_extension("1"))? {
        drain(&mut BufReader::new(older), sink)?;
    }
    let Some(is_over) = is_over else {
        return current.map_or(Ok(()), |file| drain(&mut BufReader::new(file), sink));
    };
    let mut reader = current.take().map(BufReader::new);
    loop {
        // Asked before the last look: what was written until then is seen.
        let is_last = is_over();
        if let Some(reader) = &mut reader {
            drain(reader, sink)?;
        }
        let newer = open_existing(&path)?;
        if is_other(reader.as_ref().map(BufReader::get_ref), newer.as_ref())? {
            // What was still written to the old one is seen before the new one is.
            if let Some(reader) = &mut reader {
                drain(reader, sink)?;
            }
            reader = newer.map(BufReader::new);
        } else if is_last {
            return Ok(());
        } else {
            std::thread::sleep(LOOK);
        }
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

/// All lines that are there.
fn drain(from: &mut BufReader<File>, sink: &mut dyn FnMut(Output, &[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = LINE_BYTES as u64 + HEAD_BYTES;
        let length = from.by_ref().take(limit).read_until(b'\n', &mut line)? as u64;
        if length < limit && !line.ends_with(b"\n") {
            // The rest of it is being written.
            return from.seek_relative(-i64::try_from(length).unwrap_or(0));
        }
        if let Some((output, text)) = parse(&line) {
            sink(output, &text)?;
        }
    }
}

/// Where a line was written to, and its text with its end if it has one. None: this is no line of a log.
fn parse(line: &[u8]) -> Option<(Output, Vec<u8>)> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (_time, output, tag, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
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
    Some((output, text))
}

/// RFC 3339 with nanoseconds, UTC.
fn time(now: SystemTime) -> String {
    const DAY: u64 = 86_400;
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
    // Years that begin in March, in eras of 400 years: the leap day is the last of its year.
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
        read(folder, None, &mut |output, text| {
            lines.push((output, String::from_utf8_lossy(text).into_owned()));
            Ok(())
        })
        .unwrap();
        lines
    }

    fn write(log: &mut LogWriter, output: Output, text: &str) {
        log.write(output, text.as_bytes()).unwrap();
    }

    #[test]
    fn what_a_container_says_is_told_as_it_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let log = parking_lot::Mutex::new(LogWriter::create(folder.path(), LOG_BYTES).unwrap());
        copy(&b"one\n\ntwo  words \nno end"[..], Output::Stdout, &log);
        copy(&b"odd\n"[..], Output::Stderr, &log);
        let said: String = all(folder.path()).into_iter().map(|(_, text)| text).collect();
        assert_eq!(said, "one\n\ntwo  words \nno endodd\n");
        assert_eq!(all(folder.path()).last().unwrap().0, Output::Stderr);
        let long = "x".repeat(3 * LINE_BYTES) + "\n";
        copy(long.as_bytes(), Output::Stdout, &log);
        let said: String = all(folder.path()).into_iter().map(|(_, text)| text).collect();
        assert!(said.ends_with(&long));
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
    fn whoever_follows_sees_every_line_once_across_files() {
        let folder = tempfile::tempdir().unwrap();
        let log = std::cell::RefCell::new(LogWriter::create(folder.path(), 200).unwrap());
        let (said, mut seen) = (Cell::new(0), Vec::new());
        // One line between any two looks, and none after the tenth.
        let is_over = || {
            write(&mut log.borrow_mut(), Output::Stdout, &format!("{}\n", said.get()));
            said.set(said.get() + 1);
            said.get() >= 10
        };
        read(folder.path(), Some(&is_over), &mut |_, text| {
            seen.push(String::from_utf8_lossy(text).trim_end().to_owned());
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
        assert_eq!(parse(b"t stdout F \n"), Some((Output::Stdout, b"\n".to_vec())));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_827_400), "2000-02-29T12:30:00.000000000Z");
        assert_eq!(at(1_767_225_600), "2026-01-01T00:00:00.000000000Z");
    }
}
