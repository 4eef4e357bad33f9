//! The layout of a store's folder, and its version.
//!
//! A folder without a version file becomes a store only if it holds no foreign files. A store of an unknown version is
//! never interpreted: its content is moved to `set-aside/`, where it stays until `clear` or the budget removes it, and a
//! new store is started. That is refused while a server runs on the old one.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tarpon_oci::Digest;

use crate::files::{self, DIR_MODE, io_error, unique_name};
use crate::locks::{self, Locks};
use crate::storage::{Access, Metadata, Storage};
use crate::{OpenError, StoreError};

/// Content of the version file.
const VERSION: &str = "tarpon store 1\n";

/// Longest wait for another process that creates the store, sets an old one aside, or isolates it: a few renames on a slow disk.
pub(crate) const BEGIN_WAIT: Duration = Duration::from_secs(10);

/// Name of the lock of a server in its folder.
pub(crate) const SERVER_LOCK: &str = "server.lock";

/// Folder of damaged objects, each named `HEX-…`.
pub(crate) const CORRUPT: &str = "corrupt";

/// Name of the file of the user's settings.
pub(crate) const SETTINGS: &str = "settings";

/// Name of an image's record in its folder.
pub(crate) const RECORD: &str = "record.json";

/// Name of the scrub's state file.
pub(crate) const SCRUB: &str = "scrub";

/// Mount point of Podman's view of the store.
const PODMAN: &str = "podman";
/// Where Podman looks up single layers.
const PODMAN_LAYERS: &str = "podman-layers";

const FOLDERS: [&str; 8] = ["objects", "partial", "images", "layers", "refs", "mounts", "pins", "run"];
/// The entries that each tenant of an isolated store has of its own.
const CONTENT: [&str; 5] = ["objects", "partial", "images", "layers", "refs"];
/// Folder of traces; missing before the first one.
pub(crate) const TRACES: &str = "traces";
/// Folder of the tenants' content. Its existence makes a store isolated: no damaged file can revert that.
pub(crate) const TENANTS: &str = "tenants";

const OTHER_NAMES: [&str; 17] = [
    TENANTS,
    "version",
    "state",
    "clean",
    "usage",
    "lock",
    "publishing",
    "set-aside",
    CORRUPT,
    "lost+found",
    CONTAINERS,
    COMMITS,
    PODMAN,
    PODMAN_LAYERS,
    SETTINGS,
    SCRUB,
    TRACES,
];

/// Records and written data of containers: a user would miss them. The store must not set them aside or evict them.
pub(crate) const CONTAINERS: &str = "containers";

/// Committed images: as [`CONTAINERS`].
pub(crate) const COMMITS: &str = "commits";

/// Paths inside the folder of a store.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
    /// Folder of [`CONTENT`]: `root`, or the folder of a tenant.
    content: PathBuf,
    tenant: Option<Digest>,
    /// Whether this process is in another user namespace than the host's.
    in_user_namespace: bool,
}

/// Whether this process is in a user namespace that does not map each ID to itself. Without `/proc` nothing shows one.
pub fn in_user_namespace() -> bool {
    const INITIAL: [&str; 3] = ["0", "0", "4294967295"];
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !map.split_whitespace().eq(INITIAL))
}

impl Layout {
    /// Makes `root` a store of this version, unless it is one.
    pub(crate) fn open(locks: Locks<'_>, root: &Path) -> Result<Self, OpenError> {
        let storage = locks.storage;
        files::create_dir_all(storage, root, DIR_MODE)?;
        let root = root.canonicalize().map_err(io_error("resolving", root))?;
        let in_user_namespace = in_user_namespace();
        let layout = Self { content: root.clone(), root, tenant: None, in_user_namespace };
        if layout.read_version(storage)?.as_deref() != Some(VERSION) {
            layout.begin(locks)?;
        }
        if in_user_namespace {
            files::create_dir(storage, &layout.server_of(true), DIR_MODE)?;
        }
        Ok(layout)
    }

