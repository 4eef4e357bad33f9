//! Management of a tier: what is in it, removal of what is not used, verification.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use tarpon_images::progress::Progress;
use tarpon_images::{Error, ErrorKind, Result};
use tarpon_oci::Digest;
use tarpon_tier::{LayerUse, Leftovers, Tier, TierLocation, TierOptions, Usage, Verdict};

/// Objects that are read at the same time.
const READS: usize = 4;
/// After so many objects in a row that cannot be read, the tier is taken to be away.
const FAILURES: usize = 16;

/// A tier whose contents are managed.
#[derive(Debug)]
pub struct ManagedTier {
    tier: Arc<Tier>,
}

/// What was removed from a tier, or would be.
#[derive(Debug, Clone, Default)]
pub struct TierGarbage {
    /// The layers that no host has used.
    pub layers: Vec<LayerUse>,
    /// Copies that were never finished.
    pub unfinished: Leftovers,
}

/// The objects of a tier, compared with their names.
#[derive(Debug, Clone, Default)]
pub struct TierCheck {
    /// Objects that were read.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those whose bytes do not match their names.
    pub wrong: Vec<WrongObject>,
    /// Those that could not be read.
    pub unreadable: Vec<UnreadableTierObject>,
}

/// An object of a tier whose bytes do not match its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongObject {
    /// The layer that it belongs to.
    pub layer: Digest,
    /// Its name: `blob`, or `index-` and a digest.
    pub name: String,
    /// Whether it was removed.
    pub is_removed: bool,
}

/// An object of a tier that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableTierObject {
    /// The layer that it belongs to.
    pub layer: Digest,
    /// Its name: `blob`, or `index-` and a digest.
    pub name: String,
    /// Why, in one line.
    pub error: String,
}

impl ManagedTier {
    /// Opens the tier with the credentials in the environment of this process.
    ///
    /// # Errors
    /// The credentials are unusable, or the folder does not exist.
    pub fn open(location: &TierLocation) -> Result<Self> {
        let tier = Tier::open(location, &TierOptions::from_environment(location)).map_err(outward)?;
        Ok(Self { tier })
    }

    /// Lists its layers.
    ///
    /// # Errors
    /// The tier does not answer, or has more than four million objects.
    pub async fn usage(&self) -> Result<Usage> {
        self.tier.usage().await.map_err(outward)
    }

    /// Removes the layers that no host has used for `unused`, and copies that were not finished for so long. Returns what was removed; a
    /// trial only returns what would be.
    ///
    /// # Errors
    /// The tier does not answer, or does not permit it.
    pub async fn collect_garbage(&self, unused: Duration, is_trial: bool) -> Result<TierGarbage> {
        let usage = self.usage().await?;
        let layers = self.tier.collect_garbage(&usage, unused, is_trial).await.map_err(outward)?;
        let unfinished = self.tier.collect_leftovers(unused, is_trial).await.map_err(outward)?;
        Ok(TierGarbage { layers, unfinished })
    }

    /// Reads all blobs and indexes, and compares them with their names. With `repair` wrong ones are removed, so that hosts write them again.
    ///
    /// # Errors
    /// The tier does not answer, or does not permit the removal.
    pub async fn verify(&self, repair: bool, progress: &dyn Progress) -> Result<TierCheck> {
        let usage = self.usage().await?;
        let (received, all) = (AtomicU64::new(0), usage.bytes());
        let arrived = |bytes: u64| {
            let before = received.fetch_add(bytes, Ordering::Relaxed);
            progress.start_requested(before + bytes, all);
        };
        let objects = usage.layers.iter().flat_map(|layer| layer.verifiable().map(move |name| (layer, name)));
        let verified = objects.map(|(layer, name)| self.verify_one(layer, name, &arrived));
        let mut verified = futures::stream::iter(verified).buffer_unordered(READS);
        let (mut check, mut failures) = (TierCheck::default(), 0);
        while let Some((layer, name, verdict)) = verified.next().await {
            let (of, name) = (layer.layer, name.to_owned());
            match verdict {
                Ok(Verdict::Gone) => {}
                Ok(verdict) => {
                    (check.objects, failures) = (check.objects + 1, 0);
                    if verdict == Verdict::Wrong {
                        if repair {
                            self.tier.remove_object(layer, &name).await.map_err(outward)?;
                        }
                        check.wrong.push(WrongObject { layer: of, name, is_removed: repair });
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures >= FAILURES {
                        return Err(outward(error));
                    }
                    check.unreadable.push(UnreadableTierObject { layer: of, name, error: error.to_string() });
                }
            }
        }
        check.bytes = received.load(Ordering::Relaxed);
        check.wrong.sort_by(|one, other| (one.layer, &one.name).cmp(&(other.layer, &other.name)));
        check.unreadable.sort_by(|one, other| (one.layer, &one.name).cmp(&(other.layer, &other.name)));
        Ok(check)
    }

    async fn verify_one<'a>(
        &self,
        layer: &'a LayerUse,
        name: &'a str,
        arrived: &(impl Fn(u64) + Sync),
    ) -> (&'a LayerUse, &'a str, tarpon_tier::Result<Verdict>) {
        (layer, name, self.tier.verify(layer, name, arrived).await)
    }
}

fn outward(error: tarpon_tier::Error) -> Error {
    let kind = match error.kind() {
        tarpon_tier::ErrorKind::Missing => ErrorKind::NotFound,
        tarpon_tier::ErrorKind::Denied => ErrorKind::Denied,
        tarpon_tier::ErrorKind::Unavailable => ErrorKind::Unavailable,
    };
    Error::new(kind, error.step(), error.cause().to_owned())
}
