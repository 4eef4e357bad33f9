//! [`KeptCounters`]: the counters that a predecessor has left, and those that are kept for the successor.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tarpon_blob::LogLimit;
use tarpon_fetch::Stats;
use tarpon_oci::Digest;
use tarpon_registry::EndpointCounts;

use super::ledger::EndpointLedger;
use super::memory::HeldMemory;
use crate::endpoints::{self, EndpointSum};
use crate::holding::Holding;

/// The name of the state.
const STATE: &str = "counters";
/// The version of the state. A state of another version is ignored, and the counters begin at zero.
const VERSION: u32 = 1;
/// Maximum number of images whose counters are kept, loaded ones first. A holder keeps 4,096 descriptors, one for each mount; the counters
/// of so many images take about 5 MB.
const IMAGES: usize = 4096;

/// Bytes and requests of an image's repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transfers {
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
}

/// What was counted for a mount since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountCounts {
    pub(crate) fetched_bytes: u64,
    pub(crate) requests: u64,
    pub(crate) failed_reads: u64,
}

/// An image in a graph: all sources of one name and manifest. Tenants share none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ImageKey {
    /// Of the path of the objects' folder.
    folder: Digest,
    name: String,
    manifest: Digest,
}

impl ImageKey {
    pub(crate) fn new(objects_folder: &Path, name: &str, manifest: Digest) -> Self {
        Self { folder: of_path(objects_folder), name: name.to_owned(), manifest }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageCounters {
    pub(super) key: ImageKey,
    pub(super) transfers: Transfers,
    pub(super) stats: Stats,
    /// Earlier versions of the server do not count them.
    #[serde(default)]
    pub(super) endpoints: Vec<EndpointSum>,
}

/// The state.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SavedCounters {
    version: u32,
    pub(super) host: Stats,
    pub(super) images: Vec<ImageCounters>,
    /// By the digest of the mount point.
    mounts: BTreeMap<Digest, MountCounts>,
    /// By host.
    #[serde(default)]
    pub(super) endpoints: BTreeMap<String, EndpointCounts>,
}

#[derive(Deserialize)]
struct VersionField {
    version: u32,
}

impl SavedCounters {
    pub(super) fn of_host(host: Stats) -> Self {
        Self { host, ..Self::default() }
    }

    pub(super) fn add_mount(&mut self, mountpoint: &Path, counts: MountCounts) {
        self.mounts.insert(of_path(mountpoint), counts);
    }

    fn is_zero(&self) -> bool {
        self.host == Stats::default() && self.images.is_empty()
    }

