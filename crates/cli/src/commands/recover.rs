//! `tarpon recover`: recovery after a server died.

use std::os::unix::ffi::OsStrExt;

use clap::Args;

use super::session::Session;
use super::status;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon recover
  tarpon recover --json

A server that dies is replaced automatically. This command is for the case that no successor could \
serve, and for the time after a reboot. Programs that had files open in a dead mount must be \
restarted, and so must containers.";

/// Restore mounts after a crash or a reboot
///
/// Removes mounts whose server died, and mounts the same images again, at the same digests. Passwords of --creds are not stored: such
/// mounts use the credentials files from now on. Does nothing while a server runs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Recover {
    /// Print the mounts as JSON
    #[arg(long)]
    json: bool,
}

impl Recover {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        // First, because a failure to restore mounts must not keep ports of ended containers in use.
        let networks = session.engine().recover_networks();
        let mounts = session.client().recover().doing(|| "cannot recover the mounts")?;
        if self.json {
            output::json(&mounts)?
        } else {
            output::text(&status::overview(&mounts))?
        }
        for mount in mounts.iter().filter(|mount| mount.credentials_lost && !global.quiet) {
            output::note(&format!(
                "{}: --creds are not stored; the credentials files are used from now on",
                escape(mount.mountpoint.as_os_str().as_bytes())
            ));
        }
        let lost = mounts.iter().filter_map(|mount| Some((mount, mount.problem.as_deref()?)));
        // The mount of a running container cannot be restored by any server: this is expected and was reported.
        let (of_containers, failed): (Vec<_>, Vec<_>) = lost.partition(|(mount, _)| mount.container.is_some());
        for name in of_containers.iter().filter_map(|(mount, _)| mount.container.as_deref()) {
            if !global.quiet {
                output::note(&format!(
                    "container {name} has lost its source and can read local data only: run a new container"
                ));
            }
        }
        for (mount, problem) in &failed {
            output::note(&format!(
                "cannot mount {} on {} again: {}",
                escape(mount.image.as_bytes()),
                escape(mount.mountpoint.as_os_str().as_bytes()),
                escape(problem.as_bytes())
            ));
        }
        networks.doing(|| "cannot remove the networks of ended containers")?;
        match failed.len() {
            0 => Ok(()),
            some => Err(Failure::new(Exit::Failure, format_args!("cannot recover {some} of {} mounts", mounts.len()))
                .hint("`tarpon recover` tries again, `tarpon umount DIR` removes a mount")),
        }
    }
}
