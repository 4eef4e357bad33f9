//! The scrub: hashes all objects again, slowly, so that damage is found before an object is needed.
//!
//! Reads bypass the page cache: they evict nothing that running containers use, and check what the disk returns, not what
//! the kernel has cached. No lock of the store is held. An object that is evicted or replaced meanwhile is no finding.
//! The state file `scrub` records the progress of a run, so that the next server continues there.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tarpon_blob::LogLimit;
use tarpon_oci::{Digest, Hasher};

use crate::StoreError;
use crate::files::{self, BLOCK, io_error, read_record};
use crate::layout::SCRUB;
use crate::objects::{Condition, read_again};
use crate::sealed;
use crate::storage::{ALIGNMENT, Access, Metadata};
use crate::store::{Shared, Store};
use crate::walk::{Listed, ListedFile, fan_out};

/// Default rate in bytes per second: a tenth of a slow disk's read rate, and less than a tenth of a core. A store of the
/// default size (20 GiB) takes 21 minutes.
pub const SCRUB_RATE: NonZeroU64 = NonZeroU64::new(16 << 20).unwrap();

/// Time from the end of one run to the start of the next. Disks lose sectors over months; more frequent runs would wear
/// laptops' batteries more than they protect.
pub const SCRUB_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);

/// The same after a run without objects: the store is new, and will not stay empty.
const EMPTY_INTERVAL: Duration = Duration::from_secs(3600);

/// Cost of an object besides its bytes, in bytes of the rate: a seek of a hard disk takes as long as reading that much.
const OBJECT_COST: u64 = 64 << 10;

/// Shorter waits are accumulated: small objects would wake the processor for each of them.
const PAUSE: Duration = Duration::from_millis(50);

/// Interval of state writes. A killed server's reads since the last one are repeated.
const SAVE: Duration = Duration::from_secs(60);

/// Figures of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubRun {
    /// Start time, in seconds since 1970.
    pub began: u64,
    /// End time, in seconds since 1970; `None` if it has not ended.
    pub ended: Option<u64>,
    /// Hashed objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, objects that did not match their names. They were moved out.
    pub damaged: u64,
    /// Objects that the disk does not return. They were moved out, too.
    pub unreadable: u64,
    /// Objects that could not be checked for another reason, which is in the log.
    pub skipped: u64,
}

/// The recorded scrubs of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubRecord {
    /// The last complete run.
    pub last: Option<ScrubRun>,
    /// The unfinished run; the next server that scrubs continues it.
    pub under_way: Option<ScrubRun>,
}

/// Callbacks of a scrub.
pub trait Scrubber {
    /// Waits for this time, or until the scrub must stop. `false`: it must stop.
    fn pause(&self, time: Duration) -> bool;

    /// Reports progress; called after each object.
    fn progress(&self, run: &ScrubRun);

    /// Reports that damaged objects were moved out.
    fn found(&self);
}

/// The file `scrub`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    last: Option<ScrubRun>,
    under_way: Option<UnderWay>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct UnderWay {
    run: ScrubRun,
    /// The last checked object. Objects are checked in the order of their names.
    at: Option<Digest>,
}

impl Store {
    /// The recorded scrubs; empty if the state is damaged or missing.
    pub fn scrub_record(&self) -> ScrubRecord {
        let State { last, under_way } = State::read(&self.shared);
        ScrubRecord { last, under_way: under_way.map(|under_way| under_way.run) }
    }

    /// Time until the next run is due. A clock that was set back makes it due.
    pub fn scrub_due(&self) -> Duration {
        let State { last, under_way } = State::read(&self.shared);
        let last = last.filter(|_| under_way.is_none());
        let Some((run, ended)) = last.and_then(|run| Some((run, run.ended?))) else { return Duration::ZERO };
        let interval = if run.objects == 0 { EMPTY_INTERVAL } else { SCRUB_INTERVAL };
        let ended = UNIX_EPOCH + Duration::from_secs(ended);
        interval.saturating_sub(self.shared.clock.wall().duration_since(ended).unwrap_or(interval))
    }

