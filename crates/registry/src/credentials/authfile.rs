//! `auth.json` of Podman and `config.json` of Docker (containers-auth.json(5)).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tarpon_oci::DOCKER_HUB;
use tokio::io::AsyncReadExt as _;
use zeroize::Zeroizing;

use super::{Credentials, Secret, UNREADABLE, helper};

/// Bytes of an auth file. Real ones have a few KiB.
pub(super) const FILE_BYTES: u64 = 1 << 20;

/// One auth file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AuthFile {
    auths: BTreeMap<String, Entry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase", default)]
struct Entry {
    auth: Option<Zeroizing<String>>,
    username: Option<String>,
    password: Option<Zeroizing<String>>,
    identitytoken: Option<Zeroizing<String>>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl AuthFile {
    /// Reads `path`. `None` if the file does not exist.
    pub(crate) async fn read(path: &Path) -> io::Result<Option<Self>> {
        let file = match tokio::fs::File::open(path).await {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut text = Zeroizing::new(Vec::new());
        file.take(FILE_BYTES + 1).read_to_end(&mut text).await?;
        if text.len() as u64 > FILE_BYTES {
            return Err(io::Error::other("larger than 1 MiB"));
        }
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        // The message of the parser may quote the text, so it is not passed on.
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|error| io::Error::other(format!("not an auth file (line {})", error.line())))
    }

    /// The credentials for `repository` of `registry`: of the helper for the registry, else of the most specific entry, else of the
    /// store for everything.
    pub(crate) async fn find(&self, registry: &str, repository: &str) -> Option<Credentials> {
        let names = aliases(registry);
        if let Some(name) = names.iter().find_map(|name| self.cred_helpers.get(*name)) {
            return ask_helper(name, registry).await;
        }
        if let Some(found) = self.entry(&names, repository).and_then(Entry::credentials) {
            return Some(found);
        }
        let store = self.creds_store.as_deref().filter(|name| !name.is_empty())?;
        ask_helper(store, registry).await
    }

    /// The entry for `HOST/a/b/c`, else `HOST/a/b`, …, else `HOST`, also in Docker's spelling with scheme and `/v1/`.
    fn entry(&self, names: &[&str], repository: &str) -> Option<&Entry> {
        let mut path = Some(repository);
        while let Some(prefix) = path {
            let found = names.iter().find_map(|name| self.auths.get(&format!("{name}/{prefix}")));
            if found.is_some() {
                return found;
            }
            path = prefix.rsplit_once('/').map(|(parent, _)| parent);
        }
        let exact = names.iter().find_map(|name| self.auths.get(*name));
        exact.or_else(|| {
            let by_host = self.auths.iter().find(|(key, _)| names.contains(&host_of(key)));
            by_host.map(|(_, entry)| entry)
        })
    }
}

/// The host of a key that Docker wrote: `https://index.docker.io/v1/` → `index.docker.io`. A key of a namespace applies to that
/// namespace only and gives an empty host.
pub(super) fn host_of(key: &str) -> &str {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    match bare.split_once('/') {
        None => bare,
        Some((host, "" | "v1" | "v1/" | "v2" | "v2/")) => host,
        Some(_) => "",
    }
}

/// The names under which auth files and helpers may store a registry.
pub(super) fn aliases(registry: &str) -> Vec<&str> {
    match registry {
        DOCKER_HUB => vec!["docker.io", "index.docker.io", "registry-1.docker.io"],
        other => vec![other],
    }
}

/// The registry, as written in references, that has this host among its names.
pub(super) fn registry_of(host: &str) -> &str {
    if aliases(DOCKER_HUB).contains(&host) { DOCKER_HUB } else { host }
}

/// The name of a registry in credential helpers.
pub(super) fn server_name(registry: &str) -> &str {
    match registry {
        DOCKER_HUB => "https://index.docker.io/v1/",
        other => other,
    }
}

async fn ask_helper(name: &str, registry: &str) -> Option<Credentials> {
    match helper::get(name, server_name(registry)).await {
        Ok(found) => found,
        Err(error) => {
            if let Some(left_out) = UNREADABLE.admit() {
                tracing::warn!("credentials of {registry}: {error}{left_out}");
            }
            None
        }
    }
}

impl Entry {
    fn credentials(&self) -> Option<Credentials> {
        if let Some(token) = self.identitytoken.as_ref().filter(|token| !token.is_empty()) {
            return Some(Credentials::IdentityToken(Secret::new(token.as_str())));
        }
        if let Some(auth) = self.auth.as_ref().filter(|auth| !auth.is_empty()) {
            let decoded = Zeroizing::new(STANDARD.decode(auth.trim()).ok()?);
            let (user, password) = std::str::from_utf8(&decoded).ok()?.trim_end_matches('\0').split_once(':')?;
            return Some(Credentials::from_pair(user, password));
        }
        let user = self.username.as_deref().filter(|user| !user.is_empty())?;
        Some(Credentials::from_pair(user, self.password.as_ref().map_or("", |password| password.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str) -> String {
        format!(r#"{{"auth":"{}"}}"#, STANDARD.encode(format!("{user}:pass:word")))
    }

    fn file(auths: &[(&str, &str)]) -> AuthFile {
        let auths: Vec<String> = auths.iter().map(|(key, user)| format!(r#""{key}":{}"#, entry(user))).collect();
        serde_json::from_str(&format!(r#"{{"auths":{{{}}}}}"#, auths.join(","))).unwrap()
    }

    async fn user(file: &AuthFile, registry: &str, repository: &str) -> Option<String> {
        match file.find(registry, repository).await? {
            Credentials::Basic { user, password } => {
                assert_eq!(password, Secret::new("pass:word"));
                Some(user)
            }
            Credentials::IdentityToken(_) => None,
        }
    }

    #[tokio::test]
    async fn the_most_specific_entry_wins() {
        let file = file(&[("quay.io", "host"), ("quay.io/a", "a"), ("quay.io/a/b", "ab")]);
        assert_eq!(user(&file, "quay.io", "a/b").await.as_deref(), Some("ab"));
        assert_eq!(user(&file, "quay.io", "a/b/c").await.as_deref(), Some("ab"));
        assert_eq!(user(&file, "quay.io", "a/x").await.as_deref(), Some("a"));
        assert_eq!(user(&file, "quay.io", "ab/x").await.as_deref(), Some("host"));
        assert_eq!(user(&file, "quay.io:443", "a/b").await, None);
        assert_eq!(user(&file, "evil.quay.io", "a/b").await, None);
    }

    #[tokio::test]
    async fn docker_spellings_of_a_host_are_found() {
        let hub = file(&[("https://index.docker.io/v1/", "hub")]);
        assert_eq!(user(&hub, "docker.io", "library/debian").await.as_deref(), Some("hub"));
        let other = file(&[("https://r.example:5000/v2/", "r")]);
        assert_eq!(user(&other, "r.example:5000", "a").await.as_deref(), Some("r"));
        let namespace = file(&[("r.example/private", "r")]);
        assert_eq!(user(&namespace, "r.example", "public").await, None);
    }

    #[tokio::test]
    async fn identity_tokens_and_plain_fields_are_understood() {
        let text = r#"{"auths":{"a.io":{"auth":"dXNlcjo=","identitytoken":"t"},"b.io":{"username":"u","password":"p"},"c.io":{}}}"#;
        let file: AuthFile = serde_json::from_str(text).unwrap();
        assert_eq!(file.find("a.io", "x").await, Some(Credentials::IdentityToken(Secret::new("t"))));
        assert_eq!(file.find("b.io", "x").await, Credentials::parse("u:p"));
        assert_eq!(file.find("c.io", "x").await, None);
    }

    #[tokio::test]
    async fn a_missing_file_is_none_and_the_error_of_a_broken_one_quotes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("auth.json");
        assert!(AuthFile::read(&path).await.unwrap().is_none());
        std::fs::write(&path, r#"{"auths": {"a": {"auth": hunter2"#).unwrap();
        let error = AuthFile::read(&path).await.unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn debug_shows_no_secret() {
        let file = file(&[("a.io", "someone")]);
        let shown = format!("{file:?} {:?}", Credentials::parse("u:hunter2"));
        assert!(!shown.contains("hunter2") && !shown.contains(&STANDARD.encode("someone:pass:word")), "{shown}");
    }
}
