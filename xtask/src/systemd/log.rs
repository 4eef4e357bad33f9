//! What the readers of a container write: a line per operation.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// An operation of a reader.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operation {
    pub(super) reader: usize,
    /// Counts the operations of a reader.
    pub(super) number: u64,
    pub(super) kind: String,
    /// Seconds since 1970.
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) result: String,
    pub(super) path: String,
}

impl Operation {
    pub(super) fn is_error(&self) -> bool {
        self.result != "ok"
    }

    pub(super) fn seconds(&self) -> f64 {
        self.end - self.start
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split(' ').collect();
        let &[reader, number, kind, start, end, result, path] = fields.as_slice() else { return None };
        Some(Self {
            reader: reader.parse().ok()?,
            number: number.parse().ok()?,
            kind: kind.to_owned(),
            start: start.parse().ok()?,
            end: end.parse().ok()?,
            result: result.to_owned(),
            path: path.to_owned(),
        })
    }
}

/// The log of a container.
pub(super) struct Log {
    path: PathBuf,
    /// Bytes that were parsed.
    parsed: usize,
    pub(super) operations: Vec<Operation>,
}

impl Log {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, parsed: 0, operations: Vec::new() }
    }

    /// Reads the lines that were added.
    pub(super) fn update(&mut self) -> Result<()> {
        let Ok(bytes) = fs::read(&self.path) else { return Ok(()) };
        let new = bytes.get(self.parsed..).with_context(|| format!("{} became shorter", self.path.display()))?;
        let complete = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in String::from_utf8_lossy(&new[..complete]).lines() {
            let operation =
                Operation::parse(line).with_context(|| format!("{} has the line {line:?}", self.path.display()))?;
            self.operations.push(operation);
        }
        self.parsed += complete;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_lines_are_parsed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::new(path.clone());
        log.update().unwrap();
        fs::write(&path, "1 7 file 10.5 10.75 ok /data/a\n1 8 program 11.0").unwrap();
        log.update().unwrap();
        assert_eq!(log.operations.len(), 1);
        assert_eq!((log.operations[0].number, log.operations[0].seconds()), (7, 0.25));
        fs::write(&path, "1 7 file 10.5 10.75 ok /data/a\n1 8 program 11.0 12.0 status-135- /data/b\n").unwrap();
        log.update().unwrap();
        assert!(log.operations[1].is_error());
        fs::write(&path, "").unwrap();
        assert!(log.update().is_err());
    }
}