    /// Hashes all objects, at most `rate` bytes per second; continues a stopped run, if any. `None`: it was stopped.
    pub fn scrub(&self, rate: NonZeroU64, by: &dyn Scrubber) -> Result<Option<ScrubRun>, StoreError> {
        let shared = &*self.shared;
        let State { last, under_way } = State::read(shared);
        let parts = self.whole().parts()?;
        let begun = || UnderWay { run: ScrubRun { began: self.seconds(), ..ScrubRun::default() }, at: None };
        let mut walk = Walk {
            shared,
            parts: &parts,
            pace: Pace { shared, rate, by, debt: Cell::default() },
            log: LogLimit::new(),
            last,
            under_way: under_way.unwrap_or_else(begun),
            saved: Cell::new(shared.clock.steady()),
            buffer: Buffer::new(),
        };
        let walked = walk.run();
        shared.hashed.flush();
        if !matches!(walked, Ok(true)) {
            walk.save()?;
            return walked.map(|_stopped| None);
        }
        let run = ScrubRun { ended: Some(self.seconds()), ..walk.under_way.run };
        State { last: Some(run), under_way: None }.write(shared)?;
        Ok(Some(run))
    }

    fn seconds(&self) -> u64 {
        self.shared.clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }
}

impl State {
    fn read(shared: &Shared) -> Self {
        let text = read_record(shared.storage(), &shared.layout.name(SCRUB)).ok().flatten();
        text.and_then(|text| sealed::unseal(&text).ok()).unwrap_or_default()
    }

    fn write(&self, shared: &Shared) -> Result<(), StoreError> {
        let text = sealed::seal(self).map_err(|error| io_error("writing", &shared.layout.name(SCRUB))(error.into()))?;
        files::replace(shared.storage(), shared.layout.root(), SCRUB, &text)
    }
}

/// A run through all objects.
struct Walk<'a> {
    shared: &'a Shared,
    /// All parts of the store, whose objects are checked together.
    parts: &'a [Store],
    pace: Pace<'a>,
    log: LogLimit,
    last: Option<ScrubRun>,
    under_way: UnderWay,
    /// Time of the last state write, by the steady clock.
    saved: Cell<Duration>,
    buffer: Buffer,
}

