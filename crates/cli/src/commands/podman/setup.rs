//! `tarpon podman setup`.

use std::path::{Path, PathBuf};

use clap::Args;
use tarpon_engine::store::in_user_namespace;
use tarpon_engine::{Access, DiffIds, PodmanVersion, RegistriesChoice, auth_files};

use crate::commands::image::{POLICY_VARIABLE, policy};
use crate::commands::session::Session;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output;

/// The machine's Podman configuration, and that of an ordinary user in its folder of configuration.
const STORAGE_CONF: &str = "/etc/containers/storage.conf";
const USER_STORAGE_CONF: &str = "containers/storage.conf";

/// The configuration that Podman reads for this user.
pub(crate) fn storage_conf() -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = || absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    match in_user_namespace().then(folder).flatten() {
        Some(folder) => folder.join(USER_STORAGE_CONF),
        None => STORAGE_CONF.into(),
    }
}

const EXAMPLES: &str = "\
Examples:
  tarpon podman setup
  tarpon podman setup --layers                       also make podman pull lazy
  tarpon podman setup --file ~/test/storage.conf     for CONTAINERS_STORAGE_CONF
  tarpon podman setup --undo

Podman commands with --root, --storage-driver or --storage-opt do not read the file. Add these options:
  --storage-opt overlay.additionalimagestore=STORE/podman
  --storage-opt overlay.additionallayerstore=STORE/podman-layers:ref";

/// Configure Podman to use the images of the store
///
/// Adds the directory `podman` of the store to additionalimagestores in storage.conf. The rest of the file does not change, and a copy
/// of the original file is kept next to it. Until an image is added, and while no server runs, Podman finds an empty store there.
///
/// With --layers the directory `podman-layers` is also added to additionallayerstores, and tarpon's server serves layers there. Podman
/// 5.5 and newer loses such layers after the pull, so it is not configured for these versions.
///
/// With --undo the original file is restored. If no other system-wide configuration of Podman names the store, added images are removed
/// from Podman and layers are no longer served, which fails while a running container needs them; the server then ends with its last
/// mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Setup {
    /// Also serve layers, so that `podman pull` of eStargz and zstd:chunked images is lazy; see `tarpon podman layers --help`
    #[arg(long, conflicts_with = "undo")]
    layers: bool,
    /// Undo the setup
    #[arg(long)]
    pub(super) undo: bool,
    /// Path of storage.conf [default: /etc/containers/storage.conf as root, else ~/.config/containers/storage.conf]
    #[arg(long, value_name = "STORAGE_CONF", env = "CONTAINERS_STORAGE_CONF")]
    file: Option<PathBuf>,
}

impl Setup {
    pub(super) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let usual = storage_conf();
        let file = self.file.unwrap_or_else(|| usual.clone());
        let problem = self.layers.then(PodmanVersion::installed).flatten().and_then(PodmanVersion::problem_with_layers);
        let layers = self.layers && problem.is_none();
        if let Some(problem) = &problem {
            output::note(&format!("not serving layers: {problem}"));
        }
        if layers {
            session.engine().podman().may_show().doing(|| "cannot serve layers to Podman")?;
        }
        if self.undo && (file == usual || !session.engine().podman().reads(&usual)) {
            // Podman no longer reads this store, so its images are useless.
            session.engine().podman().remove_all().doing(|| "cannot undo the setup")?;
        }
        let done = session.engine().podman().set_up(&file, layers, self.undo).map_err(Failure::from)?;
        if !self.undo {
            // Images that were available before a reboot are restored.
            let mounts = session.client().recover().doing(|| "cannot start the server")?;
            // If layers are served already, their options stay.
            if layers && !mounts.iter().any(|mount| mount.alive && mount.layers.is_some()) {
                let access = Access {
                    authfiles: auth_files(),
                    registries: RegistriesChoice::of_environment(),
                    policy: policy(std::env::var_os(POLICY_VARIABLE).as_deref().map(Path::new)),
                    ..Access::default()
                };
                let started = session.engine().podman().start_layers(access, DiffIds::default());
                started.doing(|| "cannot serve layers to Podman")?;
            }
        }
        if global.quiet {
            return Ok(());
        }
        let (file, store) = (done.file.display(), done.store.display());
        output::note(&match (done.changed, self.undo) {
            (true, false) => format!("{file}: added the image store {store}"),
            (true, true) => format!("{file}: removed the image store {store}"),
            (false, false) => format!("{file}: already contains the image store {store}"),
            (false, true) => format!("{file}: does not contain the image store {store}"),
        });
        match &done.layers {
            Some(layers) if !self.undo => {
                output::note(&format!("{file}: contains the layer store {}", layers.display()))
            }
            _ => {}
        }
        if let Some(backup) = &done.backup {
            let kept = if self.undo { " (the file has other changes since then)" } else { "" };
            let backup = backup.display();
            output::note(&format!("original file kept as {backup}{kept}"));
        }
        if !self.undo {
            output::note(
                "podman with --root, --storage-driver or --storage-opt does not read this file: see tarpon podman setup --help",
            );
        }
        Ok(())
    }
}
