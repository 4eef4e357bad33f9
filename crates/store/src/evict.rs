//! Eviction: which objects are removed, and which must stay.
//!
//! Never removed: objects of a mounted image, and their damaged files until they are mended; objects that were stored or
//! relied upon since the oldest running import began. Removed first: objects that no image refers to. Then: the least
//! recently used images, each with the objects that no later used image refers to. A record is removed before its
//! objects, so that a crash leaves objects without an image, which are the first to be removed next time.
//!
//! Memory: at a time, the object ids of all images that begin with the same byte. Time: two walks over the store.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tarpon_oci::Digest;

use crate::StoreError;
use crate::budget::{on_disk, signed};
use crate::file_lock::FileLock;
use crate::files::{self, io_error};
use crate::health::PROBE_INTERVAL;
use crate::images::last_used;
use crate::locks;
use crate::record::{ImageRecord, Part};
use crate::storage::{Access, Metadata};
use crate::store::{Shared, Store};
use crate::walk::{ListedFile, fan_out};

/// What was evicted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Images whose records were removed.
    pub images: Vec<Digest>,
    /// Objects, complete and partial.
    pub objects: u64,
    /// Bytes on the disk, of objects and records.
    pub bytes: u64,
}

/// Extra amount that an eviction frees, so that not every write evicts again: a tenth of the budget, …
const SLACK_DIVISOR: u64 = 10;
/// … but no more than this while a writer waits. [`Store::maintain`] frees the rest before any writer has to wait.
const SLACK_BYTES: u64 = 256 << 20;

/// Longest wait of a writer for an eviction by another process: the writer can continue without keeping the object.
const EVICTION_WAIT: Duration = Duration::from_secs(10);

/// Extra bytes to free, for a budget of `limit` bytes.
pub(crate) fn slack(limit: u64) -> u64 {
    limit / SLACK_DIVISOR
}

impl Shared {
    /// Waits until `wanted` more bytes may be written; [`StoreError::Full`] if they cannot.
    pub(crate) fn make_room(self: &Arc<Self>, wanted: u64) -> Result<(), StoreError> {
        if !self.health.may_write() {
            return Err(StoreError::Full);
        }
        if self.budget.lacking(wanted) == 0 {
            return Ok(());
        }
        // One thread evicts; the others wait here and then find room.
        let mut last = self.eviction.lock();
        if self.clock.steady() < last.fruitless_until {
            return Err(StoreError::Full);
        }
        let lock =
            self.locks().lock_within(&self.eviction_lock(), EVICTION_WAIT).map_err(|error| self.refuse(error))?;
        let Some(_lock) = lock else {
            // Threads that waited for this one do not each wait as long again, one after the other.
            last.fruitless_until = self.clock.steady() + PROBE_INTERVAL;
            tracing::warn!("another process makes room in the store for very long; nothing is kept meanwhile");
            return Err(StoreError::Full);
        };
        self.budget.refresh();
        let lacking = self.budget.lacking(wanted);
        if lacking == 0 {
            return Ok(());
        }
        let goal = lacking.saturating_add(slack(self.budget.limit()).min(SLACK_BYTES));
        let evicted = Store { shared: Arc::clone(self) }.evict_locked(goal, false);
        let evicted = evicted.inspect_err(|error| tracing::warn!(%error, "making room failed"));
        self.budget.refresh();
        if self.budget.lacking(wanted) == 0 {
            return Ok(());
        }
        tracing::warn!(evicted = evicted.unwrap_or_default().bytes, "the store is full and everything in it is in use");
        last.fruitless_until = self.clock.steady() + PROBE_INTERVAL;
        Err(StoreError::Full)
    }

    /// Waits until no eviction runs that may have missed what the caller just recorded, within a limit. After the limit,
    /// the caller may lose objects and have to fetch them again.
    pub(crate) fn wait_for_eviction(&self) -> Result<(), StoreError> {
        if self.locks().lock_within(&self.eviction_lock(), EVICTION_WAIT)?.is_none() {
            tracing::warn!("another process makes room in the store for very long; not waiting for it");
        }
        Ok(())
    }

    /// Excludes evictions and record changes by others. [`StoreError::Busy`] if that takes longer than `timeout`.
    pub(crate) fn lock_eviction(&self, timeout: Duration, doing: &str) -> Result<FileLock, StoreError> {
        self.locks().lock(&self.eviction_lock(), timeout, doing)
    }

    pub(crate) fn eviction_lock(&self) -> PathBuf {
        self.layout.name("run").join("eviction.lock")
    }
}

