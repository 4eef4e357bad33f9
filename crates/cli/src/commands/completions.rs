//! `tarpon completions`.

use clap::Args;
use clap_complete::Shell;

use crate::cli;
use crate::failure::Result;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon completions bash > ~/.local/share/bash-completion/completions/tarpon
  tarpon completions zsh > ~/.zfunc/_tarpon
  tarpon completions fish > ~/.config/fish/completions/tarpon.fish";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli::visible(), "tarpon", &mut script);
        output::bytes(&script)
    }
}
