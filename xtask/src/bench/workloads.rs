//! What is started: the lines of `fixtures/corpus/workloads.tsv`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::paths;

/// A container to be started, and how to tell that it is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) id: String,
    /// The repository in the registry, such as `dev/python`.
    pub(super) image: String,
    /// For `/bin/sh -c`.
    pub(super) command: String,
    pub(super) ready: Ready,
    pub(super) patience: Duration,
}

/// When a container is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ready {
    /// A line of its output begins with this, or has it somewhere.
    Line { text: String, at_start: bool },
    /// It answers HTTP on this port of the host.
    Port(u16),
}

impl Ready {
    /// Whether this line of output says it.
    pub(super) fn is_said_by(&self, line: &str) -> bool {
        match self {
            Self::Line { text, at_start: true } => line.starts_with(text.as_str()),
            Self::Line { text, at_start: false } => line.contains(text.as_str()),
            Self::Port(_) => false,
        }
    }
}

/// The workloads with these ids, or all that are listed.
pub(super) fn load(ids: &[String]) -> Result<Vec<Workload>> {
    let file = paths::root().join("fixtures/corpus/workloads.tsv");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let all = parse(&text)?;
    ids.iter()
        .map(|id| all.iter().find(|workload| workload.id == *id).cloned().with_context(|| format!("no workload {id}")))
        .collect()
}

fn parse(text: &str) -> Result<Vec<Workload>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| workload(line).with_context(|| format!("workload {line:?}"))).collect()
}

fn workload(line: &str) -> Result<Workload> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [image, _set, command, kind, value, patience, id, _network] = fields[..] else {
        bail!("expected 8 fields, found {}", fields.len());
    };
    let ready = match kind {
        // Alternatives are for what differs between versions; the first is what is shown here.
        "stdout" => {
            let pattern = value.split('|').next().unwrap_or(value);
            let text = pattern.trim_start_matches('^').to_owned();
            Ready::Line { text, at_start: pattern.starts_with('^') }
        }
        "tcp" => Ready::Port(value.parse()?),
        other => bail!("unknown kind of readiness {other:?}"),
    };
    let patience = Duration::from_secs(patience.parse()?);
    Ok(Workload { id: id.to_owned(), image: image.to_owned(), command: command.to_owned(), ready, patience })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_to_start_and_when_it_is_ready() {
        let all =
            parse("#name\ndev/a\tdev\texec a\tstdout\t^READY a|^B\t30\ta\tnone\ndev/b\tdev\tb\ttcp\t80\t5\tb\thost\n");
        let all = all.unwrap();
        assert_eq!(all[0].ready, Ready::Line { text: "READY a".into(), at_start: true });
        assert!(all[0].ready.is_said_by("READY a 1") && !all[0].ready.is_said_by("not READY a"));
        assert_eq!((all[1].ready.clone(), all[1].patience), (Ready::Port(80), Duration::from_secs(5)));
    }

    #[test]
    fn a_line_of_another_shape_is_an_error() {
        assert!(parse("dev/a\tdev\texec a\n").is_err() && parse("a\tb\tc\tsmell\tx\t1\tid\tnone\n").is_err());
    }

    #[test]
    fn the_listed_workloads_are_understood() {
        let ids = ["python-numpy", "node-express", "redis", "nginx"].map(str::to_owned);
        assert_eq!(load(&ids).unwrap().len(), 4);
    }
}