    fn read(bytes: &[u8]) -> io::Result<Self> {
        let VersionField { version } = serde_json::from_slice(bytes)?;
        if version != VERSION {
            return Err(io::Error::new(io::ErrorKind::Unsupported, format!("they are of version {version}")));
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// Counters that outlive the server.
#[derive(Default)]
pub(crate) struct KeptCounters {
    inherited: Mutex<Inherited>,
    /// `None` until something was counted.
    memory: Mutex<Option<HeldMemory>>,
    /// What the endpoints of all images were asked for.
    pub(crate) endpoints: EndpointLedger,
}

/// What the predecessor counted, as far as it does not belong to something that this server has.
#[derive(Default)]
struct Inherited {
    images: HashMap<ImageKey, Vec<ImageCounters>>,
    mounts: BTreeMap<Digest, MountCounts>,
}

impl KeptCounters {
    /// What the predecessor has left, with the counters of the host.
    pub(crate) fn inherited(holding: &Holding) -> (Self, Stats) {
        let Some(file) = holding.take_file(STATE) else { return <(Self, Stats)>::default() };
        let opened = HeldMemory::open(file).and_then(|(memory, bytes)| Ok((memory, SavedCounters::read(&bytes)?)));
        let (memory, saved) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(%error, "the counters of the earlier server cannot be read: they begin at zero");
                return <(Self, Stats)>::default();
            }
        };
        let inherited = Mutex::new(Inherited::of(saved.images, saved.mounts));
        let endpoints = EndpointLedger::continuing(saved.endpoints);
        (Self { inherited, memory: Some(memory).into(), endpoints }, saved.host)
    }

    /// Takes what the predecessor counted for an image. The second call for it gets nothing.
    pub(crate) fn take_image(&self, key: &ImageKey) -> (Transfers, Vec<Stats>, Vec<EndpointSum>) {
        let counters = self.inherited.lock().images.remove(key).unwrap_or_default();
        let transfers = counters.iter().fold(Transfers::default(), |sum, image| sum.plus(image.transfers));
        let endpoints = endpoints::added_up(counters.iter().flat_map(|image| image.endpoints.iter().cloned()));
        (transfers, counters.into_iter().map(|image| image.stats).collect(), endpoints)
    }

    /// Takes what the predecessor counted for a mount.
    pub(crate) fn take_mount(&self, mountpoint: &Path) -> MountCounts {
        self.inherited.lock().mounts.remove(&of_path(mountpoint)).unwrap_or_default()
    }

    /// Forgets mounts that were not adopted.
    pub(crate) fn forget_mounts(&self) {
        self.inherited.lock().mounts.clear();
    }

    /// Keeps what `count` returns for the successor.
    pub(super) fn keep(&self, holding: &Holding, count: impl FnOnce() -> SavedCounters) {
        static NOT_KEPT: LogLimit = LogLimit::new();
        // Concurrent calls keep what is counted later, not earlier.
        let mut memory = self.memory.lock();
        let counted = self.with_inherited(count());
        if memory.is_none() && counted.is_zero() {
            return;
        }
        if let Err(error) = write(&mut memory, &counted, holding)
            && let Some(left_out) = NOT_KEPT.admit()
        {
            tracing::warn!(%error, "the next server counts from an earlier state{left_out}");
        }
    }

    /// The counters with those of images that are not loaded, and of mounts that are not adopted yet.
    fn with_inherited(&self, mut counted: SavedCounters) -> SavedCounters {
        let inherited = self.inherited.lock();
        counted.images.extend(inherited.images.values().flatten().cloned());
        counted.images.truncate(IMAGES);
        for (mount, counts) in &inherited.mounts {
            counted.mounts.entry(*mount).or_insert(*counts);
        }
        counted.version = VERSION;
        counted
    }
}

impl Inherited {
    fn of(saved: Vec<ImageCounters>, mounts: BTreeMap<Digest, MountCounts>) -> Self {
        let mut images: HashMap<_, Vec<_>> = HashMap::new();
        for image in saved {
            images.entry(image.key.clone()).or_default().push(image);
        }
        Self { images, mounts }
    }
}

/// Writes the counters. The first time the holder gets the memory, and has it when this returns.
fn write(memory: &mut Option<HeldMemory>, counted: &SavedCounters, holding: &Holding) -> io::Result<()> {
    let bytes = serde_json::to_vec(counted)?;
    if let Some(memory) = memory {
        return memory.write(&bytes);
    }
    let mut new = HeldMemory::new()?;
    new.write(&bytes)?;
    holding.keep_file(STATE, new.file());
    holding.flush();
    *memory = Some(new);
    Ok(())
}

impl Transfers {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), requests: self.requests.saturating_add(other.requests) }
    }
}

impl From<tarpon_registry::Stats> for Transfers {
    fn from(tarpon_registry::Stats { bytes, requests }: tarpon_registry::Stats) -> Self {
        Self { bytes, requests }
    }
}

impl MountCounts {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            fetched_bytes: self.fetched_bytes.saturating_add(other.fetched_bytes),
            requests: self.requests.saturating_add(other.requests),
            failed_reads: self.failed_reads.saturating_add(other.failed_reads),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            fetched_bytes: self.fetched_bytes.saturating_sub(other.fetched_bytes),
            requests: self.requests.saturating_sub(other.requests),
            failed_reads: self.failed_reads.saturating_sub(other.failed_reads),
        }
    }
}

