//! The default store: `/var/lib/tarpon` for root, the XDG data folder for other users.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::exit::Exit;
use crate::failure::{Failure, Result};

const SYSTEM: &str = "/var/lib/tarpon";

/// The store to use: the named one, else the default for this user.
pub(crate) fn resolve(asked: Option<PathBuf>) -> Result<PathBuf> {
    // An empty `TARPON_STORE=` counts as not set.
    match asked.filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => std::path::absolute(&dir)
            .map_err(|error| Failure::io(format_args!("cannot use the store {}", dir.display()), &error)),
        None => default(rustix::process::geteuid().is_root(), |name| std::env::var_os(name)),
    }
}

fn default(root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    if root {
        return Ok(PathBuf::from(SYSTEM));
    }
    // According to the XDG specification a relative path in the variable is ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    data.map(|dir| dir.join("tarpon")).ok_or_else(|| {
        Failure::new(Exit::Usage, "cannot tell where the store is: neither $XDG_DATA_HOME nor $HOME is set")
            .hint("say where with --store DIR or $TARPON_STORE")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<PathBuf> {
        default(false, |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn root_uses_var_lib() {
        let dir = default(true, |_| Some("/elsewhere".into())).expect("root has a default");
        assert_eq!(dir, PathBuf::from("/var/lib/tarpon"));
    }

    #[test]
    fn others_use_the_xdg_data_folder() {
        let dir = |variables| with(variables).expect("there is a default");
        assert_eq!(dir(&[("XDG_DATA_HOME", "/data"), ("HOME", "/home/a")]), PathBuf::from("/data/tarpon"));
        assert_eq!(dir(&[("HOME", "/home/a")]), PathBuf::from("/home/a/.local/share/tarpon"));
        assert_eq!(dir(&[("XDG_DATA_HOME", "relative"), ("HOME", "/h")]), PathBuf::from("/h/.local/share/tarpon"));
    }

    #[test]
    fn an_empty_name_is_none() {
        assert_eq!(resolve(Some(PathBuf::new())).ok(), resolve(None).ok());
        assert_eq!(resolve(Some("/srv/x".into())).ok(), Some("/srv/x".into()));
    }

    #[test]
    fn without_a_home_the_user_is_told_what_to_say() {
        let failure = with(&[]).expect_err("nowhere to put it");
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.text().contains("--store"));
    }
}
