//! Locates the user's credential files.
//!
//! The client's environment determines them: the server inherits that of the process that happened to start it.

use std::ffi::OsString;
use std::path::PathBuf;

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
}
