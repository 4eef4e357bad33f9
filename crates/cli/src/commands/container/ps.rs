//! `tarpon ps`.

use clap::{Args, ValueEnum};
use serde::Serialize;
use tarpon_engine::{ContainerRecord, ContainerState, ContainerStatus, Lifecycle};

use super::filter::{self, Filter};
use crate::commands::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::listing::time;
use crate::output::{self, Table, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon ps              running containers
  tarpon ps -a           all containers
  tarpon rm $(tarpon ps -aq --filter status=exited)
  tarpon ps --format json | jq -r '.[].record.image'

A container is \"lost\" if the process that supervises it was killed: `tarpon stop` or `tarpon rm -f`
ends its remaining processes. \"source lost\" means that the server of its image was killed: it can read
local data only. Run a new container in its place.";

/// Maximum width of a command in characters.
const COMMAND: usize = 40;

/// List containers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ps {
    /// Show all containers, including ended ones
    #[arg(short, long)]
    all: bool,
    /// Print only names, as with -q
    #[arg(long, conflicts_with_all = ["json", "format"])]
    names: bool,
    /// Print as JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Output format; for templates use json and jq
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Show only containers that match: name=PART, status=STATUS, ancestor=IMAGE or exited=CODE; filters with the same key are
    /// alternatives
    #[arg(short, long, value_name = "KEY=VALUE")]
    filter: Vec<Filter>,
}

/// How containers are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Table
    Table,
    /// Same as --json
    Json,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    status: String,
    problem: Option<&'a str>,
    source_lost: bool,
    record: Option<&'a ContainerRecord>,
}

impl<'a> Row<'a> {
    fn of(container: &'a ContainerStatus) -> Self {
        let ContainerStatus { name, record, standing, source_lost } = container;
        let problem = record.as_ref().err().map(String::as_str);
        let (status, record) = (standing.name().to_owned(), record.as_ref().ok());
        Self { name: name.as_str(), status, problem, source_lost: *source_lost, record }
    }
}

impl Ps {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let mut containers = session.engine().containers().doing(|| "cannot list the containers")?;
        let all = self.all || self.filter.iter().any(Filter::is_of_ended);
        containers.retain(|container| (all || !container.has_ended()) && filter::is_wanted(container, &self.filter));
        if self.json || self.format == Some(Format::Json) {
            return output::json(&containers.iter().map(Row::of).collect::<Vec<_>>());
        }
        // As with Podman and Docker, because scripts rely on it.
        if self.names || global.quiet {
            return output::text(
                &containers.iter().map(|container| format!("{}\n", container.name)).collect::<String>(),
            );
        }
        output::text(&overview(&containers))
    }
}

fn overview(containers: &[ContainerStatus]) -> String {
    let mut table = Table::new(&["NAME", "IMAGE", "COMMAND", "CREATED", "STATUS", "PORTS"]);
    for ContainerStatus { name, record, standing, source_lost } in containers {
        match record {
            Ok(record) => table.row([
                name.to_string(),
                escape(record.image.as_bytes()),
                command(record),
                time(i64::try_from(record.created).unwrap_or(i64::MAX)),
                status(*standing, *source_lost, record),
                ports(record),
            ]),
            Err(problem) => {
                table.row([
                    name.to_string(),
                    "?".into(),
                    "?".into(),
                    "?".into(),
                    escape(problem.as_bytes()),
                    String::new(),
                ]);
            }
        }
    }
    table.to_string()
}

/// Published ports, as `podman ps` shows them.
fn ports(record: &ContainerRecord) -> String {
    let ports = record.network.iter().flat_map(|network| &network.ports);
    ports.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn command(record: &ContainerRecord) -> String {
    let whole = escape(record.command.join(" ").as_bytes());
    match whole.char_indices().nth(COMMAND) {
        Some((end, _)) => format!("{}\u{2026}", &whole[..end]),
        None => whole,
    }
}

fn status(standing: Lifecycle, source_lost: bool, record: &ContainerRecord) -> String {
    let at = |seconds: u64| time(i64::try_from(seconds).unwrap_or(i64::MAX));
    match (standing, &record.state) {
        (Lifecycle::Exited(code), ContainerState::Exited { at: end, .. }) => match code {
            Some(code) => format!("exited ({code}) {}", at(*end)),
            None => format!("exited {}", at(*end)),
        },
        (Lifecycle::Running, ContainerState::Running { since, .. }) => {
            let lost = if source_lost { ", source lost" } else { "" };
            format!("running since {}{lost}", at(*since))
        }
        (standing, _) => standing.name().to_owned(),
    }
}
