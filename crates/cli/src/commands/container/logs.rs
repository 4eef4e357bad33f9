//! `tarpon logs`.

use std::io::{self, Write};
use std::time::SystemTime;

use clap::Args;
use tarpon_engine::{ContainerName, LogLine, LogRequest, LogTime, Output};

use crate::commands::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon logs web
  tarpon logs -f web 2>/dev/null        follow standard output only
  tarpon logs -t --since 10m web        last ten minutes, with timestamps (UTC)
  tarpon logs --tail 20 web

The last 8 to 16 MiB of a container's output are kept.";

/// Print the output of a detached container
///
/// The standard error of the container is printed to standard error.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Logs {
    /// Follow the output until the container ends
    #[arg(short, long)]
    follow: bool,
    /// Number of lines to show from the end, or all
    #[arg(short = 'n', long, value_name = "LINES", value_parser = lines, allow_negative_numbers = true)]
    tail: Option<Lines>,
    /// Show output since this time: a duration (10m, 1h30m), a date or time in UTC (2026-01-31T23:59:59Z), or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = |text: &str| LogTime::parse_at(text, SystemTime::now()))]
    since: Option<LogTime>,
    /// Show timestamps, in UTC
    #[arg(short, long)]
    timestamps: bool,
    /// Container, by name or unique prefix
    name: ContainerName,
}

/// Number of lines; `None` for all.
#[derive(Debug, Clone, Copy)]
struct Lines(Option<usize>);

fn lines(text: &str) -> std::result::Result<Lines, String> {
    match text {
        "all" | "-1" => Ok(Lines(None)),
        number => number.parse().map(|number| Lines(Some(number))).map_err(|_| "expected a number or all".to_owned()),
    }
}

impl Logs {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let mut is_closed = false;
        // The piece after one without a newline continues the same line.
        let mut begins = [true; 2];
        let mut print = |line: &LogLine<'_>| {
            let begins = &mut begins[usize::from(line.output == Output::Stderr)];
            let time = if self.timestamps && *begins { format!("{} ", line.time) } else { String::new() };
            *begins = line.text.ends_with(b"\n");
            let text = [time.as_bytes(), line.text].concat();
            let written = match line.output {
                Output::Stdout => whole(io::stdout().lock(), &text),
                Output::Stderr => whole(io::stderr().lock(), &text),
            };
            is_closed = matches!(&written, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
            written
        };
        let follow: Option<&dyn Fn() -> bool> = if self.follow { Some(&|| false) } else { None };
        let doing = || format!("cannot show the log of {}", self.name);
        let name = session.engine().container_named(&self.name).doing(doing)?;
        let request = LogRequest { tail: self.tail.and_then(|Lines(lines)| lines), since: self.since.clone() };
        let read = session.engine().container_logs(&name, &request, follow, &mut print);
        if is_closed {
            // The reader, such as `tarpon logs … | head`, has closed the pipe.
            return Ok(());
        }
        read.doing(doing)
    }
}

fn whole(mut to: impl Write, text: &[u8]) -> io::Result<()> {
    to.write_all(text).and_then(|()| to.flush())
}