/// Order of eviction: an object has the rank of the highest-ranked image that refers to it.
type Rank = usize;
/// Rank of images that must stay.
const PROTECTED: Rank = Rank::MAX;

struct Candidate {
    manifest: Digest,
    /// Index of the part of the store that contains it.
    part: usize,
    rank: Rank,
    /// Size of the record itself in bytes.
    bytes: u64,
    list: ObjectList,
}

/// Settings of one walk.
struct Walk<'a> {
    candidates: &'a mut [Candidate],
    /// Objects of images up to this rank are removed. `None`: only those that no image refers to.
    up_to: Option<Rank>,
    /// Files that changed at this time or later stay.
    pinned_since: Option<SystemTime>,
    goal: u64,
    evicted: &'a mut Evicted,
    /// Evictable bytes by rank, collected during the walk.
    by_rank: Vec<u64>,
    /// Bytes that stay.
    kept: u64,
}

impl Store {
    /// Frees `goal` bytes if possible. `all_unreferenced`: also removes unreferenced objects that the goal does not
    /// require. The eviction lock must be held.
    pub(crate) fn evict_locked(&self, goal: u64, all_unreferenced: bool) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        let parts = self.whole().parts()?;
        self.remove_leftovers(&parts, &mut evicted)?;
        let Some(mut candidates) = candidates(&parts)? else { return Ok(evicted) };
        for (number, part) in parts.iter().enumerate() {
            let own = candidates.iter_mut().filter(|candidate| candidate.part == number);
            evicted.bytes += part.remove_damaged(&part.damaged_and_mounted(own)?)?;
            part.remove_unused_layer_indexes(&mut evicted)?;
        }
        let pinned_since = self.shared.oldest_pin()?;
        let first_goal = if all_unreferenced { u64::MAX } else { goal };
        let mut walk = Walk::new(&mut candidates, &mut evicted, pinned_since, first_goal);
        walk.run(&parts)?;
        let by_rank = walk.by_rank;
        if evicted.bytes < goal
            && let Some(up_to) = last_rank_needed(&by_rank, goal - evicted.bytes)
        {
            for candidate in candidates.iter().filter(|candidate| candidate.rank <= up_to) {
                if let Some(part) = parts.get(candidate.part) {
                    evicted.bytes += part.drop_image(&candidate.manifest)?;
                    evicted.images.push(candidate.manifest);
                }
            }
            let mut walk = Walk::new(&mut candidates, &mut evicted, pinned_since, u64::MAX);
            walk.up_to = Some(up_to);
            walk.run(&parts)?;
        }
        tracing::info!(bytes = evicted.bytes, objects = evicted.objects, images = evicted.images.len(), "evicted");
        Ok(evicted)
    }

    /// Removes the objects that images refer to from `objects`. Returns `false` if a mounted image's list is unreadable.
    pub(crate) fn remove_used_from(&self, objects: &mut BTreeSet<Digest>) -> Result<bool, StoreError> {
        let Some(mut candidates) = candidates(std::slice::from_ref(self))? else { return Ok(false) };
        for candidate in &mut candidates {
            candidate.list.take(&self.shared, u8::MAX, |object| {
                objects.remove(&object);
            })?;
        }
        Ok(true)
    }

    /// The damaged objects of mounted images: the mend still needs their files.
    fn damaged_and_mounted<'c>(
        &self,
        candidates: impl Iterator<Item = &'c mut Candidate>,
    ) -> Result<HashSet<Digest>, StoreError> {
        let damaged: HashSet<Digest> = self.damaged_objects()?.iter().map(|damaged| damaged.object).collect();
        let mut mounted = HashSet::new();
        if damaged.is_empty() {
            return Ok(mounted);
        }
        for candidate in candidates.filter(|candidate| candidate.rank == PROTECTED) {
            candidate.list.take(&self.shared, u8::MAX, |object| {
                if damaged.contains(&object) {
                    mounted.insert(object);
                }
            })?;
        }
        Ok(mounted)
    }

    /// Removes stores of other versions, and partial layers.
    fn remove_leftovers(&self, parts: &[Self], evicted: &mut Evicted) -> Result<(), StoreError> {
        let path = self.shared.layout.name("set-aside");
        let bytes = self.shared.tree_size(&path)?;
        files::remove_all(self.shared.storage(), &path)?;
        evicted.bytes += bytes;
        parts.iter().try_for_each(|part| part.remove_layer_parts(evicted))
    }
}

