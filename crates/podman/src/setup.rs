//! Configures Podman's additional stores: `additionalimagestores` and `additionallayerstores` in its `storage.conf`. Everything else in the
//! file stays as written.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Item, Table, value};

use crate::{Error, ErrorKind, Result};

/// Maximum size of the file: Podman's own, with all its comments, has 10 KiB.
const FILE_BYTES: u64 = 1 << 20;
/// The file that a distribution's Podman reads if the machine has none of its own. A new file starts as a copy.
const SHIPPED: &str = "/usr/share/containers/storage.conf";
/// Podman 4 requires all three in the file.
const LEAST: &str = "\
[storage]
driver = \"overlay\"
runroot = \"/run/containers/storage\"
graphroot = \"/var/lib/containers/storage\"
";

/// The same without root: Podman finds the folders of the user.
const LEAST_OF_A_USER: &str = "[storage]\ndriver = \"overlay\"\n";
/// Suffix of the copy of the original file.
const BACKUP: &str = "before-tarpon";
/// Permissions of a new file: every user's Podman reads it.
const MODE: u32 = 0o644;
/// Permissions of a copy until it has those of the file.
const PRIVATE: u32 = 0o600;

/// The result of changing a `storage.conf`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Setup {
    /// The file.
    pub file: PathBuf,
    /// The store of images that it names, or no longer names.
    pub store: PathBuf,
    /// The store of layers that it names, or no longer names.
    pub layers: Option<PathBuf>,
    /// Whether it was changed; otherwise it was already correct.
    pub changed: bool,
    /// Copy of the original file.
    pub backup: Option<PathBuf>,
}

/// Adds the stores of images and of layers to the additional stores of `file`, or removes them.
pub(crate) fn change(file: &Path, images: &Path, layers: Option<&Path>, undo: bool) -> Result<Setup> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Other, format!("change {}", file.display()), error)
            .hint("--file names another storage.conf, for $CONTAINERS_STORAGE_CONF")
    };
    let name = |store: &Path| {
        let name = store.to_str().map(str::to_owned);
        name.ok_or_else(|| failed(io::Error::other("the path of the store is not UTF-8")))
    };
    let mut entries = vec![(IMAGES, name(images)?)];
    if let Some(layers) = layers {
        // `:ref`: Podman passes the image whose layer it looks up.
        entries.push((LAYERS, format!("{}:ref", name(layers)?)));
    }
    let before = read(file).map_err(failed)?;
    let same = Setup {
        file: file.to_owned(),
        store: images.to_owned(),
        layers: layers.map(Path::to_owned),
        changed: false,
        backup: None,
    };
    let text = match (&before, undo) {
        (Some(text), _) => text.clone(),
        (None, true) => return Ok(same),
        (None, false) => new_text(),
    };
    let edited = entries.iter().try_fold(text, |text, (key, store)| edit(&text, key, store, undo));
    let after = edited.map_err(|cause| failed(io::Error::other(cause)))?;
    if before.as_ref() == Some(&after) {
        return Ok(same);
    }
    if undo {
        let backup = restore(file, &after).map_err(failed)?;
        return Ok(Setup { changed: true, backup, ..same });
    }
    let backup = before.map(|before| keep(file, &before)).transpose().map_err(failed)?;
    write(file, &after).map_err(failed)?;
    Ok(Setup { changed: true, backup, ..same })
}

/// Writes the file without our stores, whose text is `after`. Unless it was changed by others meanwhile, the original is restored and the
/// copy is removed. Otherwise the copy stays and its path is returned.
fn restore(file: &Path, after: &str) -> io::Result<Option<PathBuf>> {
    let copy = backup_of(file);
    match read(&copy)? {
        // It did not exist. It would now hide the distribution's file.
        None if is_ours(after) => fs::remove_file(file).map(|()| None),
        None => write(file, after).map(|()| None),
        Some(original) if without_empty_tables(after) == without_empty_tables(&original) => {
            write(file, &original)?;
            fs::remove_file(&copy).map(|()| None)
        }
        Some(_) => write(file, after).map(|()| Some(copy)),
    }
}

/// Whether the file names the store of images.
pub(crate) fn names(file: &Path, images: &Path) -> bool {
    let text = read(file).ok().flatten().unwrap_or_default();
    let document: Option<DocumentMut> = text.parse().ok();
    let lists = |document: DocumentMut| {
        let stores = document.get("storage")?.get("options")?.get(IMAGES)?.as_array()?.clone();
        Some(stores.iter().any(|store| store.as_str().is_some_and(|store| Path::new(store) == images)))
    };
    document.and_then(lists).unwrap_or(false)
}

