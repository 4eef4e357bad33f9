//! [`RegistriesPaths`]: which files configure the registries.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::RegistriesError;

/// The file of all users.
const SYSTEM_FILE: &str = "/etc/containers/registries.conf";
/// Its drop-in files.
const SYSTEM_FOLDER: &str = "/etc/containers/registries.conf.d";
/// Aliases of short names that Podman recorded for root.
const SYSTEM_ALIASES: &str = "/var/cache/containers/short-name-aliases.conf";

/// The folder of tarpon's own configuration of endpoints, for all users.
const SYSTEM_ENDPOINTS: &str = "/etc/tarpon/endpoints.d";

/// Most drop-in files of a folder: distributions install one or two.
const DROP_INS: usize = 256;

/// The files that configure the registries, for a user or for this host. The environment of a client determines them: a server
/// inherits that of the process that started it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct RegistriesPaths {
    /// The file that comes first.
    file: Option<PathBuf>,
    /// Whether the user named it, so that its absence is an error.
    is_named: bool,
    /// Folders with drop-in files, which come after it.
    folders: Vec<PathBuf>,
    /// Aliases of short names that Podman recorded. They come last.
    aliases: Option<PathBuf>,
    /// Folders with files of tarpon's own configuration of endpoints.
    #[serde(default)]
    endpoints: Vec<PathBuf>,
}

impl RegistriesPaths {
    /// No files: every name is used as it is.
    pub fn none() -> Self {
        Self::default()
    }

    /// This file alone.
    pub fn only(file: PathBuf) -> Self {
        Self { file: Some(file), is_named: true, ..Self::default() }
    }

    /// These files, and those of this folder of tarpon's own configuration of endpoints alone.
    pub fn with_endpoints(self, folder: PathBuf) -> Self {
        Self { endpoints: vec![folder], ..self }
    }

    /// As Podman finds them: `$CONTAINERS_REGISTRIES_CONF`, else the user's file and drop-ins if that file exists, else the
    /// system's file and the drop-ins of both. Endpoints are in `$TARPON_ENDPOINTS`, else in the folders of the system and the user.
    pub fn of_environment() -> Self {
        Self::from(|name| std::env::var_os(name), is_root_of_host())
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Self {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let home = path("HOME");
        let own = |name: &str, default: &str| {
            path(name).or_else(|| home.as_ref().map(|home| home.join(default))).map(absolute)
        };
        let aliases = match is_root {
            true => Some(SYSTEM_ALIASES.into()),
            false => own("XDG_CACHE_HOME", ".cache").map(|folder| folder.join("containers/short-name-aliases.conf")),
        };
        let config = own("XDG_CONFIG_HOME", ".config");
        let own_endpoints = config.as_ref().map(|folder| folder.join("tarpon/endpoints.d"));
        let endpoints = match path("TARPON_ENDPOINTS") {
            Some(named) => vec![absolute(named)],
            None => [PathBuf::from(SYSTEM_ENDPOINTS)].into_iter().chain(own_endpoints).collect(),
        };
        let config = config.map(|folder| folder.join("containers"));
        let own_folder = config.as_ref().map(|folder| folder.join("registries.conf.d"));
        let own_file = config.map(|folder| folder.join("registries.conf")).filter(|file| file.exists());
        let named = path("CONTAINERS_REGISTRIES_CONF").or_else(|| path("REGISTRIES_CONFIG_PATH")).map(absolute);
        let is_named = named.is_some();
        let system_folder = (is_named || own_file.is_none()).then(|| PathBuf::from(SYSTEM_FOLDER));
        let file = named.or(own_file).unwrap_or_else(|| SYSTEM_FILE.into());
        let folders = system_folder.into_iter().chain(own_folder).collect();
        Self { file: Some(file), is_named, folders, aliases, endpoints }
    }

    /// All files, in the order in which they are read. Only the first one may be missing.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, RegistriesError> {
        let mut files: Vec<_> = self.file.iter().cloned().collect();
        files.extend(drop_ins_of(self.folders.iter(), "conf")?);
        Ok(files)
    }

