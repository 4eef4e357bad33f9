//! `tarpon umount`.

use std::path::{Path, PathBuf};

use clap::Args;
use tarpon_engine::{LayersPart, Unmounted, resolve_mountpoint};

use super::session::Session;
use crate::cli::Global;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon umount /mnt
  tarpon umount --all

A mount that is in use leaves the name space at once and goes away when its last user does.
Plain umount(8) works too.";

/// Unmount images
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Umount {
    /// Unmount everything that this store serves
    #[arg(short, long, conflicts_with = "dirs")]
    all: bool,
    /// Mount points
    #[arg(value_name = "DIR", required_unless_present = "all")]
    dirs: Vec<PathBuf>,
}

impl Umount {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        if self.all {
            let mounts = session.engine().mounts().doing(|| "cannot list the mounts")?;
            // Of Podman's layers all go with their mount.
            let mounts = mounts.into_iter().filter(|mount| !matches!(mount.layers, Some(LayersPart::Image { .. })));
            return unmount_each(&session, global, mounts.map(|mount| mount.mountpoint));
        }
        unmount_each(&session, global, self.dirs.into_iter())
    }
}

/// Unmounts all of them, whatever becomes of one; the first failure is what the command ends with.
fn unmount_each(session: &Session, global: &Global, dirs: impl Iterator<Item = PathBuf>) -> Result {
    let mut first = Ok(());
    for dir in dirs {
        if let Err(failure) = unmount(session, global, &dir) {
            if first.is_ok() {
                first = Err(failure);
            } else {
                output::error(&failure);
            }
        }
    }
    first
}

fn unmount(session: &Session, global: &Global, dir: &Path) -> Result {
    let doing = || format!("cannot unmount {}", dir.display());
    let mountpoint =
        resolve_mountpoint(dir).map_err(|error| Failure::new(Exit::NotFound, format_args!("{}: {error}", doing())))?;
    let mut how = session.client().unmount(&mountpoint).doing(doing)?;
    if how.is_none() && is_known(session, &mountpoint).doing(doing)? {
        // Its server is dead. The next one cleans up after it, and can be asked.
        how = Some(session.client().unmount_left(&mountpoint).doing(doing)?);
    }
    match how {
        None => Err(Failure::new(Exit::NotFound, format_args!("{}: nothing of this store is mounted there", doing()))
            .hint("`tarpon status` lists the mounts; a mount of another store needs its --store")),
        Some(Unmounted::Lazy) if !global.quiet => {
            output::note(&format!("{} was in use: it goes away when its last user does", dir.display()));
            Ok(())
        }
        Some(_) => Ok(()),
    }
}

fn is_known(session: &Session, mountpoint: &Path) -> tarpon_engine::Result<bool> {
    Ok(session.engine().mounts()?.iter().any(|mount| mount.mountpoint == mountpoint))
}
