//! What is in a tier: usage, removal of what is not used, verification.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta};
use tarpon_oci::{Digest, Hasher, Verified};
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::layer::next_piece;
use crate::tier::Tier;

/// How long the tier may be silent while it is listed or read.
const SILENCE: Duration = Duration::from_secs(30);
/// Most layers of a tier that are managed at once: 200 MB of memory.
const LAYERS: usize = 1 << 20;

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
    objects: Vec<Path>,
}

/// The layers of a tier.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Each layer, by its digest.
    pub layers: Vec<LayerUse>,
}

/// Whether the bytes of an object match its name.
#[derive(Debug, Clone, PartialEq, Eq)]
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
        self.layers.iter().map(LayerUse::bytes).sum()
    }
}

impl LayerUse {
    /// Bytes of its blob and indexes.
    pub fn bytes(&self) -> u64 {
        self.blob_bytes.unwrap_or(0) + self.index_bytes
    }

    /// The names of its blob and its indexes in the tier.
    pub fn verifiable(&self) -> impl Iterator<Item = &str> {
        let names = self.objects.iter().filter_map(Path::filename);
        names.filter(|name| *name == "blob" || name.starts_with("index-"))
    }
}

impl Tier {
    /// Lists all layers.
    ///
    /// # Errors
    /// The tier does not answer, or has more than a million layers.
    pub async fn usage(&self) -> Result<Usage> {
        let step = "list the tier";
        let mut listing = self.store().list(Some(&self.layers_path()));
        let mut layers: BTreeMap<String, LayerUse> = BTreeMap::new();
        loop {
            let next = timeout(SILENCE, listing.try_next()).await.map_err(|_| Error::late(step))?;
            let Some(object) = next.map_err(|error| Error::of(step, &error))? else { break };
            let Some((layer, name)) = self.named(&object.location) else { continue };
            let found = layers.entry(layer.hex()).or_insert_with(|| LayerUse {
                layer,
                blob_bytes: None,
                index_bytes: 0,
                last_use: SystemTime::UNIX_EPOCH,
                objects: Vec::new(),
            });
            found.add(&name, object);
            if layers.len() > LAYERS {
                return Err(Error::new(step, format!("it has more than {LAYERS} layers")));
            }
        }
        Ok(Usage { layers: layers.into_values().collect() })
    }

    /// The layer and the name of an object.
    fn named(&self, path: &Path) -> Option<(Digest, String)> {
        let name = path.filename()?.to_owned();
        let layer = path.prefix_match(&self.layers_path())?.next()?;
        let layer = format!("sha256:{}", layer.as_ref()).parse().ok()?;
        Some((layer, name))
    }

    /// Removes the layers that no host has used for `unused`. The clock of the store and that of this host may differ by an hour, which is
    /// added. Returns what was removed.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn collect_garbage(&self, usage: &Usage, unused: Duration, is_trial: bool) -> Result<Vec<LayerUse>> {
        const SKEW: Duration = Duration::from_secs(3600);
        let now = SystemTime::now();
        let is_old = |layer: &&LayerUse| now.duration_since(layer.last_use).unwrap_or_default() > unused + SKEW;
        let old: Vec<LayerUse> = usage.layers.iter().filter(is_old).cloned().collect();
        if !is_trial {
            for layer in &old {
                self.remove_layer(layer).await?;
            }
        }
        Ok(old)
    }

    /// The index goes first: a host that found it would read a blob that is gone from the registry, range by range.
    async fn remove_layer(&self, layer: &LayerUse) -> Result<()> {
        let is_index = |path: &&Path| path.filename().is_some_and(|name| name.starts_with("index-"));
        let (indexes, others): (Vec<_>, Vec<_>) = layer.objects.iter().partition(is_index);
        for path in indexes.into_iter().chain(others) {
            self.remove("remove a layer from the tier", path).await?;
        }
        Ok(())
    }

    /// Reads an object of a layer, and compares it with its name.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn verify(self: &Arc<Self>, layer: &LayerUse, name: &str) -> Result<Verdict> {
        let step = "verify an object of the tier";
        let expected = match name.strip_prefix("index-") {
            Some(hex) => format!("sha256:{hex}").parse().map_err(|_| Error::new(step, "its name has no digest"))?,
            None => layer.layer,
        };
        let path = self.layer_path(&layer.layer).join(name);
        let get = async {
            match self.store().get_opts(&path, GetOptions::default()).await {
                Ok(response) => Ok(Some(response.into_stream())),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(mut body) = self.ask_briefly(step, get).await? else { return Ok(Verdict::Gone) };
        let mut hasher = Hasher::new();
        while let Some(piece) = next_piece(&mut body, SILENCE).await? {
            hasher.update(&piece);
        }
        let is_right = Verified::check_stream(&expected, hasher).is_ok();
        Ok(if is_right { Verdict::Right } else { Verdict::Wrong })
    }

    /// Removes one object of a layer: a wrong one. The layer's claims go too, so that a host can stream it again at once.
    ///
    /// # Errors
    /// The tier does not answer.
    pub async fn remove_object(&self, layer: &LayerUse, name: &str) -> Result<()> {
        let is_claim = |path: &&Path| path.filename().is_some_and(|name| name.starts_with("claim-"));
        let object = self.layer_path(&layer.layer).join(name);
        for path in std::iter::once(&object).chain(layer.objects.iter().filter(is_claim)) {
            self.remove("remove an object from the tier", path).await?;
        }
        Ok(())
    }
}

impl LayerUse {
    fn add(&mut self, name: &str, object: ObjectMeta) {
        if name == "blob" {
            self.blob_bytes = Some(object.size);
        } else if name.starts_with("index-") {
            self.index_bytes += object.size;
        }
        self.last_use = self.last_use.max(object.last_modified.into());
        self.objects.push(object.location);
    }
}