    /// The files of tarpon's own configuration of endpoints, in the order in which they are read. A folder that is closed to this user is
    /// passed over, as closed files are.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn endpoint_files(&self) -> Result<Vec<PathBuf>, RegistriesError> {
        let is_open = |folder: &&PathBuf| {
            let found = std::fs::read_dir(folder);
            !found.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        drop_ins_of(self.endpoints.iter().filter(is_open), "toml")
    }

    pub(super) fn must_exist(&self, file: &Path) -> bool {
        self.is_named && self.file.as_deref() == Some(file)
    }

    pub(super) fn recorded_aliases(&self) -> Option<&Path> {
        self.aliases.as_deref()
    }
}

/// Whether this is root, and not the root of an ordinary user's namespace, who has a cache of its own.
fn is_root_of_host() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && maps_root_to_itself(&map)
}

/// Whether user 0 of a namespace is user 0 outside (`user_namespaces(7)`: inside, outside, length). Without namespaces there is no map.
fn maps_root_to_itself(map: &str) -> bool {
    let first: Vec<&str> = map.lines().next().unwrap_or_default().split_whitespace().take(2).collect();
    first.is_empty() || first == ["0", "0"]
}

/// The files of folders with this extension, folder by folder.
fn drop_ins_of<'a>(
    folders: impl Iterator<Item = &'a PathBuf>,
    extension: &str,
) -> Result<Vec<PathBuf>, RegistriesError> {
    let mut files = Vec::new();
    for folder in folders {
        let failed = |error: io::Error| RegistriesError::Read { file: folder.clone(), error };
        files.extend(drop_ins(folder, extension).map_err(failed)?);
    }
    Ok(files)
}

/// The files of a folder with this extension, in the order of their names.
fn drop_ins(folder: &Path, wanted: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == wanted) {
            files.push(path);
        }
        if files.len() > DROP_INS {
            return Err(io::Error::other(format!("more than {DROP_INS} files")));
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &Path)]) -> RegistriesPaths {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        RegistriesPaths::from(find, false)
    }

    #[test]
    fn the_users_file_replaces_the_systems_and_its_drop_ins() {
        let home = tempfile::tempdir().unwrap();
        let own = home.path().join(".config/containers");
        let before = with(&[("HOME", home.path())]);
        assert_eq!(before.file.as_deref(), Some(Path::new(SYSTEM_FILE)));
        assert_eq!(before.folders, [PathBuf::from(SYSTEM_FOLDER), own.join("registries.conf.d")]);
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(own.join("registries.conf"), "").unwrap();
        let after = with(&[("HOME", home.path())]);
        assert_eq!(
            (after.file, after.folders),
            (Some(own.join("registries.conf")), vec![own.join("registries.conf.d")])
        );
    }

    #[test]
    fn a_named_file_replaces_the_file_and_not_the_drop_ins() {
        let home = tempfile::tempdir().unwrap();
        let named = with(&[("HOME", home.path()), ("CONTAINERS_REGISTRIES_CONF", Path::new("/named"))]);
        assert!(named.must_exist(Path::new("/named")));
        assert_eq!(named.folders.len(), 2);
    }

    #[test]
    fn endpoints_are_those_of_the_system_and_then_of_the_user_or_of_a_named_folder_alone() {
        let home = tempfile::tempdir().unwrap();
        let own = home.path().join(".config/tarpon/endpoints.d");
        assert_eq!(with(&[("HOME", home.path())]).endpoints, [PathBuf::from(SYSTEM_ENDPOINTS), own]);
        let named = with(&[("HOME", home.path()), ("TARPON_ENDPOINTS", Path::new("/named"))]);
        assert_eq!(named.endpoints, [PathBuf::from("/named")]);
        assert!(RegistriesPaths::none().endpoints.is_empty());
    }

    #[test]
    fn the_root_of_a_users_namespace_is_an_ordinary_user() {
        for root in ["         0          0 4294967295\n", ""] {
            assert!(maps_root_to_itself(root));
        }
        assert!(!maps_root_to_itself("         0       1000          1\n         1     100000      65536\n"));
    }

    #[test]
    fn drop_ins_are_read_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["20-b.conf", "10-a.conf", "notes.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = drop_ins(folder.path(), "conf").unwrap();
        assert_eq!(found, ["10-a.conf", "20-b.conf"].map(|name| folder.path().join(name)));
        assert!(drop_ins(&folder.path().join("missing"), "conf").unwrap().is_empty());
    }
}
