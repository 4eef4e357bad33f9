//! [`Domain`]: the images that share content, and what they share: the store's content, its fetcher, and the connection through which the
//! kernel reads it. A shared store is one domain. An isolated store has one per tenant.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_fetch::Fetcher;
use tarpon_images::Access;
use tarpon_images::sources::Sources;
use tarpon_images::tenant;
use tarpon_mount::Host;
use tarpon_store::Store;
use tokio::runtime::Handle;

use super::backfill::Backfills;
use super::counters::KeptCounters;
use super::images::LoadedImages;
use crate::Result;

/// A set of images that share content.
pub(crate) struct Domain {
    pub(crate) store: Store,
    pub(crate) host: Host,
    pub(crate) images: Arc<LoadedImages>,
    pub(crate) backfills: Arc<Backfills>,
    /// Of all domains.
    pub(crate) counters: Arc<KeptCounters>,
}

impl Domain {
    pub(crate) fn new(
        store: Store,
        fetcher: Fetcher,
        host: Host,
        runtime: Handle,
        counters: Arc<KeptCounters>,
        sources: Arc<dyn Sources>,
    ) -> Self {
        let images = Arc::new(LoadedImages::new(store.clone(), fetcher.clone(), counters.clone(), sources));
        let backfills = Arc::new(Backfills::new(store.clone(), fetcher, runtime, images.clone()));
        Self { store, host, images, backfills, counters }
    }

    /// A domain of the same mounts that shares no content with this one.
    fn beside(&self, store: Store, runtime: Handle) -> Self {
        let fetcher = self.images.fetcher().beside(Arc::new(store.clone()));
        let host = self.host.beside(Arc::new(fetcher.clone()));
        Self::new(store, fetcher, host, runtime, self.counters.clone(), self.images.sources().clone())
    }
}

/// All domains of a server.
pub(crate) struct Domains {
    runtime: Handle,
    whole: Arc<Domain>,
    /// By the folder of their objects. They live as long as the server, as images do.
    tenants: Mutex<HashMap<std::path::PathBuf, Arc<Domain>>>,
}

impl Domains {
    pub(crate) fn new(whole: Arc<Domain>, runtime: Handle) -> Self {
        Self { runtime, whole, tenants: Mutex::default() }
    }

    /// The one domain of a shared store. In an isolated store, the part that belongs to no tenant and has no images.
    pub(crate) fn whole(&self) -> &Arc<Domain> {
        &self.whole
    }

    /// The domain of an image that is accessed in this way.
    pub(crate) fn of(&self, image: &str, access: &Access) -> Result<Arc<Domain>> {
        let Some(store) = tenant::part_of(&self.whole.store, image, access)? else { return Ok(self.whole.clone()) };
        let mut tenants = self.tenants.lock();
        let domain = tenants
            .entry(store.objects_folder())
            .or_insert_with(|| Arc::new(self.whole.beside(store, self.runtime.clone())));
        Ok(domain.clone())
    }

    /// All domains of mounted images.
    pub(crate) fn all(&self) -> Vec<Arc<Domain>> {
        let mut all = vec![self.whole.clone()];
        all.extend(self.tenants.lock().values().cloned());
        all
    }
}
