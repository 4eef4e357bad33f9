//! The messages of the virtual machine, one per line.

use anyhow::{Context, Result, bail};

/// A message of `init.sh`, or of a script that it executes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The kernel and its modules are loaded.
    Boot,
    /// Whether the shared directory can be mounted with DAX; if not, the reason.
    Dax(Option<String>),
    /// The machine waits for a mount below the shared directory.
    Waiting,
    /// The machine begins to read all of the image.
    Reading,
    /// An entry of the image's root.
    Listed(Entry),
    /// Entries could not be read: their number and the first error.
    Errors(String),
    /// A line that the workload printed.
    Output(String),
    /// The workload ended with this code.
    Started(i32),
    /// The task is done.
    Done,
}

/// An entry of the image's root and all that is below it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) files: u64,
    /// Digest of the names and attributes.
    pub(super) attributes: String,
    /// Digest of the contents.
    pub(super) contents: String,
}

impl Message {
    pub(super) fn parse(line: &str) -> Result<Self> {
        let line = line.trim_end();
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let parsed = match kind {
            "boot" => Some(Self::Boot),
            "dax" => Some(Self::Dax(rest.strip_prefix("no ").map(str::to_owned))),
            "waiting" => Some(Self::Waiting),
            "reading" => Some(Self::Reading),
            "listed" => entry(rest).map(Self::Listed),
            "errors" => Some(Self::Errors(rest.to_owned())),
            "output" => Some(Self::Output(rest.to_owned())),
            "started" => rest.parse().ok().map(Self::Started),
            "done" => Some(Self::Done),
            "failed" => bail!("the machine failed: {rest}"),
            _ => bail!("the machine printed no message: {line}"),
        };
        parsed.with_context(|| format!("the machine printed an incomplete message: {line}"))
    }
}

fn entry(text: &str) -> Option<Entry> {
    let fields: Vec<_> = text.split(' ').collect();
    let [name, files, attributes, contents] = fields[..] else { return None };
    let [name, attributes, contents] = [name, attributes, contents].map(str::to_owned);
    Some(Entry { name, files: files.parse().ok()?, attributes, contents })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_their_texts_and_numbers() {
        let parse = |line| Message::parse(line).unwrap();
        assert_eq!(parse("started 127\r\n"), Message::Started(127));
        assert_eq!(parse("output READY numpy 1.0\r\n"), Message::Output("READY numpy 1.0".into()));
        assert_eq!(parse("output\n"), Message::Output(String::new()));
        assert_eq!(parse("dax yes"), Message::Dax(None));
        assert_eq!(parse("dax no virtiofs: a reason"), Message::Dax(Some("virtiofs: a reason".into())));
        let (name, attributes, contents) = ("usr".into(), "ab".into(), "cd".into());
        assert_eq!(parse("listed usr 12 ab cd"), Message::Listed(Entry { name, files: 12, attributes, contents }));
    }

    #[test]
    fn a_failure_and_a_line_that_is_no_message_are_errors() {
        for line in ["", "kernel panic", "started", "listed usr 1 ab", "failed mount: no such device"] {
            assert!(Message::parse(line).is_err(), "{line:?}");
        }
    }
}