impl Walk<'_> {
    /// Runs to the end. `false`: it was stopped.
    fn run(&mut self) -> Result<bool, StoreError> {
        let first = self.under_way.at.map_or(0, |at| at.as_bytes().first().copied().unwrap_or_default());
        for (_, folder) in fan_out().skip(first.into()) {
            let before = self.bad();
            let walked = self.folder(&folder);
            if self.bad() > before {
                self.pace.by.found();
            }
            if !walked? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn bad(&self) -> u64 {
        self.under_way.run.damaged + self.under_way.run.unreadable
    }

    fn folder(&mut self, folder: &str) -> Result<bool, StoreError> {
        let mut objects = Vec::new();
        for part in self.parts {
            let Listed { found, unexamined } = part.shared.objects_in("objects", folder)?;
            objects.extend(found.into_iter().map(|found| (&part.shared, found.object, Ok(found))));
            objects.extend(unexamined.into_iter().map(|file| (&part.shared, file.object, Err(file))));
        }
        // Two tenants may have the same object. If a run stopped between the two, the second one waits for the next run.
        let at = self.under_way.at;
        objects.retain(|(_, object, _)| at.is_none_or(|at| *object > at));
        objects.sort_by_key(|(_, object, _)| *object);
        for (shared, object, listed) in objects {
            let (size, looked) = match listed {
                Ok(found) => (found.metadata.size, self.object(shared, &found)),
                Err(unexamined) => (0, Err(unexamined.into_error())),
            };
            let run = &mut self.under_way.run;
            run.objects += 1;
            run.bytes += size;
            match looked {
                Ok(None) => {
                    (run.objects, run.bytes) = (run.objects - 1, run.bytes - size);
                    return Ok(false);
                }
                Ok(Some(Condition::Sound)) => {}
                Ok(Some(Condition::Damaged)) => run.damaged += 1,
                Ok(Some(Condition::Unreadable(_))) => run.unreadable += 1,
                // An error of one object: all others are still checked.
                Err(error) => self.skip(&object, &error),
            }
            self.under_way.at = Some(object);
            self.pace.by.progress(&self.under_way.run);
            if self.shared.clock.steady().saturating_sub(self.saved.get()) >= SAVE {
                self.save()?;
            }
        }
        Ok(true)
    }

    fn skip(&mut self, object: &Digest, error: &StoreError) {
        self.under_way.run.skipped += 1;
        if let Some(left_out) = self.log.admit() {
            tracing::warn!(%object, %error, "the scrub skips an object{left_out}");
        }
    }

    fn save(&self) -> Result<(), StoreError> {
        self.saved.set(self.shared.clock.steady());
        State { last: self.last, under_way: Some(self.under_way) }.write(self.shared)
    }

    /// Hashes one object, and moves it out if it is damaged. `None`: the scrub must stop.
    fn object(&mut self, shared: &Shared, found: &ListedFile) -> Result<Option<Condition>, StoreError> {
        let ListedFile { object, path, metadata } = found;
        if !self.pace.keep(OBJECT_COST, Duration::ZERO) {
            return Ok(None);
        }
        let (before, is_notable, hashed) = match read_again(|| self.open(path, Access::ReadAside)) {
            // Evicted since the folder was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Condition::Sound)),
            Err(error) => (*metadata, false, Err(error)),
            Ok((file, before)) => {
                let is_notable = shared.is_notable(&before, &file).is_some();
                (before, is_notable, read_again(|| self.hash(&file, before.size)))
            }
        };
        let hashed = match hashed {
            // The file system supports no reads past the page cache, or not of this many bytes.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.open(path, Access::Read).and_then(|(file, now)| match now.is_same_file(&before) {
                    true => read_again(|| self.hash(&file, before.size)),
                    false => Err(error),
                })
            }
            outcome => outcome,
        };
        let Some(hashed) = hashed.transpose() else { return Ok(None) };
        let condition = shared.condition_after(object, is_notable.then_some(&before), hashed)?;
        shared.settled(object, path, &before, condition).map(Some)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<(File, Metadata)> {
        let storage = self.shared.storage();
        let file = storage.open(path, access)?;
        let metadata = storage.file_metadata(&file)?;
        Ok((file, metadata))
    }

    /// Hashes a file. `None`: the scrub must stop.
    fn hash(&mut self, file: &File, size: u64) -> io::Result<Option<Hasher>> {
        let (storage, pace) = (self.shared.storage(), &self.pace);
        let buffer = self.buffer.aligned();
        let mut hasher = Hasher::new();
        let mut offset = 0;
        while offset < size {
            let began = pace.shared.clock.steady();
            // One read only: the rest of a block after a short read is not aligned.
            let count = match storage.read_at(file, buffer, offset) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hasher.update(buffer.get(..count).unwrap_or_default());
            offset += count as u64;
            if !pace.keep(count as u64, pace.shared.clock.steady().saturating_sub(began)) {
                return Ok(None);
            }
        }
        Ok(Some(hasher))
    }
}

/// Limits a run to its rate. Delays of a slow disk are not made up for: that would be a burst.
struct Pace<'a> {
    shared: &'a Shared,
    rate: NonZeroU64,
    by: &'a dyn Scrubber,
    /// Time by which the run is ahead of its rate and has not waited yet.
    debt: Cell<Duration>,
}

impl Pace<'_> {
    /// Waits as needed after `bytes` were read in the time `took`. `false`: the scrub must stop.
    fn keep(&self, bytes: u64, took: Duration) -> bool {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.get());
        let due = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let debt = self.debt.get().saturating_add(due).saturating_sub(took);
        let pause = if debt < PAUSE { Duration::ZERO } else { debt };
        self.debt.set(debt.saturating_sub(pause));
        self.by.pause(pause)
    }
}

/// Buffer for reads past the page cache.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new() -> Self {
        Self(vec![0; BLOCK + ALIGNMENT])
    }

    fn aligned(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        // Never out of bounds: there is room for any alignment.
        self.0.get_mut(start..start.saturating_add(BLOCK)).unwrap_or_default()
    }
}
