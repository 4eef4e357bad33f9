//! `tarpon trace`: shows, merges and plots traces of container starts, and manages and publishes those that starts left in the store.

mod file;
mod learned;
mod publish;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tarpon_engine::trace::{self, Header, Origin, Totals, TouchedFile};
use tarpon_oci::Digest;

pub(super) use self::file::read;
use self::file::write;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon trace show start.trace                       files, times and waits
  tarpon trace plot start.trace -o start.svg          plot the trace as SVG
  tarpon trace merge monday.trace friday.trace -o both.trace
  tarpon trace ls                                     traces that starts left in the store
  tarpon trace publish --index-repo registry.example/tarpon --all

A trace is a file of JSON lines: a header, then the ranges that were read, in order of first access.";

/// Show, merge, plot, list and publish traces of container starts
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Trace {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(Show),
    Merge(Merge),
    Plot(Plot),
    Ls(learned::Ls),
    Rm(learned::Rm),
    Export(learned::Export),
    Publish(Box<publish::Publish>),
}

const SHOW_EXAMPLES: &str = "\
Examples:
  tarpon trace show start.trace
  tarpon trace show --json start.trace | jq -r '.files[] | select(.stall_micros > 10000) | .path'";

/// Show the files that a start read, in order of first access
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
struct Show {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Trace file
    file: PathBuf,
}

const MERGE_EXAMPLES: &str = "\
Examples:
  tarpon trace merge monday.trace friday.trace -o both.trace
  tarpon trace merge *.trace | tarpon trace show /dev/stdin";

/// Merge traces
///
/// The result contains each byte that one of the traces contains, at the earliest time. The order of the files matters only for the header,
/// which is that of the first file. Waits and sources of bytes belong to one start and are left out.
#[derive(Debug, Args)]
#[command(after_help = MERGE_EXAMPLES)]
struct Merge {
    /// Output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Trace files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

const PLOT_EXAMPLES: &str = "\
Examples:
  tarpon trace plot start.trace -o start.svg
  tarpon trace plot start.trace > start.svg";

/// Plot a trace as SVG
///
/// The horizontal axis is time, each row is a file. A mark shows when bytes arrived, the bar before it how long the reader waited.
#[derive(Debug, Args)]
#[command(after_help = PLOT_EXAMPLES)]
struct Plot {
    /// Output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Trace file
    file: PathBuf,
}

impl Trace {
    pub(crate) fn run(self, global: &Global) -> Result {
        match self.command {
            Command::Show(command) => command.run(),
            Command::Merge(command) => command.run(global),
            Command::Plot(command) => command.run(global),
            Command::Ls(command) => command.run(global),
            Command::Rm(command) => command.run(global),
            Command::Export(command) => command.run(global),
            Command::Publish(command) => command.run(global),
        }
    }
}

impl Show {
    fn run(self) -> Result {
        let trace = read(&self.file)?;
        if self.json { output::json(&Shown::of(&trace)) } else { output::text(&text(&trace)) }
    }
}

impl Merge {
    fn run(self, global: &Global) -> Result {
        let traces: Vec<trace::Trace> = self.files.iter().map(|file| read(file)).collect::<Result<_>>()?;
        let merged = trace::merge(&traces)
            .map_err(|error| Failure::new(Exit::Refused, format_args!("cannot merge the traces: {error}")))?;
        write(global, self.output.as_deref(), &merged.write())
    }
}

impl Plot {
    fn run(self, global: &Global) -> Result {
        write(global, self.output.as_deref(), trace::plot(&read(&self.file)?).as_bytes())
    }
}

#[derive(Debug, Serialize)]
struct Shown {
    image: String,
    manifest: Digest,
    profile: String,
    command: Vec<String>,
    ready_micros: Option<u64>,
    truncated: bool,
    starts: u32,
    touched_bytes: u64,
    file_bytes: u64,
    stall_micros: u64,
    stalls: usize,
    files: Vec<ShownFile>,
}

#[derive(Debug, Serialize)]
struct ShownFile {
    object: Digest,
    path: Option<String>,
    layer: Option<Digest>,
    size: u64,
    touched_bytes: u64,
    first_micros: u64,
    stall_micros: u64,
    from: Vec<Origin>,
}

impl Shown {
    fn of(trace: &trace::Trace) -> Self {
        let Header { image, manifest, profile, command, ready, truncated, starts } = trace.header.clone();
        let Totals { touched, size, stall, stalls, .. } = trace.totals();
        let files = trace.files().into_iter().map(|file| ShownFile {
            object: file.object,
            path: file.path,
            layer: file.layer,
            size: file.size,
            touched_bytes: file.touched,
            first_micros: micros(file.at),
            stall_micros: micros(file.stall),
            from: file.from,
        });
        Self {
            image,
            manifest,
            profile,
            command,
            ready_micros: ready.map(micros),
            truncated,
            starts,
            touched_bytes: touched,
            file_bytes: size,
            stall_micros: micros(stall),
            stalls,
            files: files.collect(),
        }
    }
}

fn text(trace: &trace::Trace) -> String {
    let (header, totals) = (&trace.header, trace.totals());
    let mut facts = Table::new(&["", ""]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), escape(value.as_bytes())]);
    fact("image", header.image.clone());
    fact("manifest", header.manifest.to_string());
    fact("profile", header.profile.clone());
    if !header.command.is_empty() {
        fact("command", header.command.join(" "));
    }
    let (touched, all) = (size::human(totals.touched), size::human(totals.size));
    fact("touched", format!("{touched} of {all} in {} files", totals.files));
    if totals.stalls > 0 {
        fact("waited", format!("{} in {} reads", time(totals.stall), totals.stalls));
    }
    if let Some(ready) = header.ready {
        fact("ready", format!("after {}", time(ready)));
    }
    if header.starts > 0 {
        fact("equal starts", header.starts.to_string());
    }
    if header.truncated {
        fact("complete", "no: the trace was truncated".to_owned());
    }
    let mut table = Table::new(&[">TIME", ">SIZE", ">TOUCHED", "FROM", ">STALL", "FILE"]);
    trace.files().iter().for_each(|file| table.row(row(file)));
    format!("{facts}\n{table}")
}

fn row(file: &TouchedFile) -> [String; 6] {
    let from: Vec<&str> = file.from.iter().map(|from| from.name()).collect();
    [
        time(file.at),
        size::human(file.size),
        size::percent(file.touched, file.size),
        if from.is_empty() { "-".to_owned() } else { from.join(", ") },
        if file.stall.is_zero() { "-".to_owned() } else { time(file.stall) },
        file.path.as_ref().map_or_else(|| file.object.to_string(), |path| escape(path.as_bytes())),
    ]
}

/// A time in milliseconds, so that a column of times can be compared.
fn time(time: Duration) -> String {
    format!("{}.{} ms", time.as_millis(), time.subsec_micros() / 100 % 10)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
