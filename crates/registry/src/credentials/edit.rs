//! Changes auth files, as `podman login` and `podman logout` do. Whatever else a file contains stays as it is.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::Credentials;
use super::authfile::{AuthFile, FILE_BYTES, aliases, host_of, registry_of, server_name};
use super::edit_lock::EditLock;
use super::helper;

/// Where credentials were stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredIn {
    /// The auth file itself, base64-encoded.
    File,
    /// The credential helper of this name, which the file names.
    Helper(String),
}

/// Stores the credentials of `registry` (as written in references) in the auth file, which is created if it is missing, or in the helper
/// that the file names for it.
///
/// # Errors
/// The file cannot be read or written, is no auth file, or the helper fails. Then nothing is changed.
pub async fn store_login(file: &Path, registry: &str, credentials: &Credentials) -> io::Result<StoredIn> {
    if let Some(name) = helper_of(&read(file)?, registry) {
        helper::store(&name, server_name(registry), credentials).await?;
        return Ok(StoredIn::Helper(name));
    }
    let (user, password) = credentials.pair();
    let pair = Zeroizing::new(format!("{user}:{password}"));
    make_folder(file)?;
    let _alone = EditLock::take(&target(file)).await?;
    let mut content = read(file)?;
    let auths = section(&mut content, "auths")?;
    auths.insert(registry.to_owned(), json!({ "auth": STANDARD.encode(pair.as_bytes()) }));
    write(file, &content)?;
    Ok(StoredIn::File)
}

/// Removes the credentials of `registry` from the auth file and from the helper that it names. `false`: there were none.
///
/// # Errors
/// As [`store_login`].
pub async fn remove_login(file: &Path, registry: &str) -> io::Result<bool> {
    let was_in_helper = erase(&read(file)?, registry).await?;
    let names = aliases(registry);
    let is_of_it = |key: &str| names.contains(&key) || names.contains(&host_of(key));
    Ok(remove_entries(file, |key, _| is_of_it(key)).await? || was_in_helper)
}

/// Removes the credentials of all registries that the file names, from it and from helpers.
///
/// # Errors
/// As [`store_login`], or a helper still has some of them.
pub async fn remove_all_logins(file: &Path) -> io::Result<()> {
    let content = read(file)?;
    let (registries, mut failed, mut kept) = (registries_in(&content), None, BTreeSet::new());
    for registry in &registries {
        if let Err(error) = erase(&content, registry).await {
            failed.get_or_insert(error);
            kept.insert(registry.clone());
        }
    }
    // Only entries that were there at the beginning: for one that was added meanwhile no helper was asked. What a helper still has stays
    // named in the file.
    let seen: BTreeSet<String> = keys(&content, "auths").map(str::to_owned).collect();
    let is_in_helper = |key: &str, entry: &Value| is_empty(entry) && kept.contains(registry_of(host_of(key)));
    remove_entries(file, |key, entry| seen.contains(key) && !is_in_helper(key, entry)).await?;
    for registry in registries.difference(&kept) {
        if logged_in(file, registry).await?.is_some() {
            return Err(io::Error::other(format!("there still is a password for {registry}")));
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Erases the credentials of `registry` from the helper that has them. `false`: there were none.
async fn erase(content: &Map<String, Value>, registry: &str) -> io::Result<bool> {
    let Some(name) = helper_of(content, registry) else { return Ok(false) };
    let is_there = helper::get(&name, server_name(registry)).await?.is_some();
    if is_there {
        helper::erase(&name, server_name(registry)).await?;
    }
    Ok(is_there)
}

/// Removes the entries with these keys from the file. `false`: there were none, and the file stays as it is.
async fn remove_entries(file: &Path, is_removed: impl Fn(&str, &Value) -> bool) -> io::Result<bool> {
    if !file.exists() {
        // Not even a lock is left where nothing was.
        return Ok(false);
    }
    let _alone = EditLock::take(&target(file)).await?;
    let mut content = read(file)?;
    let auths = section(&mut content, "auths")?;
    let before = auths.len();
    auths.retain(|key, entry| !is_removed(key, entry));
    let are_fewer = auths.len() < before;
    if are_fewer {
        write(file, &content)?;
    }
    Ok(are_fewer)
}

/// Whether the entry has no password of its own.
fn is_empty(entry: &Value) -> bool {
    entry.as_object().is_none_or(Map::is_empty)
}

/// The registries whose credentials the file may lead to, as written in references. Docker leaves an empty entry in `auths` for one
/// whose password is in the store for everything.
fn registries_in(content: &Map<String, Value>) -> BTreeSet<String> {
    let hosts = keys(content, "credHelpers").chain(keys(content, "auths")).map(host_of);
    // A helper has no credentials of single namespaces.
    hosts.filter(|host| !host.is_empty()).map(|host| registry_of(host).to_owned()).collect()
}

fn keys<'a>(content: &'a Map<String, Value>, section: &str) -> impl Iterator<Item = &'a str> {
    content.get(section).and_then(Value::as_object).into_iter().flat_map(Map::keys).map(String::as_str)
}

/// The user that is logged in to `registry` itself, by this file.
///
/// # Errors
/// The file cannot be read, or is no auth file.
pub async fn logged_in(file: &Path, registry: &str) -> io::Result<Option<String>> {
    let Some(file) = AuthFile::read(file).await? else { return Ok(None) };
    let found = file.find(registry, "").await;
    Ok(found.map(|credentials| credentials.pair().0.to_owned()))
}

/// The helper that has the registry's credentials.
fn helper_of(content: &Map<String, Value>, registry: &str) -> Option<String> {
    let helpers = content.get("credHelpers").and_then(Value::as_object);
    let own = aliases(registry).into_iter().find_map(|name| helpers?.get(name)?.as_str());
    let store = content.get("credsStore").and_then(Value::as_str);
    own.or(store).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// An object in the file; added if it is missing.
fn section<'a>(content: &'a mut Map<String, Value>, name: &str) -> io::Result<&'a mut Map<String, Value>> {
    let section = content.entry(name).or_insert_with(|| json!({}));
    section.as_object_mut().ok_or_else(|| io::Error::other(format!("not an auth file: {name} is no object")))
}

