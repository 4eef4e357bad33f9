//! `tarpon unshare`: a program in the user namespace of this user's containers and mounts.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use clap::Args;

use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon unshare                                  a shell that sees the mounts of this user's server
  tarpon mount --rw alpine ~/root && tarpon unshare ls ~/root
  tarpon unshare tarpon status

Inside, this user is root, and the users of /etc/subuid exist. It ends with the program, unless something is mounted in it.";

/// Run a program in the user namespace in which this user's containers run
///
/// Without root, `run`, `exec`, `record`, `commit`, `mount --rw` and `podman` work in a user and mount namespace: that of the store's
/// server, that of Podman, or a new one. What is mounted there is not visible on the host.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Unshare {
    /// Program and its arguments [default: $SHELL]
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Unshare {
    pub(crate) fn run(self, global: &Global) -> Result {
        let shell = || vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())];
        let words = if self.words.is_empty() { shell() } else { self.words };
        let Some((program, arguments)) = words.split_first() else { return Ok(()) };
        let error = Command::new(program).args(arguments).env("TARPON_STORE", global.store_folder()?).exec();
        let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NoProgram } else { Exit::CannotExecute };
        Err(Failure::new(exit, format_args!("cannot run {}: {error}", program.display())))
    }
}