/// The text without the tables that were made for our stores and are empty without them; `None` if it cannot be parsed.
fn without_empty_tables(text: &str) -> Option<String> {
    let mut document: DocumentMut = text.parse().ok()?;
    let is_empty = |item: Option<&Item>| item.and_then(Item::as_table).is_some_and(Table::is_empty);
    if let Some(storage) = document.get_mut("storage").and_then(Item::as_table_mut)
        && is_empty(storage.get("options"))
    {
        storage.remove("options");
    }
    if is_empty(document.get("storage")) {
        document.remove("storage");
    }
    Some(document.to_string())
}

/// The text of a new file, before our stores are added. The distribution's file names the folders of root.
fn new_text() -> String {
    if tarpon_store::in_user_namespace() {
        return LEAST_OF_A_USER.to_owned();
    }
    read(Path::new(SHIPPED)).ok().flatten().unwrap_or_else(|| LEAST.to_owned())
}

/// Whether a file that did not exist before contains only our text. Tables that were made for the store may be left.
fn is_ours(text: &str) -> bool {
    let bare = without_empty_tables(text);
    bare.is_some()
        && (bare == without_empty_tables(&new_text())
            || [LEAST, LEAST_OF_A_USER].iter().any(|least| bare == without_empty_tables(least)))
}

fn read(file: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    match fs::File::open(file) {
        Ok(opened) => opened.take(FILE_BYTES + 1).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if text.len() as u64 > FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {FILE_BYTES} bytes")));
    }
    Ok(Some(text))
}

/// The text of a `storage.conf` with the store in the list `key`, or without.
fn edit(text: &str, key: &str, store: &str, undo: bool) -> std::result::Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    let lists = |item: &Item| item.as_array().is_some_and(|array| array.iter().any(|at| at.as_str() == Some(store)));
    let known = document.get("storage").and_then(|item| item.get("options"));
    let is_there = known.and_then(|item| item.get(key)).is_some_and(lists);
    if is_there != undo {
        return Ok(text.to_owned());
    }
    let options = table(document.as_table_mut(), "storage").and_then(|storage| table(storage, "options"))?;
    match options.get_mut(key) {
        None => drop(options.insert(key, value(Array::from_iter([store])))),
        Some(item) => {
            let array = item.as_array_mut().ok_or(format!("{key} is not a list"))?;
            if undo {
                array.retain(|at| at.as_str() != Some(store));
            } else {
                array.push(store);
            }
            if array.is_empty() {
                options.remove(key);
            }
        }
    }
    Ok(document.to_string())
}

const IMAGES: &str = "additionalimagestores";
const LAYERS: &str = "additionallayerstores";

/// The table of this name, created if missing.
fn table<'t>(parent: &'t mut Table, name: &str) -> std::result::Result<&'t mut Table, String> {
    let item = parent.entry(name).or_insert_with(|| Item::Table(Table::new()));
    item.as_table_mut().ok_or(format!("{name} is not a table"))
}

fn backup_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(BACKUP);
    name.into()
}

