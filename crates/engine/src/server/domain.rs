//! [`Domain`]: the images that share what they have in common, with all that they share: the store's content, who fetches it, and the
//! connection over which the kernel reads it. A shared store is one domain, an isolated one has one for each tenant.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_fetch::Fetcher;
use tarpon_mount::Host;
use tarpon_store::Store;
use tokio::runtime::Handle;

use super::backfill::Backfills;
use super::images::Images;
use crate::protocol::Access;
use crate::{Result, tenant};

/// Images that share what they have in common.
pub(super) struct Domain {
    pub(super) store: Store,
    pub(super) host: Host,
    pub(super) images: Arc<Images>,
    pub(super) backfills: Arc<Backfills>,
}

impl Domain {
    pub(super) fn new(store: Store, fetcher: Fetcher, host: Host, runtime: Handle) -> Self {
        let images = Arc::new(Images::new(store.clone(), fetcher.clone()));
        let backfills = Arc::new(Backfills::new(store.clone(), fetcher, runtime, images.clone()));
        Self { store, host, images, backfills }
    }

    /// One of the same mounts, that shares no content with this one.
    fn beside(&self, store: Store, runtime: Handle) -> Self {
        let fetcher = self.images.fetcher().beside(Arc::new(store.clone()));
        let host = self.host.beside(Arc::new(fetcher.clone()));
        Self::new(store, fetcher, host, runtime)
    }
}

/// All domains of a server.
pub(super) struct Domains {
    runtime: Handle,
    whole: Arc<Domain>,
    /// By the folder of their objects. They stay as long as the server, as images do.
    tenants: Mutex<HashMap<std::path::PathBuf, Arc<Domain>>>,
}

impl Domains {
    pub(super) fn new(whole: Domain, runtime: Handle) -> Self {
        Self { runtime, whole: Arc::new(whole), tenants: Mutex::default() }
    }

    /// Of a shared store the one domain; of an isolated one what belongs to no tenant, and has no image.
    pub(super) fn whole(&self) -> &Arc<Domain> {
        &self.whole
    }

    /// That of an image which is reached in this way.
    pub(super) fn of(&self, image: &str, access: &Access) -> Result<Arc<Domain>> {
        let Some(store) = tenant::part_of(&self.whole.store, image, access)? else { return Ok(self.whole.clone()) };
        let mut tenants = self.tenants.lock();
        let domain = tenants
            .entry(store.objects_folder())
            .or_insert_with(|| Arc::new(self.whole.beside(store, self.runtime.clone())));
        Ok(domain.clone())
    }

    /// All that images were mounted of.
    pub(super) fn all(&self) -> Vec<Arc<Domain>> {
        let mut all = vec![self.whole.clone()];
        all.extend(self.tenants.lock().values().cloned());
        all
    }
}
