//! A disk that fails or stops on demand.
//!
//! It works on a real folder, so a later [`Disk`] finds what it leaves there. Operations that can leave a trace or fail
//! are counted; a fault hits the *n*-th of them. A test runs a workload once to count them, and then once for each of
//! them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tarpon_store::storage::{Access, Metadata, Space, Storage};
use tarpon_store::{Clock, Disk};

mod power;

pub use power::Left;
use power::Unsynced;

/// The effect of a fault on its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Only this operation fails, with this error number.
    Once(i32),
    /// It and all later writing operations fail with this error number: a full or read-only disk.
    FromNowOn(i32),
    /// It and all later operations fail with this error number, also those that change nothing: a disk that is gone.
    EverFrom(i32),
    /// It and all later operations that open a file or list a folder fail with this error number; others are not
    /// affected.
    OpensFrom(i32),
    /// A read or write is interrupted before it starts. Other operations are not affected.
    Interrupted,
    /// A read or write transfers half of the bytes (at least one). Other operations are not affected.
    Short,
    /// It is not executed, nor any later one: the process is dead. Its locks and unnamed files are lost. Only operations
    /// that change something are counted: stopping before any other is the same as stopping before the next change.
    Stop,
    /// Half of a write is executed, then as [`Fault::Stop`].
    Torn,
}

/// `ENOSPC`
pub const ENOSPC: i32 = 28;
/// `EIO`
pub const EIO: i32 = 5;
/// `EROFS`
pub const EROFS: i32 = 30;
/// `EMFILE`
pub const EMFILE: i32 = 24;
/// `EDQUOT`
pub const EDQUOT: i32 = 122;

/// Callback before an operation on a path; its error replaces the operation.
type Hook = Box<dyn Fn(&str, &Path) -> io::Result<()> + Send + Sync>;

/// Advances a clock by the time that an operation takes.
type Delay = Box<dyn Fn() + Send + Sync>;

/// The real disk, with one fault.
pub struct FaultyDisk {
    hook: Option<Hook>,
    state: Mutex<State>,
    boot: String,
    ticks: Option<Arc<Ticks>>,
    /// Called before each operation.
    delay: Option<Delay>,
    /// A sync does nothing, and reports success.
    lies: bool,
    keeps_log: bool,
}

/// A kernel clock that stands still, as between two ticks, and the change times that files get from it. Also a clock.
#[derive(Debug)]
pub struct Ticks(Mutex<Ticking>);

#[derive(Debug)]
struct Ticking {
    now: Duration,
    /// By inode: the real time of its last change, and the assigned one.
    changes: HashMap<u64, ((i64, i64), Duration)>,
}

impl Default for Ticks {
    fn default() -> Self {
        Self(Mutex::new(Ticking { now: Duration::from_secs(1_700_000_000), changes: HashMap::new() }))
    }
}

impl Ticks {
    /// Advances the clock by more than a tick.
    pub fn tick(&self) {
        self.ticking().now += Duration::from_secs(1);
    }

    fn ticking(&self) -> std::sync::MutexGuard<'_, Ticking> {
        self.0.lock().expect("no test panics while it holds the ticks")
    }

    fn coarse(&self, metadata: Metadata) -> Metadata {
        let mut ticking = self.ticking();
        let now = ticking.now;
        let change = ticking.changes.entry(metadata.inode).or_insert((metadata.changed, now));
        if change.0 != metadata.changed {
            *change = (metadata.changed, now);
        }
        Metadata { changed: (change.1.as_secs().cast_signed(), change.1.subsec_nanos().into()), ..metadata }
    }
}

impl Clock for Ticks {
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + self.ticking().now
    }

    fn steady(&self) -> Duration {
        self.ticking().now
    }
}

#[derive(Debug, Default)]
struct State {
    fault: Option<(u64, Fault)>,
    count: u64,
    changes: u64,
    dead: bool,
    log: Vec<String>,
    unsynced: Unsynced,
}

/// The treatment of an operation.
enum Verdict {
    Do,
    Halve { then_die: bool },
}

impl fmt::Debug for FaultyDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyDisk").field("state", &self.state).finish_non_exhaustive()
    }
}

impl FaultyDisk {
    /// A disk with `fault` at operation number `at` (from 1).
    pub fn new(at: u64, fault: Fault) -> Self {
        let disk = Self::healthy();
        disk.state().fault = Some((at, fault));
        disk
    }

    /// A disk without a fault, to count operations.
    pub fn healthy() -> Self {
        let boot = "first boot".to_owned();
        Self { hook: None, state: Mutex::default(), boot, ticks: None, delay: None, lies: false, keeps_log: true }
    }