/// All images of these parts in order of eviction. `None` if a mounted image's list of objects is unreadable: then
/// nothing may be removed.
fn candidates(parts: &[Store]) -> Result<Option<Vec<Candidate>>, StoreError> {
    let mounts = parts.first().map(Store::all_mounts).transpose()?.unwrap_or_default();
    let mounted: HashSet<_> = mounts.iter().map(|mount| mount.record.content()).collect();
    let mut images = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let used = |record: &ImageRecord| last_used(&part.shared, &record.manifest);
        images.extend(part.own_images()?.into_iter().map(|record| (used(&record), record, number)));
    }
    images.sort_by_key(|(used, record, number)| (*used, record.manifest, *number));
    let mut candidates = Vec::with_capacity(images.len());
    let mut known = HashSet::new();
    for (rank, (_, record, number)) in images.into_iter().enumerate() {
        let Some(part) = parts.get(number) else { continue };
        let (shared, manifest) = (&part.shared, record.manifest);
        let content = part.content(&manifest);
        let folder = shared.layout.image(&manifest);
        let objects = record.part(Part::Objects).copied();
        let sound = objects.map(|part| shared.hash_part(&folder, &part)).transpose()?.flatten().is_some();
        if sound {
            let list = ObjectList::new(folder.join(Part::Objects.file_name()));
            let rank = if mounted.contains(&content) { PROTECTED } else { rank };
            let bytes = shared.folder_size(&folder)?;
            candidates.push(Candidate { manifest, part: number, rank, bytes, list });
            known.insert(content);
        } else if !mounted.contains(&content) {
            part.drop_image(&manifest)?;
        }
    }
    // For a single tenant, mounts of others are irrelevant.
    let alone = parts.first().and_then(|part| part.shared.layout.tenant().copied());
    let is_meant = |tenant: Option<Digest>| alone.is_none() || tenant == alone;
    let unknown = mounts
        .iter()
        .find(|mount| mount.live && is_meant(mount.record.tenant) && !known.contains(&mount.record.content()));
    if let Some(mount) = unknown {
        tracing::warn!(image = %mount.record.image, "a mounted image has no sound record: nothing is evicted");
        return Ok(None);
    }
    Ok(Some(candidates))
}

/// The lowest rank up to which images must be removed to free `goal` bytes; the highest evictable one if that is not enough.
fn last_rank_needed(by_rank: &[u64], goal: u64) -> Option<Rank> {
    let mut sum: u64 = 0;
    for (rank, bytes) in by_rank.iter().enumerate() {
        sum = sum.saturating_add(*bytes);
        if sum >= goal {
            return Some(rank);
        }
    }
    by_rank.iter().rposition(|&bytes| bytes > 0)
}

impl<'a> Walk<'a> {
    fn new(
        candidates: &'a mut [Candidate],
        evicted: &'a mut Evicted,
        pinned_since: Option<SystemTime>,
        goal: u64,
    ) -> Self {
        let mut by_rank = Vec::new();
        for candidate in candidates.iter().filter(|candidate| candidate.rank != PROTECTED) {
            by_rank.resize(by_rank.len().max(candidate.rank + 1), 0);
            by_rank[candidate.rank] = candidate.bytes;
        }
        Self { candidates, up_to: None, pinned_since, goal, evicted, by_rank, kept: 0 }
    }

    fn run(&mut self, parts: &[Store]) -> Result<(), StoreError> {
        self.candidates.iter_mut().for_each(|candidate| candidate.list.rewind());
        parts.iter().enumerate().try_for_each(|(number, part)| self.run_part(number, &part.shared))
    }

    fn run_part(&mut self, number: usize, shared: &Shared) -> Result<(), StoreError> {
        let pinned_since = self.pinned_since;
        for (first, folder) in fan_out() {
            let ranks = self.ranks(number, shared, first)?;
            let complete = shared.examined_in("objects", &folder)?;
            let names: HashSet<Digest> = complete.iter().map(|found| found.object).collect();
            for found in complete {
                let rank = ranks.get(&found.object).copied();
                let bytes = on_disk(found.metadata.size);
                self.remove_if_due(shared, &found, rank, bytes, |found| remove_unclaimed(shared, found, pinned_since))?;
            }
            for found in shared.examined_in("partial", &folder)? {
                // Useless once the object is complete.
                let rank = ranks.get(&found.object).copied().filter(|_| !names.contains(&found.object));
                let bytes = found.metadata.allocated;
                self.remove_if_due(shared, &found, rank, bytes, |found| remove_unused(shared, found))?;
            }
        }
        Ok(())
    }

