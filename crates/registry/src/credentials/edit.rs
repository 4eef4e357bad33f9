//! Changes auth files, as `podman login` and `podman logout` do. Whatever else a file contains stays as it is.

use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::Credentials;
use super::authfile::{AuthFile, FILE_BYTES, aliases, host_of, server_name};
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
    let mut content = read(file)?;
    if let Some(name) = helper_of(&content, registry) {
        helper::store(&name, server_name(registry), credentials).await?;
        return Ok(StoredIn::Helper(name));
    }
    let (user, password) = credentials.pair();
    let pair = Zeroizing::new(format!("{user}:{password}"));
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
    let mut content = read(file)?;
    let names = aliases(registry);
    let mut is_removed = false;
    if let Some(name) = helper_of(&content, registry)
        && helper::get(&name, server_name(registry)).await?.is_some()
    {
        helper::erase(&name, server_name(registry)).await?;
        is_removed = true;
    }
    let auths = section(&mut content, "auths")?;
    let before = auths.len();
    auths.retain(|key, _| !names.contains(&key.as_str()) && !names.contains(&host_of(key)));
    if auths.len() < before {
        write(file, &content)?;
        is_removed = true;
    }
    Ok(is_removed)
}

/// Removes the credentials of all registries from the auth file, and those of its entries from helpers.
///
/// # Errors
/// As [`store_login`].
pub async fn remove_all_logins(file: &Path) -> io::Result<()> {
    let mut content = read(file)?;
    let helpers = content.get("credHelpers").and_then(Value::as_object);
    let named = helpers.into_iter().flat_map(Map::keys).cloned().collect::<Vec<_>>();
    for registry in named {
        if let Some(name) = helper_of(&content, &registry)
            && helper::get(&name, server_name(&registry)).await?.is_some()
        {
            helper::erase(&name, server_name(&registry)).await?;
        }
    }
    section(&mut content, "auths")?.clear();
    if file.exists() { write(file, &content) } else { Ok(()) }
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

/// Replaces the file atomically, for its owner alone. A symbolic link stays one.
fn write(file: &Path, content: &Map<String, Value>) -> io::Result<()> {
    let file: PathBuf = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let text = Zeroizing::new(serde_json::to_vec_pretty(content).map_err(io::Error::other)?);
    let new = tempfile::Builder::new().prefix(".auth-").tempfile_in(folder)?;
    std::fs::write(new.path(), &text)?;
    new.as_file().sync_all()?;
    new.persist(&file).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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
}
