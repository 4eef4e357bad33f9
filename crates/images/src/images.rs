//! [`Images`]: the images of one store.

use std::path::Path;
use std::sync::Arc;

use tarpon_oci::ImageConfig;
use tarpon_registry::Stats;
use tarpon_store::{Isolation, IsolationError, OpenError, RenewTree, Store, StoreConfig};
use tarpon_tree::erofs;

use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::{ImageRequest, Prepared};
use crate::preparations::Preparations;
use crate::preparer::Preparer;
use crate::tiers::{self, OpenedTier};

/// Opens the store in `folder`. Trees of older versions are rewritten when they are used.
pub fn open_store(folder: &Path) -> std::result::Result<Store, OpenError> {
    let renew_tree: RenewTree = |tree| erofs::renew(tree).ok().flatten();
    Store::open(folder, StoreConfig { renew_tree: Some(renew_tree), ..StoreConfig::default() })
}

/// The images of a store: resolved, prepared, inspected and listed.
#[derive(Debug, Clone)]
pub struct Images {
    store: Store,
    preparations: Arc<Preparations>,
    preparer: Option<Arc<dyn Preparer>>,
    tier: Option<OpenedTier>,
}

impl Images {
    /// The images of an open store.
    pub fn of(store: Store) -> Self {
        Self { store, preparations: Arc::default(), preparer: None, tier: None }
    }

    /// Opens the store in `folder`. Cheap: nothing is scanned, no request is made.
    pub fn open(folder: &Path) -> Result<Self> {
        let failed = |error| {
            Error::new(ErrorKind::Store, format!("open the store {}", folder.display()), error)
                .hint("name another one with --store DIR or $TARPON_STORE")
        };
        open_store(folder).map(Self::of).map_err(failed)
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The same images, prepared by another process.
    pub fn prepared_by(self, preparer: Arc<dyn Preparer>) -> Self {
        Self { preparer: Some(preparer), ..self }
    }

    /// The process that prepares; `None`: this one.
    pub(crate) fn preparer(&self) -> Option<&dyn Preparer> {
        self.preparer.as_deref()
    }

    /// The same images, prepared with this tier.
    pub fn with_tier(self, tier: Option<OpenedTier>) -> Self {
        Self { tier, ..self }
    }

    /// The tier with which this process prepares.
    pub(crate) fn tier(&self) -> Option<&OpenedTier> {
        self.tier.as_ref()
    }

    /// The same images, with the tier of a request.
    pub(crate) fn with_tier_of(&self, request: &ImageRequest) -> Self {
        self.clone().with_tier(tiers::open_for(&request.source, &request.access))
    }

    /// Requests to the tier, and bytes received from it.
    pub fn tier_stats(&self) -> Stats {
        self.tier.as_ref().and_then(|tier| tier.as_deref().ok()).map_or_else(Stats::default, tiers::stats)
    }

    /// The images of another part of the store.
    pub(crate) fn with_store(&self, store: Store) -> Self {
        Self { store, ..self.clone() }
    }

    /// Preparations under way in this process.
    pub(crate) fn preparations(&self) -> &Preparations {
        &self.preparations
    }

    /// Sets the isolation of the store, for all its users.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it is isolated in another way, or has content that is shared.
    pub fn set_isolation(&self, isolation: Isolation) -> Result<()> {
        self.store.set_isolation(isolation).map_err(|error| {
            let kind = match error {
                IsolationError::Store(_) => ErrorKind::Store,
                IsolationError::Conflict { .. } | IsolationError::InUse => ErrorKind::Conflict,
            };
            Error::new(kind, format!("open the store {}", self.store.folder().display()), error)
                .hint("choose another store with --store DIR, or omit --isolation and unset $TARPON_ISOLATION")
        })
    }

    /// The config of a prepared image, from the store.
    pub fn config(&self, prepared: &Prepared) -> Result<ImageConfig> {
        let step = "read the image's config";
        let part = self.for_image(&prepared.text, &prepared.access)?;
        let bytes = part.store().image_config(prepared.manifest()).context(ErrorKind::Store, step)?;
        let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Store, step, "it is not in the store, or damaged"))?;
        ImageConfig::parse(bytes).context(ErrorKind::Store, step)
    }
}
