//! Locates the user's credential files.
//!
//! The client's environment determines them: the server inherits that of the process that happened to start it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tarpon_oci::Source;

/// Maximum length of an auth file: real ones have a few KiB.
const FILE_BYTES: u64 = 1 << 20;

/// The files that Podman and Docker use, in Podman's order: `$REGISTRY_AUTH_FILE` alone if it is set, else the runtime
/// folder's, the user's, Docker's. All absolute.
pub fn auth_files() -> Vec<PathBuf> {
    from(|name| std::env::var_os(name))
}

fn from(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let files = match path("REGISTRY_AUTH_FILE") {
        Some(only) => vec![Some(only)],
        None => {
            let home = |folder: &str| path("HOME").map(|home| home.join(folder));
            let runtime = match path("XDG_RUNTIME_DIR") {
                Some(folder) => folder.join("containers/auth.json"),
                None => "/run/containers/0/auth.json".into(),
            };
            let config = path("XDG_CONFIG_HOME").or_else(|| home(".config"));
            let docker = path("DOCKER_CONFIG").or_else(|| home(".docker"));
            vec![
                Some(runtime),
                config.map(|folder| folder.join("containers/auth.json")),
                docker.map(|folder| folder.join("config.json")),
            ]
        }
    };
    files.into_iter().flatten().filter_map(|file| std::path::absolute(file).ok()).collect()
}

/// The one file to use for `source`; `None`: those of this process' environment, which `files` are.
pub(crate) fn choose(files: &[PathBuf], source: &Source) -> Option<PathBuf> {
    if files.is_empty() || files == auth_files() {
        return None;
    }
    let host = match source {
        Source::Registry(reference) => reference.registry().to_owned(),
        _ => return None,
    };
    let naming = files.iter().find(|file| names(file, &host));
    naming.or_else(|| files.iter().find(|file| file.exists())).or(files.first()).cloned()
}

/// Whether the file may have credentials for the registry: it names the registry, or a helper for all registries.
fn names(file: &Path, host: &str) -> bool {
    let is_small = std::fs::metadata(file).is_ok_and(|found| found.len() <= FILE_BYTES);
    let Some(text) = is_small.then(|| std::fs::read(file).ok()).flatten() else { return false };
    let Ok(file) = serde_json::from_slice::<serde_json::Value>(&text) else { return false };
    let has = |section: &str| {
        let mut keys = file[section].as_object().into_iter().flat_map(|entries| entries.keys());
        keys.any(|key| key.trim_start_matches("https://").split('/').next() == Some(host))
    };
    has("auths") || has("credHelpers") || file["credsStore"].as_str().is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Vec<PathBuf> {
        from(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_files_come_in_podmans_order() {
        let files = with(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/7"), ("DOCKER_CONFIG", "/d")]);
        let expected = ["/run/user/7/containers/auth.json", "/h/.config/containers/auth.json", "/d/config.json"];
        assert_eq!(files, expected.map(PathBuf::from));
        assert_eq!(with(&[("HOME", "/h"), ("REGISTRY_AUTH_FILE", "/only")]), [PathBuf::from("/only")]);
    }

    #[test]
    fn a_relative_file_is_relative_to_the_client() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(with(&[("REGISTRY_AUTH_FILE", "auth.json")]), [here.join("auth.json")]);
    }

    #[test]
    fn the_file_that_names_the_registry_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let missing = folder.path().join("missing");
        let other = file("other", r#"{"auths":{"quay.io":{}}}"#);
        let right = file("right", r#"{"auths":{"r.example:5000/team":{}}}"#);
        let source: Source = "r.example:5000/team/app:v1".parse().unwrap();
        let files = [missing.clone(), other.clone(), right.clone()];
        assert_eq!(choose(&files, &source), Some(right));
        assert_eq!(choose(&files[..2], &source), Some(other), "if none names it, one that is there");
        assert_eq!(choose(&files[..1], &source), Some(missing), "a login may still come");
        assert_eq!(choose(&auth_files(), &source), None, "the registry crate looks them up anew each time");
    }
}