    fn read_version(&self, storage: &dyn Storage) -> Result<Option<String>, StoreError> {
        let text = files::read(storage, &self.name("version"), 4096)?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    /// Creates everything that is missing; the version last, so that the next open finishes a half-made store.
    fn begin(&self, locks: Locks<'_>) -> Result<(), OpenError> {
        let storage = locks.storage;
        let _lock = locks.lock(&self.name("lock"), BEGIN_WAIT, "begin the store")?;
        match self.read_version(storage)? {
            Some(version) if version == VERSION => return Ok(()),
            Some(version) => self.set_aside(storage, version.trim())?,
            None => self.refuse_foreign(storage)?,
        }
        for folder in FOLDERS {
            files::create_dir(storage, &self.name(folder), DIR_MODE)?;
        }
        files::replace(storage, &self.root, "version", VERSION.as_bytes())?;
        // The one file that has no digest and is written once: a power cut must not lose it.
        let path = self.name("version");
        let synced = storage.open(&path, Access::Read).and_then(|file| storage.sync(&file));
        Ok(synced.map_err(io_error("syncing", &path))?)
    }

    fn refuse_foreign(&self, storage: &dyn Storage) -> Result<(), OpenError> {
        for name in files::list(storage, &self.root)? {
            let name = name.to_string_lossy();
            let ours = FOLDERS.contains(&&*name) || OTHER_NAMES.contains(&&*name) || files::is_temporary(&name);
            if !ours {
                return Err(OpenError::Foreign { folder: self.root.clone(), found: name.into_owned() });
            }
        }
        Ok(())
    }

    fn set_aside(&self, storage: &dyn Storage, version: &str) -> Result<(), OpenError> {
        let version: String = version.chars().filter(|c| !c.is_control()).take(80).collect();
        let in_use = || OpenError::OtherVersionInUse { folder: self.root.clone(), version: version.clone() };
        let mut servers = Vec::new();
        for in_user_namespace in [false, true] {
            match locks::try_lock(storage, &self.server_of(in_user_namespace).join(SERVER_LOCK)) {
                Ok(Some(lock)) => servers.push(lock),
                Ok(None) => return Err(in_use()),
                // Without its folder no server has run there, or its folder is set aside already.
                Err(StoreError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        tracing::warn!(store = %self.root.display(), %version, "store of another version set aside, beginning a new one");
        let target = self.name("set-aside").join(unique_name());
        files::create_dir(storage, &self.name("set-aside"), DIR_MODE)?;
        files::create_dir(storage, &target, DIR_MODE)?;
        // The version file goes last: until then the next process finds the old version and continues from here. The
        // folder of tenants stays: the new store is isolated if the old one was.
        for tenant in files::list(storage, &self.name(TENANTS))? {
            let mut name = std::ffi::OsString::from("tenant-");
            name.push(&tenant);
            set_aside_one(storage, &self.name(TENANTS).join(&tenant), &target.join(name))?;
        }
        for name in FOLDERS.iter().chain(["state", "clean", "usage", "publishing", CORRUPT, TRACES, "version"].iter()) {
            set_aside_one(storage, &self.name(name), &target.join(name))?;
        }
        Ok(())
    }

    /// Whether a store of another version was set aside, and the sum of the sizes with it.
    pub(crate) fn is_uncounted(&self, storage: &dyn Storage) -> bool {
        let has_sum = |metadata: Metadata| metadata.size > 0;
        storage.metadata(&self.name("set-aside")).is_ok() && !storage.metadata(&self.name("usage")).is_ok_and(has_sum)
    }

    /// The same store with the content of a tenant.
    pub(crate) fn of_tenant(&self, tenant: &Digest) -> Self {
        let content = self.root.join(TENANTS).join(tenant.hex());
        Self { content, tenant: Some(*tenant), ..self.clone() }
    }

    /// The tenant whose content this is; `None`: content shared by all.
    pub(crate) fn tenant(&self) -> Option<&Digest> {
        self.tenant.as_ref()
    }

    /// Creates the missing folders of a tenant.
    pub(crate) fn begin_tenant(&self, storage: &dyn Storage) -> Result<(), StoreError> {
        files::create_dir(storage, &self.content, DIR_MODE)?;
        CONTENT.iter().try_for_each(|folder| files::create_dir(storage, &self.content.join(folder), DIR_MODE))
    }

    /// Whether this process is in another user namespace than the host's.
    pub(crate) fn in_user_namespace(&self) -> bool {
        self.in_user_namespace
    }

    /// The folder of the server in this user namespace.
    pub(crate) fn server(&self) -> PathBuf {
        self.server_of(self.in_user_namespace)
    }

    /// The folder of the server on the host, or in a user namespace.
    pub(crate) fn server_of(&self, in_user_namespace: bool) -> PathBuf {
        let run = self.name("run");
        if in_user_namespace { run.join("userns") } else { run }
    }

    pub(crate) fn podman(&self) -> PathBuf {
        self.name(PODMAN)
    }

    pub(crate) fn podman_layers(&self) -> PathBuf {
        self.name(PODMAN_LAYERS)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn name(&self, name: &str) -> PathBuf {
        let is_content = [CORRUPT, TRACES].contains(&name) || CONTENT.contains(&name);
        if is_content { self.content.join(name) } else { self.root.join(name) }
    }

    /// `objects/ab/cdef…`, the form of the tree's redirects.
    pub(crate) fn object(&self, object: &Digest) -> PathBuf {
        self.fan_out("objects", object)
    }

    /// `partial/ab/cdef….LIST`.
    pub(crate) fn partial(&self, object: &Digest, list: &Digest) -> PathBuf {
        let mut path = self.fan_out("partial", object).into_os_string();
        path.push(".");
        path.push(list.hex());
        path.into()
    }

    /// The folder of `partial/layers/HEX`.
    pub(crate) fn layer_parts(&self) -> PathBuf {
        self.content.join("partial").join("layers")
    }

    pub(crate) fn layer_part(&self, layer: &Digest) -> PathBuf {
        self.layer_parts().join(layer.hex())
    }

    pub(crate) fn image(&self, manifest: &Digest) -> PathBuf {
        self.content.join("images").join(manifest.hex())
    }

    fn fan_out(&self, folder: &str, object: &Digest) -> PathBuf {
        let hex = object.hex();
        let mut path = PathBuf::with_capacity(self.content.as_os_str().len() + folder.len() + 67);
        path.push(&self.content);
        path.push(folder);
        path.push(&hex[..2]);
        path.push(&hex[2..]);
        path
    }
}

/// `ab/cdef…`: the name of an object in the folder of complete objects.
pub(crate) fn name_in_objects(object: &Digest) -> String {
    let mut name = object.hex();
    name.insert(2, '/');
    name
}

fn set_aside_one(storage: &dyn Storage, from: &Path, to: &Path) -> Result<(), OpenError> {
    match storage.rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("setting aside", from)(error).into()),
        _ => Ok(()),
    }
}

/// The object that `objects/FOLDER/NAME` or `partial/FOLDER/NAME.LIST` holds; `None` if that is no name of an object.
pub(crate) fn object_of(folder: &OsStr, name: &OsStr) -> Option<Digest> {
    let (folder, name) = (folder.to_str()?, name.to_str()?);
    let (name, list) = name.split_once('.').map_or((name, None), |(name, list)| (name, Some(list)));
    if list.is_some_and(|list| Digest::from_hex(list).is_err()) {
        return None;
    }
    if folder.len() != 2 || name.len() != 62 {
        return None;
    }
    Digest::from_hex(&format!("{folder}{name}")).ok()
}
