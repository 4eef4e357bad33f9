//! `tarpon podman setup`.

use std::path::PathBuf;

use clap::Args;

use super::super::session::Session;
use crate::cli::Global;
use crate::failure::{Context, Failure, Result};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon podman setup
  tarpon podman setup --file ~/test/storage.conf     for CONTAINERS_STORAGE_CONF
  tarpon podman setup --undo

Podman commands with --root, --storage-driver or --storage-opt do not read the file. Give those
  --storage-opt overlay.additionalimagestore=STORE/podman";

/// Podman's configuration of the machine.
const FILE: &str = "/etc/containers/storage.conf";

/// Tell Podman where to look for images
///
/// Puts the store's folder `podman` among the additionalimagestores of storage.conf. All else in the file stays as it is written, and
/// a copy of it as it was before is kept beside it. Until an image is added, and whenever no server runs, Podman finds an empty
/// store there.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Setup {
    /// Take it out again
    #[arg(long)]
    undo: bool,
    /// Which storage.conf [default: /etc/containers/storage.conf]
    #[arg(long, value_name = "STORAGE_CONF", env = "CONTAINERS_STORAGE_CONF")]
    file: Option<PathBuf>,
}

impl Setup {
    pub(super) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let file = self.file.unwrap_or_else(|| FILE.into());
        let done = session.engine().podman_setup(&file, self.undo).map_err(Failure::from)?;
        if !self.undo {
            // What was shown before the machine was started anew is shown again.
            session.client().recover().doing(|| "cannot start the server")?;
        }
        if global.quiet {
            return Ok(());
        }
        let (file, store) = (done.file.display(), done.store.display());
        output::note(&match (done.changed, self.undo) {
            (true, false) => format!("{file} names {store} as an additional image store from now on"),
            (true, true) => format!("{file} names {store} no more"),
            (false, false) => format!("{file} names {store} already"),
            (false, true) => format!("{file} does not name {store}"),
        });
        if let Some(backup) = &done.backup {
            output::note(&format!("{} is the file as it was before tarpon first changed it", backup.display()));
        }
        if !self.undo {
            output::note(
                "commands with --root, --storage-driver or --storage-opt do not read it: see tarpon podman setup --help",
            );
        }
        Ok(())
    }
}
