//! Adopting mounts that a dead server left: each keeps its place, its users and its FUSE connection.

use std::iter;
use std::path::Path;
use std::sync::Arc;

use tarpon_fs::{ObjectFs, Operations};

use crate::adapter::Adapter;
use crate::connection::Connection;
use crate::error::MountError;
use crate::fusectl;
use crate::holder::InheritedConnection;
use crate::make::{Maker, image_files};
use crate::mounted::{KernelMount, Live, Parts};
use crate::opening;
use crate::place::Spot;
use crate::spec::{Mode, MountSpec};
use crate::table::{self, TableEntry};

impl Maker {
    /// Adopts the mount of an image. `None`: it is gone, or its connection is.
    pub(crate) fn adopt(&self, spec: &MountSpec, was: &KernelMount) -> Result<Option<Live>, MountError> {
        let Some(entry) = found(&spec.mountpoint, was)? else { return Ok(None) };
        if let Some(number) = was.tree {
            let Some(inherited) = self.pool().inheritance().connection(number) else { return Ok(None) };
            self.adopt_connection(self.tree_adapter(spec)?, inherited)?;
        }
        let connection = match was.mode {
            Mode::Native => self.pool().adopted(was.connection, |inherited| {
                let adapter = self.objects_adapter(ObjectFs::inherited(self.objects().clone()));
                self.adopt_connection(adapter, inherited)
            })?,
            Mode::Fuse => match self.pool().inheritance().connection(was.connection) {
                Some(inherited) => {
                    let adapter = self.image_adapter(spec, image_files(spec)?, opening::of_inherited(&inherited)?);
                    Some(self.adopt_connection(adapter, inherited)?)
                }
                None => None,
            },
        };
        let Some(connection) = connection else { return Ok(None) };
        if !spec.read_ahead {
            connection.stop_read_ahead();
        }
        let upper = was.upper.as_ref().map(|upper| self.pool().uppers().adopt(upper)).transpose()?;
        let parts = Parts { unique: was.unique, connection, tree: was.tree, lazy: None, upper };
        Ok(Some(Live::new(entry.mountpoint, entry.id, self.pool().clone(), parts)))
    }

    /// Adopts the mount of these files on `mountpoint`. `None`: there is none.
    pub(crate) fn adopt_files(
        &self,
        files: Arc<dyn Operations>,
        mountpoint: &Path,
    ) -> Result<Option<Live>, MountError> {
        let Some(entry) = entry_at(mountpoint)? else { return Ok(None) };
        let Some(inherited) = self.pool().inheritance().connection(entry.device.1) else { return Ok(None) };
        let adapter = self.files_adapter(files, opening::opens(&inherited)?);
        let connection = self.adopt_connection(adapter, inherited)?;
        let parts = Parts { unique: unique_id(mountpoint), connection, tree: None, lazy: None, upper: None };
        Ok(Some(Live::new(entry.mountpoint, entry.id, self.pool().clone(), parts)))
    }

    /// Whether the connection of the mount is held for this process.
    pub(crate) fn can_adopt(&self, was: &KernelMount) -> bool {
        let inheritance = self.pool().inheritance();
        let has_connection = inheritance.has(was.connection) || self.pool().has_adopted(was.connection);
        has_connection && was.tree.is_none_or(|tree| inheritance.has(tree))
    }

    /// Ends the connections of the mount, if it is still there, unless this process serves them.
    pub(crate) fn end_left(&self, mountpoint: &Path, was: &KernelMount) {
        if !matches!(found(mountpoint, was), Ok(Some(_))) {
            return;
        }
        let served: Vec<_> = self.pool().connections().iter().filter_map(|connection| connection.number()).collect();
        for number in iter::once(was.connection).chain(was.tree).filter(|number| !served.contains(number)) {
            if let Err(error) = fusectl::abort(number) {
                tracing::debug!(number, %error, "a FUSE connection of the earlier server has ended, or cannot be ended");
            }
        }
    }

    fn adopt_connection(
        &self,
        adapter: Adapter,
        inherited: InheritedConnection,
    ) -> Result<Arc<Connection>, MountError> {
        Ok(self.enrolled(Connection::adopt(adapter, inherited)?))
    }
}

/// The mount, if it is still in its place.
fn found(mountpoint: &Path, was: &KernelMount) -> Result<Option<TableEntry>, MountError> {
    let entry = entry_at(mountpoint)?.filter(|entry| entry.id == was.id);
    Ok(entry.filter(|_| was.unique.is_none_or(|unique| unique_id(mountpoint) == Some(unique))))
}

fn unique_id(mountpoint: &Path) -> Option<u64> {
    Spot::open(mountpoint).ok().and_then(|spot| spot.unique_id())
}

fn entry_at(mountpoint: &Path) -> Result<Option<TableEntry>, MountError> {
    let entry = table::mount_at(mountpoint).map_err(MountError::io("read the table of mounts"))?;
    Ok(entry.filter(TableEntry::is_ours))
}
