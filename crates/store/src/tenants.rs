//! Isolation: an isolated store keeps the content of each tenant apart, in `tenants/HEX/`, and nothing of one is found through another.
//!
//! ```text
//! STORE/                       one lock, server, budget, set of mounts, pins and containers for all
//!   tenants/HEX/               HEX: sha256 of the tenant's name
//!     objects/ partial/ images/ layers/ refs/ corrupt/     as in a shared store, which has them in STORE itself
//! ```
//!
//! Who a tenant is, is not the store's business. A handle of a tenant ([`Store::tenant`]) sees its content and no other; what concerns
//! the whole store (budget, eviction, verifying) goes over all tenants, whichever handle is asked.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tarpon_oci::Digest;

use crate::layout::{BEGIN_WAIT, DIR_MODE, TENANTS};
use crate::mounts::MountRecord;
use crate::settings::Settings;
use crate::store::{Shared, Store};
use crate::{StoreError, files};

/// Whether all images of a store share what they have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// They do: whoever uses the store can read every image in it.
    Shared,
    /// Only those of one tenant do.
    Tenant,
}

impl Isolation {
    /// As a user writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Tenant => "tenant",
        }
    }
}

/// Why a store does not get the isolation that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// It has another one.
    #[error("the store is of isolation \"{}\", and \"{}\" was asked for", .is.name(), .asked.name())]
    Conflict {
        /// What it has.
        is: Isolation,
        /// What was asked for.
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
    /// How it is isolated.
    pub fn isolation(&self) -> Result<Isolation, StoreError> {
        let path = self.shared.layout.name(TENANTS);
        match self.shared.storage.metadata(&path) {
            Ok(_) => Ok(Isolation::Tenant),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Isolation::Shared),
            Err(error) => Err(files::io_error("examining", &path)(error)),
        }
    }

    /// Whether somebody decided that it is shared, so that it is not so by default alone.
    pub fn is_shared_on_purpose(&self) -> bool {
        Settings::read(self.shared.storage(), &self.shared.layout).shared
    }

    /// Makes it a store of this isolation, from now on and for all who use it.
    ///
    /// # Errors
    /// It is one of the other kind already, or has content that is shared.
    pub fn settle_isolation(&self, asked: Isolation) -> Result<(), IsolationError> {
        let storage = self.shared.storage();
        let lock = self.shared.layout.name("lock");
        let _lock = self.shared.locks().lock(&lock, BEGIN_WAIT, "change the isolation of the store")?;
        match (asked, self.isolation()?) {
            (Isolation::Tenant, Isolation::Tenant) => Ok(()),
            (Isolation::Shared, Isolation::Tenant) => {
                Err(IsolationError::Conflict { is: Isolation::Tenant, asked: Isolation::Shared })
            }
            (Isolation::Shared, Isolation::Shared) => Ok(self.change_settings(|settings| settings.shared = true)?),
            (Isolation::Tenant, Isolation::Shared) => {
                if self.is_shared_on_purpose() {
                    return Err(IsolationError::Conflict { is: Isolation::Shared, asked: Isolation::Tenant });
                }
                if self.is_used()? {
                    return Err(IsolationError::InUse);
                }
                Ok(files::create_dir(storage, &self.shared.layout.name(TENANTS), DIR_MODE)?)
            }
        }
    }

    /// Whether it holds, or is about to hold, what everybody shares.
    fn is_used(&self) -> Result<bool, StoreError> {
        let is_empty = |folder| -> Result<bool, StoreError> {
            Ok(files::list(self.shared.storage(), &self.shared.layout.name(folder))?.is_empty())
        };
        Ok(self.shared.live_pins()? > 0 || !is_empty("images")? || !is_empty("refs")? || !is_empty("mounts")?)
    }

    /// The store with the content of this tenant of an isolated store. `name` is whatever tells tenants apart; of a shared store it is the
    /// whole.
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
        record.tenant.as_ref().map_or_else(|| self.whole(), |tenant| self.open_tenant(tenant))
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

    /// What stands for the tenant that this handle is for; `None`: it is for the whole store.
    pub fn tenant_id(&self) -> Option<&Digest> {
        self.shared.layout.tenant()
    }

    /// The store that this is a tenant of, or it itself.
    pub fn whole(&self) -> Self {
        self.shared.whole.as_ref().map_or_else(|| self.clone(), |whole| Self { shared: Arc::clone(whole) })
    }

    /// Everything of which this handle sees the content: of the whole store, what is shared and each tenant; of a tenant, that tenant.
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
