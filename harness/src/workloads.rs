//! The workloads: the lines of `fixtures/corpus/workloads.tsv`, or of a file with the same columns.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::paths;

/// A container to start, and its condition of readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The name of the workload and its container.
    pub id: String,
    /// The repository in the registry, such as `dev/python`.
    pub image: String,
    /// For `/bin/sh -c`.
    pub command: String,
    /// The condition of readiness.
    pub ready: Ready,
    /// Time limit for that when the image is local.
    pub patience: Duration,
    /// Whether it is queried over the host's network; otherwise it needs none.
    pub on_host_network: bool,
}

/// When a container is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// A line of its output begins with this, or contains it.
    Line {
        /// The text to find.
        text: String,
        /// Whether the line begins with it.
        at_start: bool,
    },
    /// A process listens on this port of the host, and answers HTTP at this path if one is given.
    Port {
        /// On 127.0.0.1.
        port: u16,
        /// Path of the HTTP request.
        path: Option<String>,
    },
    /// It ended successfully, and its output has this sha256.
    Exit {
        /// In hexadecimal digits.
        sha256: String,
    },
}

impl Ready {
    /// Whether this line of output shows readiness.
    pub fn is_printed_as(&self, line: &str) -> bool {
        match self {
            Self::Line { text, at_start: true } => line.starts_with(text.as_str()),
            Self::Line { text, at_start: false } => line.contains(text.as_str()),
            Self::Port { .. } | Self::Exit { .. } => false,
        }
    }

    /// Whether the port answers as required, according to `ask`.
    pub fn answers(&self, ask: &impl Fn(u16, Option<&str>) -> bool) -> bool {
        matches!(self, Self::Port { port, path } if ask(*port, path.as_deref()))
    }
}

/// The workloads of a file, else of the corpus.
pub fn all(file: Option<&Path>) -> Result<Vec<Workload>> {
    let file = place(file);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&text)
}

fn place(file: Option<&Path>) -> PathBuf {
    file.map_or_else(|| paths::root().join("fixtures/corpus/workloads.tsv"), Path::to_owned)
}

/// The workloads with these ids of a file, else of the corpus.
pub fn load(file: Option<&Path>, ids: &[String]) -> Result<Vec<Workload>> {
    let (all, file) = (all(file)?, place(file));
    let find = |id: &String| all.iter().find(|workload| workload.id == *id).cloned();
    ids.iter().map(|id| find(id).with_context(|| format!("no workload {id} in {}", file.display()))).collect()
}

fn parse(text: &str) -> Result<Vec<Workload>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| workload(line).with_context(|| format!("workload {line:?}"))).collect()
}

fn workload(line: &str) -> Result<Workload> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [image, _set, command, kind, value, patience, id, network] = fields[..] else {
        bail!("expected 8 fields, found {}", fields.len());
    };
    let ready = match kind {
        // Alternatives cover differences between versions; the first applies to the images here.
        "stdout" => {
            let pattern = value.split('|').next().unwrap_or(value);
            let text = pattern.trim_start_matches('^').to_owned();
            Ready::Line { text, at_start: pattern.starts_with('^') }
        }
        "tcp" => Ready::Port { port: value.parse()?, path: None },
        "http" => {
            let (port, path) = value.split_once('/').unwrap_or((value, ""));
            Ready::Port { port: port.parse()?, path: Some(format!("/{path}")) }
        }
        "exit" => {
            let sha256 = value.strip_prefix("sha256:").context("exit wants sha256:DIGEST of the output")?;
            Ready::Exit { sha256: sha256.to_owned() }
        }
        other => bail!("unknown kind of readiness {other:?}"),
    };
    let patience = Duration::from_secs(patience.parse()?);
    let (id, image, command) = (id.to_owned(), image.to_owned(), command.to_owned());
    Ok(Workload { id, image, command, ready, patience, on_host_network: network == "host" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_command_and_its_condition_of_readiness() {
        let all =
            parse("#name\ndev/a\tdev\texec a\tstdout\t^READY a|^B\t30\ta\tnone\ndev/b\tdev\tb\ttcp\t80\t5\tb\thost\n");
        let all = all.unwrap();
        assert_eq!(all[0].ready, Ready::Line { text: "READY a".into(), at_start: true });
        assert!(all[0].ready.is_printed_as("READY a 1") && !all[0].ready.is_printed_as("not READY a"));
        let port = Ready::Port { port: 80, path: None };
        assert_eq!((&all[1].ready, all[1].patience), (&port, Duration::from_secs(5)));
        assert!(port.answers(&|port, path| port == 80 && path.is_none()) && !port.is_printed_as("80"));
    }

    #[test]
    fn a_page_and_an_exit_are_ways_to_be_ready() {
        let ready = |kind: &str, value: &str| parse(&format!("i\ts\tc\t{kind}\t{value}\t1\tid\tnone\n"));
        let page = Ready::Port { port: 8080, path: Some("/health".into()) };
        assert_eq!(ready("http", "8080/health").unwrap()[0].ready, page);
        assert_eq!(ready("exit", "sha256:ab").unwrap()[0].ready, Ready::Exit { sha256: "ab".into() });
        assert!(ready("exit", "ab").is_err() && ready("http", "/").is_err());
    }

    #[test]
    fn a_line_of_another_shape_is_an_error() {
        assert!(parse("dev/a\tdev\texec a\n").is_err() && parse("a\tb\tc\tsmell\tx\t1\tid\tnone\n").is_err());
    }

    #[test]
    fn the_listed_workloads_are_understood() {
        let ids = ["python-numpy", "node-express", "redis", "nginx", "debian-exit"].map(str::to_owned);
        assert_eq!(load(None, &ids).unwrap().len(), 5);
    }
}
