//! `tarpon podman setup`.

use std::path::{Path, PathBuf};

use clap::Args;
use tarpon_engine::{Access, DiffIds, PodmanVersion, auth_files};

use crate::commands::session::Session;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output;

/// The machine's Podman configuration.
pub(crate) const STORAGE_CONF: &str = "/etc/containers/storage.conf";

const EXAMPLES: &str = "\
Examples:
  tarpon podman setup
  tarpon podman setup --layers                       also let podman pull be lazy
  tarpon podman setup --file ~/test/storage.conf     for CONTAINERS_STORAGE_CONF
  tarpon podman setup --undo

Podman commands with --root, --storage-driver or --storage-opt do not read the file. Give those
  --storage-opt overlay.additionalimagestore=STORE/podman
  --storage-opt overlay.additionallayerstore=STORE/podman-layers:ref";

/// Tell Podman where to look for images
///
/// Puts the store's folder `podman` among the additionalimagestores of storage.conf. All else in the file stays as it is written, and
/// a copy of it as it was before is kept beside it. Until an image is added, and whenever no server runs, Podman finds an empty
/// store there.
///
/// With --layers the folder `podman-layers` comes among the additionallayerstores as well, and tarpon's server serves layers there. Podman
/// 5.5 and newer loses such layers after the pull, so for these nothing is written.
///
/// With --undo the file is again as it was before. If no other configuration of Podman for the whole machine names the store, added images are
/// taken away and layers are served no more, which is refused while a running container needs them; the server then ends with its last mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Setup {
    /// Also serve layers, so that `podman pull` of eStargz and zstd:chunked images is lazy: `tarpon podman layers --help`
    #[arg(long, conflicts_with = "undo")]
    layers: bool,
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
        let file = self.file.unwrap_or_else(|| STORAGE_CONF.into());
        let problem = self.layers.then(PodmanVersion::installed).flatten().and_then(PodmanVersion::problem_with_layers);
        let layers = self.layers && problem.is_none();
        if let Some(problem) = &problem {
            output::note(&format!("layers are not set up: {problem}"));
        }
        if layers {
            session.engine().may_show_to_podman().doing(|| "cannot serve layers to Podman")?;
        }
        if self.undo && (file == Path::new(STORAGE_CONF) || !session.engine().podman_reads(Path::new(STORAGE_CONF))) {
            // Podman no longer reads this store, so its images are useless.
            session.engine().podman_remove_all().doing(|| "cannot undo the setup")?;
        }
        let done = session.engine().podman_setup(&file, layers, self.undo).map_err(Failure::from)?;
        if !self.undo {
            // Images that were shown before a reboot are shown again.
            let mounts = session.client().recover().doing(|| "cannot start the server")?;
            // If layers are served already, their options stay.
            if layers && !mounts.iter().any(|mount| mount.alive && mount.layers.is_some()) {
                let access = Access { authfiles: auth_files(), ..Access::default() };
                let started = session.engine().podman_layers_start(access, DiffIds::default());
                started.doing(|| "cannot serve layers to Podman")?;
            }
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
        match &done.layers {
            Some(layers) if !self.undo => {
                output::note(&format!("it names {} as an additional layer store", layers.display()))
            }
            _ => {}
        }
        if let Some(backup) = &done.backup {
            let kept = if self.undo { " (the file was changed otherwise since)" } else { "" };
            let backup = backup.display();
            output::note(&format!("{backup} is the file as it was before tarpon first changed it{kept}"));
        }
        if !self.undo {
            output::note(
                "commands with --root, --storage-driver or --storage-opt do not read it: see tarpon podman setup --help",
            );
        }
        Ok(())
    }
}