fn of_path(path: &Path) -> Digest {
    Digest::of(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use tarpon_client::protocol::EndpointKind;

    use super::*;

    fn key(name: &str) -> ImageKey {
        ImageKey::new(Path::new("/store/objects"), name, Digest::of(name.as_bytes()))
    }

    fn image(name: &str, bytes: u64) -> ImageCounters {
        let stats = Stats { bytes_demand: bytes, ..Stats::default() };
        let counts = EndpointCounts { requests: 1, bytes, ..EndpointCounts::default() };
        let endpoints = vec![EndpointSum { endpoint: "registry.test".into(), kind: EndpointKind::Registry, counts }];
        ImageCounters { key: key(name), transfers: Transfers { bytes, requests: 1 }, stats, endpoints }
    }

    fn counts(fetched_bytes: u64) -> MountCounts {
        MountCounts { fetched_bytes, requests: 1, failed_reads: 0 }
    }

    fn saved() -> SavedCounters {
        let mut saved =
            SavedCounters { images: vec![image("a", 1), image("a", 2), image("b", 4)], ..Default::default() };
        saved.host.bytes_demand = 7;
        saved.add_mount(Path::new("/a"), counts(3));
        saved
    }

    /// The next server after one that kept these counters.
    fn next(kept: &KeptCounters) -> (KeptCounters, Stats) {
        let file = kept.memory.lock().as_ref().expect("kept").file().try_clone().unwrap();
        KeptCounters::inherited(&Holding::inheriting([(STATE, file)]))
    }

    fn keep(kept: &KeptCounters, counted: SavedCounters) {
        kept.keep(&Holding::inheriting([]), || counted);
    }

    #[test]
    fn a_successor_gets_each_number_once() {
        let first = KeptCounters::default();
        keep(&first, saved());
        let (second, host) = next(&first);
        assert_eq!(host.bytes_demand, 7);
        let (transfers, stats, endpoints) = second.take_image(&key("a"));
        assert_eq!((endpoints.len(), endpoints[0].counts.bytes, endpoints[0].counts.requests), (1, 3, 2));
        assert_eq!(transfers, Transfers { bytes: 3, requests: 2 });
        assert_eq!(stats.iter().map(|stats| stats.bytes_demand).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(second.take_image(&key("a")), Default::default(), "another source of the image");
        assert_eq!(second.take_mount(Path::new("/a")), counts(3));
        assert_eq!(second.take_mount(Path::new("/a")), MountCounts::default(), "a later mount");
    }

    #[test]
    fn what_a_server_does_not_load_goes_on_to_its_successor() {
        let first = KeptCounters::default();
        keep(&first, saved());
        let (second, _) = next(&first);
        second.take_image(&key("a"));
        keep(&second, SavedCounters { images: vec![image("a", 9)], ..Default::default() });
        let (third, _) = next(&second);
        assert_eq!(third.take_image(&key("a")).0.bytes, 9);
        assert_eq!(third.take_image(&key("b")).0.bytes, 4);
        assert_eq!(third.take_mount(Path::new("/a")), counts(3), "it was not adopted yet");
        third.forget_mounts();
        keep(&third, SavedCounters::default());
        assert_eq!(next(&third).0.take_mount(Path::new("/a")), MountCounts::default());
    }

    #[test]
    fn loaded_images_are_the_last_to_be_left_out() {
        let first = KeptCounters::default();
        let images = (0..IMAGES).map(|number| image(&number.to_string(), 1)).collect();
        keep(&first, SavedCounters { images, ..Default::default() });
        let (second, _) = next(&first);
        keep(&second, SavedCounters { images: vec![image("new", 5)], ..Default::default() });
        let (third, _) = next(&second);
        assert_eq!(third.inherited.lock().images.len(), IMAGES);
        assert_eq!(third.take_image(&key("new")).0.bytes, 5);
    }

    #[test]
    fn nothing_is_kept_before_something_was_counted() {
        let first = KeptCounters::default();
        keep(&first, SavedCounters::default());
        assert!(first.memory.lock().is_none());
    }

    #[test]
    fn counters_of_another_version_are_ignored() {
        let first = KeptCounters::default();
        keep(&first, saved());
        let bytes = serde_json::to_vec(&serde_json::json!({"version": 2, "host": []})).unwrap();
        first.memory.lock().as_mut().unwrap().write(&bytes).unwrap();
        let (second, host) = next(&first);
        assert!(host == Stats::default() && second.inherited.lock().images.is_empty());
        keep(&second, saved());
        assert_eq!(next(&second).1.bytes_demand, 7);
    }
}
