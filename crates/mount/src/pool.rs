//! [`ConnectionPool`]: the FUSE connections of one server, and the one that native mounts share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::connection::Connection;
use crate::holder::{Inheritance, InheritedConnection};
use crate::kernel::StepError;
use crate::overlay::Reachable;
use crate::upper::{Upper, Uppers};

/// A connection that native mounts share, with a mount of it that keeps it alive while new overlays may need it. Once
/// this is dropped, the connection ends as soon as the kernel has closed the last file.
pub(crate) struct LazyObjects {
    pub(crate) connection: Arc<Connection>,
    pub(crate) root: Reachable,
}

impl LazyObjects {
    /// As [`crate::Host::forget_names`], for what native mounts share.
    pub(crate) fn forget_unused(&self) -> Result<(), StepError> {
        self.root.forget_unused()
    }
}

/// What native mounts that share a connection have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shared {
    /// Number of their objects.
    pub(crate) objects: u64,
    /// Whether the kernel reads ahead, from the start of the connection.
    pub(crate) read_ahead: bool,
}

/// The connections that the kernel still uses, and the uppers of their mounts.
#[derive(Default)]
pub(crate) struct ConnectionPool {
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Uppers of ended mounts, each with the connection until whose end the upper may still be in use.
    left: Mutex<Vec<(Arc<Connection>, Upper)>>,
    uppers: Arc<Uppers>,
    /// What native mounts share while at least one of them exists.
    shared: Mutex<HashMap<Shared, Weak<LazyObjects>>>,
    /// The same, kept for the next mount after the last one ended: making a connection costs more than making a mount.
    kept: Mutex<HashMap<Shared, Arc<LazyObjects>>>,
    /// Number of object sets besides the first.
    beside: AtomicU64,
    /// The connections of a dead server that are not served yet.
    inheritance: Inheritance,
    /// What its native mounts share, by the number of the connection. No new mount does: which pages the kernel has of it,
    /// and from which image, only the dead server knew.
    adopted: Mutex<HashMap<u32, Weak<Connection>>>,
}

impl ConnectionPool {
    /// A pool that may adopt the connections of a dead server.
    pub(crate) fn inheriting(inheritance: Inheritance) -> Self {
        Self { inheritance, ..Self::default() }
    }

    /// The connections of a dead server that are not served yet.
    pub(crate) fn inheritance(&self) -> &Inheritance {
        &self.inheritance
    }

    /// The connection with this number that native mounts of a dead server share. `adopt` serves it, unless it is served already.
    pub(crate) fn adopted<E>(
        &self,
        number: u32,
        adopt: impl FnOnce(InheritedConnection) -> Result<Arc<Connection>, E>,
    ) -> Result<Option<Arc<Connection>>, E> {
        let mut adopted = self.adopted.lock();
        if let Some(connection) = adopted.get(&number).and_then(Weak::upgrade) {
            return Ok(Some(connection));
        }
        let Some(inherited) = self.inheritance.connection(number) else { return Ok(None) };
        let connection = adopt(inherited)?;
        adopted.insert(number, Arc::downgrade(&connection));
        Ok(Some(connection))
    }

    /// Whether native mounts of a dead server share a connection with this number, which is served by now.
    pub(crate) fn has_adopted(&self, number: u32) -> bool {
        self.adopted.lock().get(&number).is_some_and(|connection| connection.strong_count() > 0)
    }

    /// The connections that have not ended.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| !*connection.ended().borrow());
        connections.clone()
    }

    /// What native mounts share now.
    pub(crate) fn shared(&self) -> Vec<Arc<LazyObjects>> {
        self.shared.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the shared state for the next native mount: the existing one while it `serves`, else a new one.
    pub(crate) fn share<E>(
        &self,
        by: Shared,
        serves: impl FnOnce(&LazyObjects) -> bool,
        make: impl FnOnce() -> Result<Arc<LazyObjects>, E>,
    ) -> Result<Arc<LazyObjects>, E> {
        let mut shared = self.shared.lock();
        let lazy = match shared.get(&by).and_then(Weak::upgrade).filter(|lazy| serves(lazy)) {
            Some(lazy) => lazy,
            None => make()?,
        };
        shared.insert(by, Arc::downgrade(&lazy));
        let before = self.kept.lock().insert(by, lazy.clone());
        drop(shared);
        drop(before);
        Ok(lazy)
    }

    /// As [`ConnectionPool::release`], and no later mount shares it: its current users are being waited for.
    pub(crate) fn retire(&self) {
        let mut shared = self.shared.lock();
        shared.clear();
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(shared);
        drop(kept);
    }

    /// Stops keeping the shared state: it ends with its current mounts and users.
    pub(crate) fn release(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        // Not under the lock: this may unmount.
        drop(kept);
    }

    /// The upper directories in use.
    pub(crate) fn uppers(&self) -> &Arc<Uppers> {
        &self.uppers
    }

    /// Registers `upper` for removal after `connection` has ended.
    pub(crate) fn clean_up_later(&self, connection: Arc<Connection>, upper: Upper) {
        self.left.lock().push((connection, upper));
    }

    /// Cleans up after the connections that have ended.
    pub(crate) fn tidy(&self) {
        let is_over = |(connection, _): &mut (Arc<Connection>, Upper)| *connection.ended().borrow();
        // Held until everything is removed, so that removal is complete on return even with concurrent callers.
        let mut left = self.left.lock();
        left.extract_if(.., is_over).for_each(|(_, upper)| upper.clean_up());
    }

    pub(crate) fn add_connection(&self, connection: Arc<Connection>) {
        self.connections.lock().push(connection);
    }

    /// A number for another set of objects.
    pub(crate) fn next_number(&self) -> u64 {
        self.beside.fetch_add(1, Ordering::Relaxed) + 1
    }
}
