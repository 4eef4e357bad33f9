//! `tarpon trace ls`, `rm` and `export`: the traces that starts left in the store.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use tarpon_engine::Engine;
use tarpon_engine::store::StoredTrace;
use tarpon_engine::trace::Trace;
use tarpon_oci::Digest;

use crate::commands::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

/// Digits of an ID that are shown. A few hundred traces need far fewer.
const SHOWN_DIGITS: usize = 12;
/// Fewest digits of an ID that select a trace.
const LEAST_DIGITS: usize = 4;

/// List the traces that starts left in the store
///
/// The first minute of an image without a boot pack leaves a trace. The next start of the image by the same command, or of another version
/// of it, first fetches what the trace names. At most 32 MiB of traces are kept, the newest. STARTS is how many starts in a row read
/// hardly any new files, a tenth at most: `tarpon trace publish` makes boot packs of images by it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon trace ls\n  tarpon trace ls --json | jq -r '.[].id'")]
pub(super) struct Ls {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const RM_EXAMPLES: &str = "\
Examples:
  tarpon trace rm 4ec3a1b2c3d4
  tarpon trace rm --all          every image starts as if for the first time";

/// Remove traces that starts left in the store
#[derive(Debug, Args)]
#[command(after_help = RM_EXAMPLES)]
pub(super) struct Rm {
    /// Remove all of them
    #[arg(long, conflicts_with = "ids", required_unless_present = "ids")]
    all: bool,
    /// IDs as listed by `tarpon trace ls`, or the beginnings of IDs
    #[arg(value_name = "ID")]
    ids: Vec<String>,
}

const EXPORT_EXAMPLES: &str = "\
Examples:
  tarpon trace export 4ec3a1b2c3d4 -o start.trace
  tarpon trace export 4ec3a1b2c3d4 | tarpon trace show /dev/stdin
  tarpon record --push --trace start.trace registry.example/app:v2";

/// Write a trace that starts left in the store to a file
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(super) struct Export {
    /// Output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// ID as listed by `tarpon trace ls`, or the beginning of one
    id: String,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    id: String,
    image: &'a str,
    manifest: Digest,
    /// Equal starts in a row.
    starts: u32,
    command: &'a [String],
    files: usize,
    touched_bytes: u64,
    /// Seconds since 1970.
    written: u64,
}

impl Ls {
    pub(super) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let traces = all(session.engine())?;
        let listed: Vec<_> = traces.iter().map(listed).collect();
        if self.json { output::json(&listed) } else { output::text(&table(&listed)) }
    }
}

impl Rm {
    pub(super) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let traces = all(session.engine())?;
        let keys = match self.all {
            true => traces.iter().map(|(stored, _)| stored.key).collect(),
            false => self.ids.iter().map(|id| Ok(find(&traces, id)?.0.key)).collect::<Result<Vec<Digest>>>()?,
        };
        for key in keys {
            session.engine().forget_trace(&key).doing(|| "cannot remove the trace")?;
        }
        Ok(())
    }
}

impl Export {
    pub(super) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let traces = all(session.engine())?;
        let (_, trace) = find(&traces, &self.id)?;
        super::file::write(global, self.output.as_deref(), &trace.write())
    }
}

fn all(engine: &Engine) -> Result<Vec<(StoredTrace, Trace)>> {
    engine.learned_traces().doing(|| "cannot list the traces")
}

/// The one trace whose ID begins with `id`.
fn find<'a>(traces: &'a [(StoredTrace, Trace)], id: &str) -> Result<&'a (StoredTrace, Trace)> {
    let digits = id.strip_prefix("sha256:").unwrap_or(id);
    let refuse = |exit, why: &str| {
        let failure = Failure::new(exit, format_args!("cannot find the trace {}: {why}", escape(id.as_bytes())));
        Err(failure.hint("`tarpon trace ls` lists the traces"))
    };
    if digits.len() < LEAST_DIGITS {
        return refuse(Exit::Usage, &format!("an ID has at least {LEAST_DIGITS} digits"));
    }
    let mut found = traces.iter().filter(|(stored, _)| stored.key.hex().starts_with(digits));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => refuse(Exit::NotFound, "there is none of this ID"),
        (Some(_), Some(_)) => refuse(Exit::Usage, "several IDs begin like that"),
    }
}

fn listed((stored, trace): &(StoredTrace, Trace)) -> Listed<'_> {
    let totals = trace.totals();
    Listed {
        id: stored.key.hex().chars().take(SHOWN_DIGITS).collect(),
        image: &trace.header.image,
        manifest: trace.header.manifest,
        starts: trace.header.starts,
        command: &trace.header.command,
        files: totals.files,
        touched_bytes: totals.touched,
        written: seconds(stored.modified),
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn table(traces: &[Listed<'_>]) -> String {
    if traces.is_empty() {
        return "no traces\n".to_owned();
    }
    let mut table = Table::new(&["ID", "IMAGE", ">STARTS", ">FILES", ">SIZE", "COMMAND"]);
    for trace in traces {
        let command = if trace.command.is_empty() { "-".to_owned() } else { trace.command.join(" ") };
        table.row([
            trace.id.clone(),
            escape(trace.image.as_bytes()),
            trace.starts.to_string(),
            trace.files.to_string(),
            size::human(trace.touched_bytes),
            escape(command.as_bytes()),
        ]);
    }
    table.to_string()
}