/// Keeps a copy of the original file.
fn keep(file: &Path, text: &str) -> io::Result<PathBuf> {
    let backup = backup_of(file);
    match fs::OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&backup) {
        Ok(mut new) => {
            new.set_permissions(fs::metadata(file)?.permissions())?;
            new.write_all(text.as_bytes())?;
            new.sync_all()?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    Ok(backup)
}

/// Replaces the file atomically. If it is a link, its target is replaced.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let folder = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(text.as_bytes())?;
    let before = fs::metadata(&target).ok();
    let mode = before.as_ref().map_or(MODE, |before| before.permissions().mode());
    new.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    if let Some(before) = before {
        std::os::unix::fs::fchown(new.as_file(), Some(before.uid()), Some(before.gid()))?;
    }
    new.as_file().sync_all()?;
    new.persist(&target).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = "/var/lib/tarpon/podman";

    fn there_and_back(text: &str) -> String {
        let with = edit(text, IMAGES, STORE, false).unwrap();
        assert_eq!(edit(&with, IMAGES, STORE, false).unwrap(), with, "once is enough");
        assert_eq!(edit(&with, IMAGES, STORE, true).unwrap(), text, "nothing else was changed");
        with
    }

    #[test]
    fn the_store_comes_in_and_goes_out_and_all_else_stays_as_it_is_written() {
        let text = "# mine\n[storage]\ndriver = \"overlay\"   # not vfs\n\n[storage.options]\n# Lists.\nsize = \"\"\n\n\
            [storage.options.overlay]\nmountopt = \"nodev\"\n";
        let with = there_and_back(text);
        let line = format!("additionalimagestores = [\"{STORE}\"]\n");
        assert_eq!(with, text.replace("size = \"\"\n", &format!("size = \"\"\n{line}")));
        let others = "[storage.options]\nadditionalimagestores = [ \"/a\" ]\n";
        assert!(there_and_back(others).contains("\"/a\""));
    }

    #[test]
    fn a_file_without_the_tables_gets_them() {
        let with = edit(LEAST, IMAGES, STORE, false).unwrap();
        assert_eq!(with, format!("{LEAST}\n[storage.options]\nadditionalimagestores = [\"{STORE}\"]\n"));
        assert_eq!(edit("", IMAGES, STORE, true).unwrap(), "", "what is not there need not be taken out");
    }

    #[test]
    fn what_cannot_be_understood_is_not_touched() {
        for text in ["[storage", "storage = 1\n", "[storage.options]\nadditionalimagestores = \"/a\"\n"] {
            assert!(edit(text, IMAGES, STORE, false).is_err(), "{text}");
        }
    }

    #[test]
    fn the_file_is_kept_as_it_was_before_it_was_first_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("storage.conf");
        fs::write(&file, LEAST).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let done = change(&file, Path::new(STORE), None, false).unwrap();
        assert!(done.changed);
        let backup = done.backup.unwrap();
        assert_eq!(fs::read_to_string(&backup).unwrap(), LEAST);
        for kept in [&file, &backup] {
            assert_eq!(fs::metadata(kept).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(!change(&file, Path::new(STORE), None, false).unwrap().changed);
        // Our version of it is not kept as the original.
        fs::write(&file, fs::read_to_string(&file).unwrap() + "# Mine.\n").unwrap();
        let undone = change(&file, Path::new(STORE), None, true).unwrap();
        assert_eq!(fs::read_to_string(undone.backup.unwrap()).unwrap(), LEAST);
    }

    #[test]
    fn undo_leaves_the_file_as_it_was_and_no_copy_of_it() {
        let layers = Path::new("/var/lib/tarpon/podman-layers");
        for original in [LEAST, "", "# Mine alone.\n", "[storage]\n\n[storage.options]\n"] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("storage.conf");
            fs::write(&file, original).unwrap();
            change(&file, Path::new(STORE), Some(layers), false).unwrap();
            assert!(names(&file, Path::new(STORE)));
            let undone = change(&file, Path::new(STORE), Some(layers), true).unwrap();
            assert!(undone.changed && undone.backup.is_none());
            assert!(!names(&file, Path::new(STORE)));
            assert_eq!(fs::read_to_string(&file).unwrap(), original, "every line that was written is gone");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "and so is the copy");
        }
    }

    #[test]
    fn a_file_that_setup_created_is_removed_by_undo_unless_it_was_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("storage.conf");
        assert!(change(&file, Path::new(STORE), None, false).unwrap().changed);
        assert!(change(&file, Path::new(STORE), None, true).unwrap().changed);
        assert!(!file.exists());
        assert!(!change(&file, Path::new(STORE), None, true).unwrap().changed);
        change(&file, Path::new(STORE), None, false).unwrap();
        let mine = "\n# Mine.\n";
        fs::write(&file, fs::read_to_string(&file).unwrap() + mine).unwrap();
        assert!(change(&file, Path::new(STORE), None, true).unwrap().changed);
        assert!(fs::read_to_string(&file).unwrap().ends_with(mine));
    }

    #[test]
    fn the_store_of_layers_is_named_with_its_option_and_goes_with_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("storage.conf");
        fs::write(&file, LEAST).unwrap();
        let layers = Path::new("/var/lib/tarpon/podman-layers");
        assert!(change(&file, Path::new(STORE), Some(layers), false).unwrap().changed);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("additionallayerstores = [\"/var/lib/tarpon/podman-layers:ref\"]\n"), "{text}");
        assert!(text.contains("additionalimagestores = [\"/var/lib/tarpon/podman\"]\n"), "{text}");
        change(&file, Path::new(STORE), Some(layers), true).unwrap();
        assert!(!fs::read_to_string(&file).unwrap().contains("tarpon"));
    }
}
