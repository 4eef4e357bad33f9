//! Isolation: an isolated store keeps the content of each tenant separate, in `tenants/HEX/`, and a tenant cannot find
//! content of another one.
//!
//! ```text
//! STORE/                       one lock, server, budget, set of mounts, pins and containers for all
//!   tenants/HEX/               HEX: sha256 of the tenant's name
//!     objects/ partial/ images/ layers/ refs/ corrupt/     as in a shared store, which has them in STORE itself
//! ```
//!
//! The store does not define tenants. A handle of a tenant ([`Store::tenant`]) sees only that tenant's content.
//! Operations on the whole store (budget, eviction, verifying) cover all tenants, regardless of the handle.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tarpon_oci::Digest;

use crate::files::DIR_MODE;
use crate::layout::{BEGIN_WAIT, TENANTS};
use crate::mounts::MountRecord;
use crate::settings::Settings;
use crate::store::{Shared, Store};
use crate::{StoreError, files};

/// Whether all images of a store share their common content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// They do: every user of the store can read every image in it.
    Shared,
    /// Only those of the same tenant do.
    Tenant,
}

impl Isolation {
    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Tenant => "tenant",
        }
    }
}

/// Why a store does not get the requested isolation.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// It has a different one.
    #[error("the store is of isolation \"{}\", and \"{}\" was requested", .is.name(), .asked.name())]
    Conflict {
        /// The current isolation.
        is: Isolation,
        /// The requested isolation.
        asked: Isolation,
    },
    /// It has shared content.
    #[error("the store is of isolation \"shared\" and in use: \"tenant\" needs a store without images and mounts")]
    InUse,
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// The isolation of the store.
    pub fn isolation(&self) -> Result<Isolation, StoreError> {
        let path = self.shared.layout.name(TENANTS);
        match self.shared.storage.metadata(&path) {
            Ok(_) => Ok(Isolation::Tenant),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Isolation::Shared),
            Err(error) => Err(files::io_error("examining", &path)(error)),
        }
    }

    /// Whether it is shared by a decision of the user, not only by default.
    pub fn is_explicitly_shared(&self) -> bool {
        Settings::read(self.shared.storage(), &self.shared.layout).shared
    }

    /// Sets the isolation of the store, from now on and for all its users.
    ///
    /// # Errors
    /// It already has the other isolation, or has shared content.
    pub fn set_isolation(&self, asked: Isolation) -> Result<(), IsolationError> {
        let storage = self.shared.storage();
        let lock = self.shared.layout.name("lock");
        let _lock = self.shared.locks().lock(&lock, BEGIN_WAIT, "change the isolation of the store")?;
        match (asked, self.isolation()?) {
            (Isolation::Tenant, Isolation::Tenant) => Ok(()),
            (Isolation::Shared, Isolation::Tenant) => {
                Err(IsolationError::Conflict { is: Isolation::Tenant, asked: Isolation::Shared })
            }
            (Isolation::Shared, Isolation::Shared) => {
                let changed = Settings::change(storage, &self.shared.layout, |settings| settings.shared = true);
                Ok(changed.map_err(|error| self.shared.refuse(error))?)
            }
            (Isolation::Tenant, Isolation::Shared) => {
                if self.is_explicitly_shared() {
                    return Err(IsolationError::Conflict { is: Isolation::Shared, asked: Isolation::Tenant });
                }
                if self.is_used()? {
                    return Err(IsolationError::InUse);
                }
                Ok(files::create_dir(storage, &self.shared.layout.name(TENANTS), DIR_MODE)?)
            }
        }
    }

    /// Whether it holds, or is about to hold, shared content.
    fn is_used(&self) -> Result<bool, StoreError> {
        let is_empty = |folder| -> Result<bool, StoreError> {
            Ok(files::list(self.shared.storage(), &self.shared.layout.name(folder))?.is_empty())
        };
        Ok(self.shared.live_pins()? > 0 || !is_empty("images")? || !is_empty("refs")? || !is_empty("mounts")?)
    }

    /// The store with the content of this tenant of an isolated store. `name` is any string that identifies the tenant;
    /// for a shared store the result is the whole store.
    pub fn tenant(&self, name: &str) -> Result<Self, StoreError> {
        if self.isolation()? == Isolation::Shared {
            return Ok(self.whole());
        }
        let store = self.open_tenant(&Digest::of(name.as_bytes()));
        store.shared.layout.begin_tenant(store.shared.storage())?;
        Ok(store)
    }

    /// The part of the store whose content a mount shows.
    pub fn of_mount(&self, record: &MountRecord) -> Self {
        self.of_tenant(record.tenant.as_ref())
    }

    /// The part of the store that belongs to the tenant with this id; all of a shared store without one.
    pub fn of_tenant(&self, id: Option<&Digest>) -> Self {
        id.map_or_else(|| self.whole(), |tenant| self.open_tenant(tenant))
    }

    fn open_tenant(&self, tenant: &Digest) -> Self {
        let whole = self.whole().shared;
        let mut tenants = whole.tenants.lock();
        if let Some(shared) = tenants.get(tenant).and_then(Weak::upgrade) {
            return Self { shared };
        }
        tenants.retain(|_, tenant| tenant.strong_count() > 0);
        let shared = Arc::new(Shared {
            storage: Arc::clone(&whole.storage),
            clock: Arc::clone(&whole.clock),
            layout: whole.layout.of_tenant(tenant),
            durability: Arc::clone(&whole.durability),
            hashed: Arc::clone(&whole.hashed),
            hashed_records: Arc::clone(&whole.hashed_records),
            budget: Arc::clone(&whole.budget),
            health: Arc::clone(&whole.health),
            renew_tree: whole.renew_tree,
            partials: Mutex::default(),
            eviction: Arc::clone(&whole.eviction),
            whole: Some(Arc::clone(&whole)),
            tenants: Mutex::default(),
        });
        tenants.insert(*tenant, Arc::downgrade(&shared));
        Self { shared }
    }

    /// Id of this handle's tenant; `None`: it is for the whole store.
    pub fn tenant_id(&self) -> Option<&Digest> {
        self.shared.layout.tenant()
    }

    /// The whole store of this tenant, or itself.
    pub fn whole(&self) -> Self {
        self.shared.whole.as_ref().map_or_else(|| self.clone(), |whole| Self { shared: Arc::clone(whole) })
    }

    /// All parts whose content this handle sees: for the whole store, the shared content and each tenant; for a tenant,
    /// that tenant.
    pub(crate) fn parts(&self) -> Result<Vec<Self>, StoreError> {
        let mut parts = vec![self.clone()];
        if self.shared.whole.is_none() {
            let names = files::list(self.shared.storage(), &self.shared.layout.name(TENANTS))?;
            let tenants = names.iter().filter_map(|name| Digest::from_hex(name.to_str()?).ok());
            parts.extend(tenants.map(|tenant| self.open_tenant(&tenant)));
        }
        Ok(parts)
    }
}