    fn remove_if_due(
        &mut self,
        shared: &Shared,
        found: &ListedFile,
        rank: Option<Rank>,
        bytes: u64,
        remove: impl FnOnce(&ListedFile) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let pinned = is_pinned(&found.metadata, self.pinned_since);
        let goes = match rank {
            _ if pinned || rank == Some(PROTECTED) => false,
            None => self.evicted.bytes < self.goal,
            Some(rank) => self.up_to.is_some_and(|up_to| rank <= up_to),
        };
        if goes && remove(found)? {
            self.evicted.objects += 1;
            self.evicted.bytes += bytes;
            shared.budget.add(-signed(bytes));
            return Ok(());
        }
        self.kept += bytes;
        if let Some(sum) = rank.filter(|_| !pinned).and_then(|rank| self.by_rank.get_mut(rank)) {
            *sum += bytes;
        }
        Ok(())
    }

    /// The rank of every object of this part whose id begins with `first`.
    fn ranks(&mut self, number: usize, shared: &Shared, first: u8) -> Result<HashMap<Digest, Rank>, StoreError> {
        let mut ranks = HashMap::new();
        for candidate in self.candidates.iter_mut().filter(|candidate| candidate.part == number) {
            // On the second walk, evicted images have no record any more.
            if self.up_to.is_some_and(|up_to| candidate.rank <= up_to) {
                continue;
            }
            let rank = candidate.rank;
            candidate.list.take(shared, first, |object| {
                ranks.entry(object).and_modify(|known: &mut Rank| *known = rank.max(*known)).or_insert(rank);
            })?;
        }
        Ok(ranks)
    }
}

fn is_pinned(metadata: &Metadata, since: Option<SystemTime>) -> bool {
    since.is_some_and(|since| metadata.modified >= since)
}

/// Removes a complete object, unless it was claimed since it was listed: see [`Shared::claim_existing`].
fn remove_unclaimed(shared: &Shared, found: &ListedFile, pinned_since: Option<SystemTime>) -> Result<bool, StoreError> {
    let Ok(file) = shared.storage.open(&found.path, Access::Read) else { return Ok(false) };
    let held = locks::hold(shared.storage(), file).map_err(io_error("locking", &found.path))?;
    let Some(held) = held else { return Ok(false) };
    let metadata = shared.storage.file_metadata(&held).map_err(io_error("examining", &found.path))?;
    // A damaged object that was moved out meanwhile may have been replaced by a sound one.
    if is_pinned(&metadata, pinned_since) || !shared.leads_to(&found.path, &metadata)? {
        return Ok(false);
    }
    files::unlink(shared.storage(), &found.path).map(|()| true)
}

/// Removes a partial object that is not open.
fn remove_unused(shared: &Shared, found: &ListedFile) -> Result<bool, StoreError> {
    let Ok(file) = shared.storage.open(&found.path, Access::Read) else { return Ok(false) };
    let held = locks::hold(shared.storage(), file).map_err(io_error("locking", &found.path))?;
    let Some(_held) = held else { return Ok(false) };
    files::unlink(shared.storage(), &found.path).map(|()| true)
}

/// The sorted object ids of an image, read in pieces. The file is opened for each piece: there may be more images than a
/// process may have open files.
pub(crate) struct ObjectList {
    path: PathBuf,
    offset: u64,
}

const ID: usize = 32;
/// Ids per read.
const IDS: usize = 256;

impl ObjectList {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    fn rewind(&mut self) {
        self.offset = 0;
    }

    /// Passes the ids up to those that begin with `first` to `each`.
    pub(crate) fn take(&mut self, shared: &Shared, first: u8, mut each: impl FnMut(Digest)) -> Result<(), StoreError> {
        let file: File = shared.storage.open(&self.path, Access::Read).map_err(io_error("opening", &self.path))?;
        let mut buffer = [0; ID * IDS];
        loop {
            let count = files::read_full_at(shared.storage(), &file, &mut buffer, self.offset);
            let count = count.map_err(io_error("reading", &self.path))?;
            let (ids, _) = buffer.get(..count).unwrap_or_default().as_chunks::<ID>();
            for id in ids {
                if id[0] > first {
                    return Ok(());
                }
                each(Digest::from_bytes(*id));
                self.offset += ID as u64;
            }
            if count < buffer.len() {
                return Ok(());
            }
        }
    }
}
