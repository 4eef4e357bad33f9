//! For users without permission to mount: runs the demo again in a user and mount namespace of its own, where they have it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::exit::Exit;
use crate::failure::{Failure, Result};

/// Set for the second run, to prevent a third.
const MARK: &str = "TARPON_DEMO_NAMESPACE";

/// Whether this user can mount neither directly nor through fusermount3.
pub(super) fn is_needed() -> bool {
    !rustix::process::geteuid().is_root() && std::env::var_os(MARK).is_none() && !is_in_path("fusermount3")
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Replaces this process by the same command in new namespaces. Returns only if that fails.
pub(super) fn run_again() -> Result {
    let failed = |error| {
        Failure::new(Exit::CannotMount, format_args!("cannot mount as this user: start unshare(1): {error}"))
            .hint("install fuse3, or run the demo as root; `tarpon doctor` shows what is missing")
    };
    let program = std::env::current_exe().map_err(failed)?;
    let error = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .exec();
    Err(failed(error))
}
