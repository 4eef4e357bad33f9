//! `tarpon man`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::cli::Cli;
use crate::failure::{Context, Result};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon man /usr/local/share/man/man1
  tarpon man /tmp/man && man -l /tmp/man/tarpon-mount.1";

/// Write the manual pages to a folder
///
/// Writes tarpon.1 and one page for each subcommand, and prints their paths.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Man {
    /// The folder; it is made if it does not exist
    dir: PathBuf,
}

impl Man {
    pub(crate) fn run(&self) -> Result {
        let dir = self.dir.display();
        std::fs::create_dir_all(&self.dir).doing(|| format!("cannot make the folder {dir}"))?;
        clap_mangen::generate_to(Cli::command(), &self.dir).doing(|| format!("cannot write manual pages to {dir}"))?;
        let mut pages = Vec::new();
        for entry in std::fs::read_dir(&self.dir).doing(|| format!("cannot read the folder {dir}"))? {
            let path = entry.doing(|| format!("cannot read the folder {dir}"))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with("tarpon") && name.ends_with(".1") {
                pages.push(format!("{}\n", path.display()));
            }
        }
        pages.sort();
        output::text(&pages.concat())
    }
}
