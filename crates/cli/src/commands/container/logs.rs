//! `tarpon logs`.

use std::io::{self, Write};

use clap::Args;
use tarpon_engine::{ContainerName, Output};

use crate::cli::Global;
use crate::commands::session::Session;
use crate::failure::{Context, Result};

const EXAMPLES: &str = "\
Examples:
  tarpon logs web
  tarpon logs -f web 2>/dev/null        what it writes to standard output, as it comes

The last 8 to 16 MiB of a container's output are kept.";

/// Print the output of a detached container
///
/// What it wrote to standard error goes to standard error.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Logs {
    /// Go on until the container ends
    #[arg(short, long)]
    follow: bool,
    /// The container
    name: ContainerName,
}

impl Logs {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let mut nobody_reads = false;
        let mut print = |output: Output, text: &[u8]| {
            let written = match output {
                Output::Stdout => whole(io::stdout().lock(), text),
                Output::Stderr => whole(io::stderr().lock(), text),
            };
            nobody_reads = matches!(&written, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
            written
        };
        let follow: Option<&dyn Fn() -> bool> = if self.follow { Some(&|| false) } else { None };
        let read = session.engine().container_logs(&self.name, follow, &mut print);
        if nobody_reads {
            // `tarpon logs … | head` has seen enough.
            return Ok(());
        }
        read.doing(|| format!("cannot show the log of {}", self.name))
    }
}

fn whole(mut to: impl Write, text: &[u8]) -> io::Result<()> {
    to.write_all(text).and_then(|()| to.flush())
}
