//! `tarpon umount`.

use std::path::{Path, PathBuf};

use clap::Args;
use tarpon_engine::{LayersPart, Unmounted, resolve_mountpoint, store_of_mount};

use super::each::each;
use super::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon umount /mnt
  tarpon umount --lazy /mnt
  tarpon umount --all

The store of a mount is detected automatically. A mount that is in use stays, unless --lazy is
given: then it is detached at once, and removed when it is no longer used. umount(8) works, too.";

/// Unmount images
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Umount {
    /// Unmount all mounts of the store
    #[arg(short, long, conflicts_with = "dirs")]
    all: bool,
    /// Detach mounts that are in use; programs keep their open files
    #[arg(short, long)]
    lazy: bool,
    /// Mount points
    #[arg(value_name = "DIR", required_unless_present = "all")]
    dirs: Vec<PathBuf>,
}

impl Umount {
    /// The first mount point. One command unmounts in one namespace.
    pub(crate) fn first(&self) -> Option<&Path> {
        self.dirs.first().map(PathBuf::as_path)
    }

    pub(crate) fn run(self, global: &Global) -> Result {
        if self.all {
            let session = Session::open(global)?;
            let mounts = session.engine().mounts().doing(|| "cannot list the mounts")?;
            // Images in Podman's layer store go with the store's mount.
            let mounts = mounts.into_iter().filter(|mount| !matches!(mount.layers, Some(LayersPart::Image { .. })));
            return each(mounts, |mount| self.unmount(&session, global, &mount.mountpoint, &mount.mountpoint));
        }
        each(self.dirs.iter(), |dir| {
            let failed =
                |error| Failure::new(Exit::NotFound, format_args!("cannot unmount {}: {error}", dir.display()));
            let mountpoint = resolve_mountpoint(dir).map_err(failed)?;
            let session = Session::open(&of_its_store(&mountpoint, global))?;
            self.unmount(&session, global, dir, &mountpoint)
        })
    }

    fn unmount(&self, session: &Session, global: &Global, dir: &Path, mountpoint: &Path) -> Result {
        let doing = || format!("cannot unmount {}", dir.display());
        let client = session.client();
        let asked = if self.lazy { client.unmount(mountpoint) } else { client.unmount_unused(mountpoint) };
        let mut how = asked.doing(doing)?;
        if how.is_none() && is_listed(session, mountpoint).doing(doing)? {
            // Its server is dead. The next server cleans up after it and can handle the request.
            how = Some(client.unmount_left(mountpoint).doing(doing)?);
        }
        match how {
            None => Err(Failure::new(Exit::NotFound, format_args!("{}: not a mount of this store", doing()))
                .hint("`tarpon status` lists the mounts; for another store, use --store")),
            Some(Unmounted::Lazy) if !global.quiet => {
                output::note(&format!(
                    "{} is in use: it was detached, and is removed when it is no longer used",
                    dir.display()
                ));
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }
}

/// The options with the store of this mount according to the mount table; unchanged if the table names no store of this user.
fn of_its_store(mountpoint: &Path, global: &Global) -> Global {
    let store = store_of_mount(mountpoint).or_else(|| global.store.clone());
    // The isolation option applies to the named store, not to this one.
    Global { store, isolation: None, ..global.clone() }
}

fn is_listed(session: &Session, mountpoint: &Path) -> tarpon_engine::Result<bool> {
    Ok(session.engine().mounts()?.iter().any(|mount| mount.mountpoint == mountpoint))
}