/// The content of the file. Empty if it does not exist.
fn read(file: &Path) -> io::Result<Map<String, Value>> {
    let opened = match std::fs::File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(error),
    };
    let mut text = Zeroizing::new(Vec::new());
    opened.take(FILE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    if text.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    // The message of the parser may quote the text, so it is not passed on.
    serde_json::from_slice(&text).map_err(|error| io::Error::other(format!("not an auth file (line {})", error.line())))
}

/// Makes the folder of a file that may not be there yet.
fn make_folder(file: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder_of(&target(file)))
}

/// The file itself, where `file` is a link.
pub(super) fn target(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Replaces the file atomically, for its owner alone. A symbolic link stays one.
fn write(file: &Path, content: &Map<String, Value>) -> io::Result<()> {
    let file = target(file);
    let folder = folder_of(&file);
    let text = Zeroizing::new(serde_json::to_vec_pretty(content).map_err(io::Error::other)?);
    let new = tempfile::Builder::new().prefix(".auth-").tempfile_in(folder)?;
    std::fs::write(new.path(), &text)?;
    new.as_file().sync_all()?;
    new.persist(&file).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use futures::FutureExt as _;
    use tarpon_oci::DOCKER_HUB;

    use super::*;

    fn credentials(text: &str) -> Credentials {
        Credentials::parse(text).unwrap()
    }

    #[tokio::test]
    async fn a_login_is_stored_for_the_owner_alone_and_keeps_everything_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/auth.json");
        let stored = store_login(&file, "quay.io", &credentials("alice:pass:word")).await.unwrap();
        assert_eq!(stored, StoredIn::File);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let other = r#"{"auths":{"quay.io/team":{"auth":"eDp5"}},"HttpHeaders":{"a":"b"},"credHelpers":{}}"#;
        std::fs::write(&file, other).unwrap();
        store_login(&file, "quay.io", &credentials("alice:pass:word")).await.unwrap();
        assert_eq!(logged_in(&file, "quay.io").await.unwrap().as_deref(), Some("alice"));
        let content = read(&file).unwrap();
        assert_eq!(content["HttpHeaders"]["a"], "b");
        assert_eq!(content["auths"]["quay.io/team"]["auth"], "eDp5");
        assert!(remove_login(&file, "quay.io").await.unwrap() && !remove_login(&file, "quay.io").await.unwrap());
        assert_eq!(read(&file).unwrap()["auths"], json!({"quay.io/team": {"auth": "eDp5"}}));
        remove_all_logins(&file).await.unwrap();
        assert_eq!(read(&file).unwrap()["auths"], json!({}));
    }

    #[tokio::test]
    async fn docker_hub_is_removed_in_every_spelling() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.json");
        std::fs::write(&file, r#"{"auths":{"https://index.docker.io/v1/":{"auth":"eDp5"},"quay.io":{"auth":"eDp5"}}}"#)
            .unwrap();
        assert!(remove_login(&file, DOCKER_HUB).await.unwrap());
        assert_eq!(read(&file).unwrap()["auths"], json!({"quay.io": {"auth": "eDp5"}}));
    }

    #[tokio::test]
    async fn a_file_that_is_no_auth_file_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.json");
        for odd in ["{", "[]", r#"{"auths":[]}"#] {
            std::fs::write(&file, odd).unwrap();
            assert!(store_login(&file, "quay.io", &credentials("a:b")).await.is_err(), "{odd}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), odd);
        }
    }

    #[tokio::test]
    async fn a_link_to_the_file_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("auth.json"), folder.path().join("link.json"));
        std::fs::write(&file, "{}").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        store_login(&link, "quay.io", &credentials("a:b")).await.unwrap();
        assert!(link.is_symlink());
        assert_eq!(logged_in(&file, "quay.io").await.unwrap().as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn a_helper_that_the_file_names_gets_the_login() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.json");
        std::fs::write(&file, r#"{"credsStore":"that-is-not-installed"}"#).unwrap();
        let error = store_login(&file, "quay.io", &credentials("a:b")).await.unwrap_err().to_string();
        assert!(error.contains("docker-credential-that-is-not-installed"), "{error}");
        assert!(!std::fs::read_to_string(&file).unwrap().contains("auths"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_waits_for_the_one_under_way_and_keeps_its_entry() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.json");
        std::fs::write(&file, "{}").unwrap();
        let other = EditLock::take(&file).await.unwrap();
        let login = credentials("a:b");
        let mut waiting = Box::pin(store_login(&file, "quay.io", &login));
        assert!(waiting.as_mut().now_or_never().is_none());
        std::fs::write(&file, r#"{"auths":{"ghcr.io":{"auth":"eDp5"}}}"#).unwrap();
        drop(other);
        waiting.await.unwrap();
        for registry in ["quay.io", "ghcr.io"] {
            assert!(logged_in(&file, registry).await.unwrap().is_some(), "{registry}");
        }
    }

    /// What [`a_logout_from_all_erases_what_is_in_the_store_for_everything`] does with the helper of `folder` in its path.
    async fn log_out_of_all_in(folder: &Path) {
        let file = folder.join("auth.json");
        let text = r#"{"auths":{"https://index.docker.io/v1/":{},"quay.io":{},"quay.io/team":{"auth":"eDp5"}},
            "credHelpers":{"ghcr.io":"kept"},"credsStore":"kept"}"#;
        std::fs::write(&file, text).unwrap();
        for registry in [DOCKER_HUB, "quay.io", "ghcr.io"] {
            let stored = store_login(&file, registry, &credentials("a:b")).await.unwrap();
            assert_eq!(stored, StoredIn::Helper("kept".to_owned()));
            assert!(logged_in(&file, registry).await.unwrap().is_some(), "{registry}");
        }
        remove_all_logins(&file).await.unwrap();
        for registry in [DOCKER_HUB, "quay.io", "ghcr.io"] {
            assert_eq!(logged_in(&file, registry).await.unwrap(), None, "{registry}");
        }
        assert_eq!(read(&file).unwrap()["auths"], json!({}));
        // A helper that keeps what it should erase.
        std::fs::write(folder.join("keeps"), "").unwrap();
        std::fs::write(&file, r#"{"auths":{"quay.io":{}},"credsStore":"kept"}"#).unwrap();
        store_login(&file, "quay.io", &credentials("a:b")).await.unwrap();
        let error = remove_all_logins(&file).await.unwrap_err().to_string();
        assert!(error.contains("quay.io"), "{error}");
    }

    /// A helper with a file for each server.
    const HELPER: &str = r#"#!/bin/sh
folder=${0%/*}
input=$(cat)
case $1 in
store) name=${input#*'"ServerURL":"'}; name=${name%%'"'*} ;;
*) name=$input ;;
esac
file=$folder/of-$(echo "$name" | tr / _)
case $1 in
store) touch "$file" ;;
get) test -e "$file" && echo '{"Username":"a","Secret":"b"}' ;;
erase) test -e "$folder/keeps" || rm "$file" ;;
esac
"#;

    #[tokio::test]
    async fn a_logout_from_all_erases_what_is_in_the_store_for_everything() {
        const FOLDER: &str = "TARPON_TEST_HELPER_FOLDER";
        if let Some(folder) = std::env::var_os(FOLDER) {
            return log_out_of_all_in(Path::new(&folder)).await;
        }
        // Helpers are found by the path of the process, so this test runs again in one with another path.
        let folder = tempfile::tempdir().unwrap();
        let helper = folder.path().join("docker-credential-kept");
        std::fs::write(&helper, HELPER).unwrap();
        std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([
            "--exact",
            "credentials::edit::tests::a_logout_from_all_erases_what_is_in_the_store_for_everything",
        ]);
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let output = again.env("PATH", path).env(FOLDER, folder.path()).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && shown.contains("1 passed"), "{shown}");
    }
}
