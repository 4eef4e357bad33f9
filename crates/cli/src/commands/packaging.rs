//! `tarpon completions` and `tarpon man`: the files that a package installs beside the program.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::failure::{Context, Result};
use crate::output;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  tarpon completions bash > ~/.local/share/bash-completion/completions/tarpon
  tarpon completions zsh > ~/.zfunc/_tarpon
  tarpon completions fish > ~/.config/fish/completions/tarpon.fish";

/// Generate a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct Completions {
    /// Shell
    shell: Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  tarpon man /usr/local/share/man/man1
  tarpon man /tmp/man && man -l /tmp/man/tarpon-mount.1";

/// Write the manual pages to a directory
///
/// Writes tarpon.1 and one page for each subcommand, and prints their paths.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct Man {
    /// Directory; created if it does not exist
    dir: PathBuf,
}

impl Completions {
    pub(crate) fn run(&self, command: &mut clap::Command) -> Result {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "tarpon", &mut script);
        output::bytes(&script)
    }
}

impl Man {
    pub(crate) fn run(&self, command: clap::Command) -> Result {
        let dir = self.dir.display();
        std::fs::create_dir_all(&self.dir).doing(|| format!("cannot create the directory {dir}"))?;
        clap_mangen::generate_to(command, &self.dir).doing(|| format!("cannot write manual pages to {dir}"))?;
        let mut pages = Vec::new();
        for entry in std::fs::read_dir(&self.dir).doing(|| format!("cannot read the directory {dir}"))? {
            let path = entry.doing(|| format!("cannot read the directory {dir}"))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with("tarpon") && name.ends_with(".1") {
                pages.push(format!("{}\n", path.display()));
            }
        }
        pages.sort();
        output::text(&pages.concat())
    }
}
