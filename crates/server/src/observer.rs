//! [`Observer`]: the server of this process as other parts of the process see it.

use std::sync::{Arc, Weak};

use tarpon_fetch::Stats;
use tokio::sync::broadcast::Receiver;
use tokio::sync::watch;

use super::changes::MountChange;
use super::mount_table::MountTable;
use super::process::Server;

/// Observes the server in this process, current or future, without keeping it alive.
#[derive(Clone, Default)]
pub struct Observer(Arc<watch::Sender<Weak<MountTable>>>);

impl Observer {
    /// Observes this server from now on.
    pub fn see(&self, server: &Server) {
        self.0.send_replace(Arc::downgrade(&server.mounts));
    }

    /// The server's counters since its start. `None`: there is no server.
    pub fn stats(&self) -> Option<Stats> {
        self.0.borrow().upgrade().map(|mounts| mounts.domains.whole().images.fetcher().stats())
    }

    /// The events from now on, once there is a server. `None`: it has ended.
    pub async fn changes(&self) -> Option<Receiver<MountChange>> {
        let mut servers = self.0.subscribe();
        // A `Weak` without an allocation means that there is no server yet. The sender lives in `self`.
        let server = servers.wait_for(|server| !Weak::ptr_eq(server, &Weak::new())).await.ok()?.clone();
        server.upgrade().map(|mounts| mounts.changes.listen())
    }
}