    /// A disk that calls `hook` before each `open`, `read`, `rename`, `unlink` and `metadata` (of a path), with the
    /// operation's name and path (for a rename: the old one). An error of the hook becomes the operation's.
    pub fn hooked(hook: impl Fn(&str, &Path) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { hook: Some(Box::new(hook)), ..Self::healthy() }
    }

    fn hook(&self, what: &str, path: &Path) -> io::Result<()> {
        self.hook.as_ref().map_or(Ok(()), |hook| hook(what, path))
    }

    /// The same disk after a reboot of the kernel.
    #[must_use]
    pub fn booted_as(mut self, boot: &str) -> Self {
        self.boot = boot.to_owned();
        self
    }

    /// The same disk under a kernel that gives changes the time of its last tick.
    #[must_use]
    pub fn with_ticks(mut self, ticks: Arc<Ticks>) -> Self {
        self.ticks = Some(ticks);
        self
    }

    /// The same disk, slow: `delay` is called before each operation, and advances a clock.
    #[must_use]
    pub fn with_delay(mut self, delay: impl Fn() + Send + Sync + 'static) -> Self {
        self.delay = Some(Box::new(delay));
        self
    }

    /// The same disk, which reports syncs that it did not do.
    #[must_use]
    pub fn with_lies_about_syncs(mut self) -> Self {
        self.lies = true;
        self
    }

    /// The same disk, which can lose the names of `folder`.
    #[must_use]
    pub fn with_names_of(self, folder: &Path) -> Self {
        self.state().unsynced.watch(folder);
        self
    }

    /// The same disk, which keeps no log of its operations.
    #[must_use]
    pub fn without_log(mut self) -> Self {
        self.keeps_log = false;
        self
    }

    /// From now on the disk has no fault.
    pub fn end_fault(&self) {
        self.state().fault = None;
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.state().count
    }

    /// Number of operations so far that change something on the disk.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Descriptions of the operations so far.
    pub fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    /// Applies a power cut to `folder` after all operations of this disk: names are kept, and the content of files
    /// written since the last sync is lost.
    pub fn lose_unsynced(&self, folder: &Path, left: Left) {
        self.state().unsynced.lose_content(folder, left).expect("tests run as the owner of their files");
    }

    /// The folder of [`FaultyDisk::with_names_of`] loses the changes of its names since its last sync.
    pub fn lose_names(&self) {
        self.state().unsynced.lose_names().expect("tests run as the owner of their files");
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the state")
    }

    /// Counts an operation, and returns how to treat it.
    fn change(&self, what: &str, path: Option<&Path>) -> io::Result<Verdict> {
        if let Some(delay) = &self.delay {
            delay();
        }
        let mut state = self.state();
        if state.dead {
            return Err(io::Error::other("the process is dead"));
        }
        state.count += 1;
        let changes = !what.starts_with("read") && !what.starts_with("look");
        state.changes += u64::from(changes);
        if self.keeps_log {
            let name = path.map(|path| path.display().to_string()).unwrap_or_default();
            state.log.push(format!("{what} {name}"));
        }
        let Some((at, fault)) = state.fault else { return Ok(Verdict::Do) };
        let opens = what.contains("open") || what == "look: list";
        match fault {
            Fault::Once(error) if state.count == at => Err(io::Error::from_raw_os_error(error)),
            Fault::FromNowOn(error) if state.count >= at && changes => Err(io::Error::from_raw_os_error(error)),
            Fault::EverFrom(error) if state.count >= at => Err(io::Error::from_raw_os_error(error)),
            Fault::OpensFrom(error) if state.count >= at && opens => Err(io::Error::from_raw_os_error(error)),
            Fault::Interrupted if state.count == at && matches!(what, "read" | "write") => {
                Err(io::ErrorKind::Interrupted.into())
            }
            Fault::Short if state.count == at => Ok(Verdict::Halve { then_die: false }),
            Fault::Torn if state.changes == at && what == "write" => Ok(Verdict::Halve { then_die: true }),
            Fault::Stop | Fault::Torn if changes && state.changes >= at => {
                state.dead = true;
                Err(io::Error::other("the process stops here"))
            }
            _ => Ok(Verdict::Do),
        }
    }

    fn timed(&self, metadata: Metadata) -> Metadata {
        match &self.ticks {
            Some(ticks) => ticks.coarse(metadata),
            None => metadata,
        }
    }

    /// Whether an operation that may create the file will do so.
    fn is_new(path: &Path) -> bool {
        fs::symlink_metadata(path).is_err()
    }
}

