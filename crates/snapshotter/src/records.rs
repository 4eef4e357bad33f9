//! [`Records`]: all snapshots, in memory and on the disk.
//!
//! ```text
//! ROOT/next                              no directory ever had this number or a higher one
//! ROOT/snapshots/NUMBER/snapshot.json    its record: replaced atomically by a rename; without it the directory is garbage
//!                      /fs               the upper directory that containerd writes to, or the mount point of an image's layers
//!                      /work             overlayfs' work directory, of active snapshots
//! ```
//!
//! Names come from containerd and are never paths: directories have numbers. Numbers are never reused, even after a removal: the
//! store's server may still have a record of a mount in the old directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tarpon_engine::{create_private_dir, write_private};

use crate::error::{Error, Result};
use crate::record::{Kind, Labels, LazyLayers, Record, Usage, VERSION, now};

/// The file with a snapshot's record.
const RECORD: &str = "snapshot.json";

/// The file with the lowest number that was never reserved.
const NEXT: &str = "next";

/// Numbers that are reserved at once, so that not every snapshot waits for that file. A restart skips the rest of them.
const SET_ASIDE: u64 = 64;

/// Maximum size of a record. Containerd sends at most 4 MiB in a request.
const RECORD_BYTES: u64 = 16 << 20;

/// Maximum depth of a stack of snapshots: overlayfs accepts 500 layers.
const DEEPEST: usize = 500;

/// All snapshots. Memory is changed after the disk. Clones share the snapshots.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    root: PathBuf,
    folder: PathBuf,
    all: BTreeMap<String, Arc<Snapshot>>,
    next: u64,
    /// The lowest number that is not reserved.
    free: u64,
}

/// A snapshot and its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) folder: PathBuf,
    pub(crate) record: Record,
}

impl Snapshot {
    /// The upper directory, or the mount point of an image's layers.
    pub(crate) fn fs(&self) -> PathBuf {
        self.folder.join("fs")
    }

    /// Overlayfs' work directory.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.join("work")
    }
}

