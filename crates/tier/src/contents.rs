//! What is in a tier: usage, removal of what is not used, verification.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta};
use tarpon_oci::{Digest, Hasher, Verified};
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::health::Purpose;
use crate::layer::next_piece;
use crate::names::Name;
use crate::tier::Tier;

/// How long the tier may be silent while it is listed or read.
const SILENCE: Duration = Duration::from_secs(30);
/// Most objects of a tier that are managed at once, of a million layers: 600 MB of memory.
const OBJECTS: usize = 4 << 20;
/// The clock of the store and that of this host may differ by this.
pub(crate) const SKEW: Duration = Duration::from_secs(3600);

/// A layer in a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerUse {
    /// The layer's blob.
    pub layer: Digest,
    /// Bytes of its blob; none if only its index is there.
    pub blob_bytes: Option<u64>,
    /// Bytes of its indexes.
    pub index_bytes: u64,
    /// When a host last used it, within a day, by the clock of the store.
    pub last_use: SystemTime,
    names: Vec<Box<str>>,
}

/// The layers of a tier.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Each layer, by its digest.
    pub layers: Vec<LayerUse>,
}

/// Whether the bytes of an object match its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its bytes match its name.
    Right,
    /// They do not. Hosts do not use it.
    Wrong,
    /// It was removed meanwhile.
    Gone,
}

impl Usage {
    /// Bytes of all blobs and indexes.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(LayerUse::bytes).fold(0, u64::saturating_add)
    }
}

impl LayerUse {
    /// Bytes of its blob and indexes.
    pub fn bytes(&self) -> u64 {
        self.blob_bytes.unwrap_or(0).saturating_add(self.index_bytes)
    }

    /// The names of its blob and its indexes in the tier.
    pub fn verifiable(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|name| *name == "blob" || is_index(name))
    }

    /// How many indexes it has.
    pub fn indexes(&self) -> u64 {
        self.names().filter(|name| is_index(name)).count() as u64
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    fn add(&mut self, name: &str, object: &ObjectMeta) {
        match Name::parse(name) {
            Some(Name::Blob) => self.blob_bytes = Some(object.size),
            Some(Name::Index(_)) => self.index_bytes = self.index_bytes.saturating_add(object.size),
            Some(Name::Used | Name::Claim(_)) => {}
            None => return,
        }
        self.last_use = self.last_use.max(object.last_modified.into());
        self.names.push(name.into());
    }
}

impl Tier {
    /// Lists all layers.
    ///
    /// # Errors
    /// The tier does not answer, or has more than four million objects.
    pub async fn usage(&self) -> Result<Usage> {
        let step = "list the tier";
        let mut listing = self.store().list(Some(&self.layers_path()));
        let mut layers: BTreeMap<Digest, LayerUse> = BTreeMap::new();
        let mut objects = 0;
        loop {
            let next = timeout(SILENCE, listing.try_next()).await.map_err(|_| Error::late(step))?;
            let Some(object) = next.map_err(|error| Error::of(step, &error))? else { break };
            let Some((layer, name)) = self.named(&object.location) else { continue };
            objects += 1;
            if objects > OBJECTS {
                return Err(Error::new(step, format!("it has more than {OBJECTS} objects")));
            }
            let layer = layers.entry(layer).or_insert_with(|| LayerUse {
                layer,
                blob_bytes: None,
                index_bytes: 0,
                last_use: SystemTime::UNIX_EPOCH,
                names: Vec::new(),
            });
            layer.add(name, &object);
        }
        Ok(Usage { layers: layers.into_values().collect() })
    }

    /// The layer and the name of an object. None for what is no object of a tier.
    fn named<'a>(&self, path: &'a Path) -> Option<(Digest, &'a str)> {
        let hex = path.prefix_match(&self.layers_path())?.next()?;
        let layer = Digest::from_hex(hex.as_ref()).ok()?;
        let name = self.name_in(&self.layer_path(&layer), path)?;
        Name::parse(name).map(|_| (layer, name))
    }

    /// Removes the layers that no host has used for `unused`. An hour is added, by which the clocks of the store and of this host may
    /// differ. Returns what was removed, or what would be.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn collect_garbage(&self, usage: &Usage, unused: Duration, is_trial: bool) -> Result<Vec<LayerUse>> {
        let now = SystemTime::now();
        let is_old =
            |layer: &&LayerUse| now.duration_since(layer.last_use).unwrap_or_default() > unused.saturating_add(SKEW);
        let old: Vec<LayerUse> = usage.layers.iter().filter(is_old).cloned().collect();
        if !is_trial {
            // Indexes go first: a host that found one would read a blob that is gone from the registry, range by range.
            self.remove_all(&old, is_index).await?;
            self.remove_all(&old, |name| !is_index(name)).await?;
        }
        Ok(old)
    }

    /// Removes these objects of the layers, several at a time.
    async fn remove_all(&self, layers: &[LayerUse], is_meant: fn(&str) -> bool) -> Result<()> {
        let step = "remove layers from the tier";
        let path = |layer: &LayerUse, name: &str| self.layer_path(&layer.layer).join(name);
        let paths = layers.iter().flat_map(|layer| {
            layer.names().filter(|name| is_meant(name)).map(|name| Ok(path(layer, name))).collect::<Vec<_>>()
        });
        let paths: Vec<object_store::Result<Path>> = paths.collect();
        let mut removed = self.store().delete_stream(futures::stream::iter(paths).boxed());
        loop {
            match timeout(SILENCE, removed.next()).await.map_err(|_| Error::late(step))? {
                None => return Ok(()),
                Some(Ok(_) | Err(object_store::Error::NotFound { .. })) => {}
                Some(Err(error)) => return Err(Error::of(step, &error)),
            }
        }
    }

    /// Reads an object of a layer, and compares it with its name. `received` is called with the size of each piece.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn verify(self: &Arc<Self>, layer: &LayerUse, name: &str, received: impl Fn(u64)) -> Result<Verdict> {
        let step = "verify an object of the tier";
        let expected = match Name::parse(name) {
            Some(Name::Index(digest)) => digest,
            _ => layer.layer,
        };
        let path = self.layer_path(&layer.layer).join(name);
        let get = async {
            match self.store().get_opts(&path, GetOptions::default()).await {
                Ok(response) => Ok(Some((response.meta.size, response.into_stream()))),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some((mut left, mut body)) = self.ask_briefly(Purpose::Read, step, get).await? else {
            return Ok(Verdict::Gone);
        };
        let mut hasher = Hasher::new();
        while left > 0 {
            // A file that became shorter meanwhile has empty pieces without end.
            let Some(piece) = next_piece(&mut body, SILENCE).await?.filter(|piece| !piece.is_empty()) else { break };
            hasher.update(&piece);
            received(piece.len() as u64);
            left = left.saturating_sub(piece.len() as u64);
        }
        let is_right = Verified::check_stream(&expected, hasher).is_ok();
        Ok(if is_right { Verdict::Right } else { Verdict::Wrong })
    }

    /// Removes one object of a layer: a wrong one. The layer's claims go too, so that a host can stream it again at once.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn remove_object(&self, layer: &LayerUse, name: &str) -> Result<()> {
        let claims = layer.names().filter(|name| name.starts_with("claim-"));
        for name in std::iter::once(name).chain(claims) {
            let path = self.layer_path(&layer.layer).join(name);
            self.remove("remove an object from the tier", &path).await?;
        }
        Ok(())
    }
}

fn is_index(name: &str) -> bool {
    matches!(Name::parse(name), Some(Name::Index(_)))
}