fn path_of(file: &File) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl Storage for FaultyDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<File> {
        self.hook("open", path)?;
        match access {
            Access::Read | Access::ReadAside => self.change("read: open", Some(path))?,
            _ => self.change("open", Some(path))?,
        };
        let creates = !matches!(access, Access::Read | Access::ReadAside | Access::ReadWrite) && Self::is_new(path);
        let file = Disk.open(path, access)?;
        if creates {
            self.state().unsynced.created(path);
        }
        Ok(file)
    }

    fn open_unnamed(&self, directory: &Path, mode: u32) -> io::Result<File> {
        self.change("open unnamed", Some(directory))?;
        Disk.open_unnamed(directory, mode)
    }

    fn link_file(&self, file: &File, to: &Path) -> io::Result<()> {
        self.change("link", Some(to))?;
        Disk.link_file(file, to)?;
        self.state().unsynced.created(to);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change("link", Some(to))?;
        Disk.link(from, to)?;
        self.state().unsynced.created(to);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.hook("rename", from)?;
        self.change("rename", Some(to))?;
        self.state().unsynced.renaming(from, to);
        Disk.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.hook("unlink", path)?;
        self.change("unlink", Some(path))?;
        self.state().unsynced.removing(path);
        Disk.unlink(path)
    }

    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.change("create folder", Some(path))?;
        Disk.create_dir(path, mode)?;
        self.state().unsynced.created(path);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.change("remove folder", Some(path))?;
        Disk.remove_dir(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.change("look: list", Some(directory))?;
        Disk.list(directory)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.hook("metadata", path)?;
        self.change("look: metadata", Some(path))?;
        Disk.metadata(path).map(|metadata| self.timed(metadata))
    }

    fn metadata_in(&self, directory: &Path, names: &[String]) -> io::Result<Vec<Option<Metadata>>> {
        let mut absent = vec![false; names.len()];
        if self.hook.is_some() {
            for (name, is_absent) in names.iter().zip(&mut absent) {
                match self.hook("metadata", &directory.join(name)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => *is_absent = true,
                    outcome => outcome?,
                }
            }
        }
        self.change("look: metadata", Some(directory))?;
        let found = Disk.metadata_in(directory, names)?.into_iter().zip(absent);
        Ok(found.map(|(metadata, is_absent)| metadata.filter(|_| !is_absent).map(|found| self.timed(found))).collect())
    }

    fn file_metadata(&self, file: &File) -> io::Result<Metadata> {
        self.change("look: metadata", None)?;
        Disk.file_metadata(file).map(|metadata| self.timed(metadata))
    }

    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.hook.is_some() {
            self.hook("read", &path_of(file)?)?;
        }
        let length = match self.change("read", None)? {
            Verdict::Do => buffer.len(),
            Verdict::Halve { .. } => buffer.len().div_ceil(2),
        };
        Disk.read_at(file, buffer.get_mut(..length).unwrap_or_default(), offset)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let verdict = self.change("write", None)?;
        self.state().unsynced.wrote(file.metadata()?.ino());
        match verdict {
            Verdict::Do => Disk.write_at(file, bytes, offset),
            Verdict::Halve { then_die } => {
                let half = bytes.len().div_ceil(2);
                let count = Disk.write_at(file, bytes.get(..half).unwrap_or(bytes), offset);
                self.state().dead = then_die;
                if then_die { Err(io::Error::other("the process stops here")) } else { count }
            }
        }
    }

    fn set_len(&self, file: &File, size: u64) -> io::Result<()> {
        self.change("set length", None)?;
        Disk.set_len(file, size)
    }

    fn set_mode(&self, file: &File, mode: u32) -> io::Result<()> {
        self.change("set mode", None)?;
        Disk.set_mode(file, mode)
    }

    fn set_modified(&self, path: &Path, time: Option<SystemTime>) -> io::Result<()> {
        self.change("set time", Some(path))?;
        Disk.set_modified(path, time)
    }

    fn touch(&self, file: &File) -> io::Result<()> {
        self.change("set time", None)?;
        Disk.touch(file)
    }

    fn has_exact_times(&self, file: &File) -> bool {
        self.ticks.is_none() && Disk.has_exact_times(file)
    }

    fn next_data(&self, file: &File, offset: u64) -> io::Result<Option<u64>> {
        self.change("look: data", None)?;
        Disk.next_data(file, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.change("sync", None)?;
        if !self.lies {
            self.state().unsynced.synced(file.metadata()?.ino(), &path_of(file)?);
        }
        Ok(())
    }

    fn sync_filesystem(&self, _file: &File) -> io::Result<()> {
        self.change("sync all", None)?;
        if !self.lies {
            self.state().unsynced.synced_all();
        }
        Ok(())
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        self.change("look: space", Some(directory))?;
        Disk.space(directory)
    }

    fn lock(&self, file: &File, exclusive: bool) -> io::Result<bool> {
        self.change("look: lock", None)?;
        Disk.lock(file, exclusive)
    }

    fn boot_id(&self) -> io::Result<String> {
        Ok(self.boot.clone())
    }
}