impl Records {
    /// Reads the records from the disk.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let folder = root.join("snapshots");
        let failed = |path: &Path| Error::disk(format!("read {}", path.display()));
        std::fs::create_dir_all(&folder).map_err(failed(&folder))?;
        let free = read_next(&root.join(NEXT)).map_err(failed(&root.join(NEXT)))?;
        let mut records =
            Self { root: root.to_owned(), folder: folder.clone(), all: BTreeMap::new(), next: free, free };
        for entry in std::fs::read_dir(&folder).map_err(failed(&folder))? {
            let path = entry.map_err(failed(&folder))?.path();
            let Some(number) = number(&path) else { continue };
            records.next = records.next.max(number.saturating_add(1));
            if let Some(record) = read(&path).map_err(failed(&path))? {
                records.all.insert(record.name.clone(), Arc::new(Snapshot { folder: path, record }));
            }
        }
        Ok(records)
    }

    /// Directories without a snapshot: left by a killed process or a failed removal.
    pub(crate) fn rubbish(&self) -> Result<Vec<PathBuf>> {
        let failed = || Error::disk(format!("read {}", self.folder.display()));
        let mut rubbish = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(failed())? {
            let path = entry.map_err(failed())?.path();
            if number(&path).is_some() && !self.all.values().any(|snapshot| snapshot.folder == path) {
                rubbish.push(path);
            }
        }
        Ok(rubbish)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Snapshot> {
        self.all.values().map(|snapshot| &**snapshot)
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Snapshot> {
        self.all.get(name).map(|snapshot| &**snapshot).ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// The stack that ends with the committed snapshot `top`, uppermost first. It begins with the lowest snapshot, or with mounted layers
    /// of an image, which include everything below them.
    pub(crate) fn stack(&self, top: &str) -> Result<Vec<Snapshot>> {
        let mut stack = Vec::new();
        let mut name = top;
        while !name.is_empty() && stack.len() < DEEPEST {
            let snapshot = self.get(name)?;
            stack.push(snapshot.clone());
            if snapshot.record.lazy.is_some() {
                break;
            }
            name = &snapshot.record.parent;
        }
        Ok(stack)
    }

    /// Creates an active snapshot or a view.
    pub(crate) fn create(&mut self, name: &str, parent: &str, kind: Kind, labels: Labels) -> Result<Snapshot> {
        self.check_new(name, parent)?;
        self.add(Record::new(name, parent, kind, labels))
    }

    /// Creates a committed snapshot of mounted layers.
    pub(crate) fn create_lazy(
        &mut self,
        name: &str,
        parent: &str,
        labels: Labels,
        layers: LazyLayers,
    ) -> Result<Snapshot> {
        self.check_new(name, parent)?;
        self.add(Record { lazy: Some(layers), ..Record::new(name, parent, Kind::Committed, labels) })
    }

    fn check_new(&self, name: &str, parent: &str) -> Result<()> {
        if name.is_empty() {
            return Err(Error::Invalid("a snapshot needs a name".to_owned()));
        }
        if self.all.contains_key(name) {
            return Err(Error::Exists(name.to_owned()));
        }
        if !parent.is_empty() && self.get(parent)?.record.kind != Kind::Committed {
            return Err(Error::Invalid(format!("the parent {parent} is not committed")));
        }
        if self.depth(parent) >= DEEPEST {
            return Err(Error::Precondition(format!("{parent} lies on {DEEPEST} snapshots already")));
        }
        Ok(())
    }

    fn depth(&self, name: &str) -> usize {
        let (mut name, mut depth) = (name, 0);
        while let Some(snapshot) = self.all.get(name).filter(|_| depth < DEEPEST) {
            depth += 1;
            name = &snapshot.record.parent;
        }
        depth
    }

    fn add(&mut self, record: Record) -> Result<Snapshot> {
        let number = self.number()?;
        let folder = self.folder.join(number.to_string());
        let snapshot = Snapshot { folder, record };
        if let Err(error) = create_directories(&snapshot) {
            let _swept_later = std::fs::remove_dir_all(&snapshot.folder);
            return Err(Error::disk(format!("make {}", snapshot.folder.display()))(error));
        }
        self.all.insert(snapshot.record.name.clone(), Arc::new(snapshot.clone()));
        Ok(snapshot)
    }

    /// A number that no directory ever had.
    fn number(&mut self) -> Result<u64> {
        let number = self.next;
        if number >= self.free {
            let (file, free) = (self.root.join(NEXT), number.saturating_add(SET_ASIDE));
            let written = write_private(&file, free.to_string().as_bytes()).and_then(|()| sync(&self.root));
            written.map_err(Error::disk(format!("write {}", file.display())))?;
            self.free = free;
        }
        self.next += 1;
        Ok(number)
    }

    /// Commits an active snapshot under its own name. Labels are replaced.
    pub(crate) fn commit(&mut self, key: &str, name: &str, labels: Labels, usage: Usage) -> Result<()> {
        let active = self.get(key)?;
        if active.record.kind != Kind::Active {
            return Err(Error::Precondition(format!("{key} is not active")));
        }
        if name.is_empty() {
            return Err(Error::Invalid("a snapshot needs a name".to_owned()));
        }
        if self.all.contains_key(name) {
            return Err(Error::Exists(name.to_owned()));
        }
        let (name, kind, updated) = (name.to_owned(), Kind::Committed, now());
        let record = Record { name, kind, labels, updated, usage, ..active.record.clone() };
        self.replace(key, record)
    }

    /// Replaces all labels of a snapshot, or only those named in `only`.
    pub(crate) fn set_labels(&mut self, name: &str, labels: Labels, only: Option<&[String]>) -> Result<Record> {
        let mut record = self.get(name)?.record.clone();
        record.updated = now();
        match only {
            None => record.labels = labels,
            Some(only) => {
                for name in only {
                    match labels.get(name) {
                        Some(value) => record.labels.insert(name.clone(), value.clone()),
                        None => record.labels.remove(name),
                    };
                }
            }
        }
        self.replace(name, record.clone())?;
        Ok(record)
    }

    fn replace(&mut self, name: &str, record: Record) -> Result<()> {
        let folder = self.get(name)?.folder.clone();
        write(&folder, &record).map_err(Error::disk(format!("write down snapshot {name}")))?;
        self.all.remove(name);
        self.all.insert(record.name.clone(), Arc::new(Snapshot { folder, record }));
        Ok(())
    }

    /// Removes a snapshot without children. Its directory is garbage then.
    pub(crate) fn remove(&mut self, name: &str) -> Result<Snapshot> {
        let snapshot = self.get(name)?.clone();
        if self.has_children(name) {
            return Err(Error::Precondition(format!("other snapshots lie on {name}")));
        }
        let file = snapshot.folder.join(RECORD);
        std::fs::remove_file(&file).map_err(Error::disk(format!("remove {}", file.display())))?;
        self.all.remove(name);
        Ok(snapshot)
    }

    /// Whether the snapshot has children.
    pub(crate) fn has_children(&self, name: &str) -> bool {
        self.all.values().any(|other| other.record.parent == name)
    }
}

fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Reads the lowest number that was never reserved.
fn read_next(file: &Path) -> io::Result<u64> {
    match std::fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(1),
        text => text?.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not a number")),
    }
}

/// The record in a directory; `None` if there is none.
fn read(folder: &Path) -> io::Result<Option<Record>> {
    let file = match File::open(folder.join(RECORD)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(RECORD_BYTES).read_to_end(&mut text)?;
    let record: Record = serde_json::from_slice(&text)?;
    if record.version == VERSION {
        Ok(Some(record))
    } else {
        let problem = format!("the record has version {}, this program reads version {VERSION}", record.version);
        Err(io::Error::new(io::ErrorKind::InvalidData, problem))
    }
}

/// Creates the directory of a snapshot, its record last.
fn create_directories(snapshot: &Snapshot) -> io::Result<()> {
    create_private_dir(&snapshot.folder)?;
    create_private_dir(&snapshot.fs())?;
    // It becomes the root directory of a container.
    std::fs::set_permissions(snapshot.fs(), std::fs::Permissions::from_mode(0o755))?;
    if snapshot.record.kind == Kind::Active {
        create_private_dir(&snapshot.work())?;
    }
    write(&snapshot.folder, &snapshot.record)?;
    snapshot.folder.parent().map_or(Ok(()), sync)
}

fn write(folder: &Path, record: &Record) -> io::Result<()> {
    write_private(&folder.join(RECORD), &serde_json::to_vec(record)?)?;
    sync(folder)
}

/// Syncs a directory. Containerd stores its own state of snapshots, so a snapshot that it got must exist after a crash.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
