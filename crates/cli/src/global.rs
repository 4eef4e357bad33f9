//! The options of every subcommand, and the store that they select.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use tarpon_engine::Isolation;

use crate::exit::Exit;
use crate::failure::{Failure, Result};

/// The default store of root; other users have theirs in the XDG data folder.
const SYSTEM: &str = "/var/lib/tarpon";

/// Options of every subcommand.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Store directory [default: /var/lib/tarpon as root, else $XDG_DATA_HOME/tarpon]
    #[arg(long, global = true, value_name = "DIR", env = "TARPON_STORE", hide_env_values = true)]
    #[arg(value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) store: Option<PathBuf>,
    /// Content sharing between images: shared (all images) or tenant (images of one repository, to which the registry must grant
    /// access each time); recorded in the store [default: the store's setting, shared for a new store]
    #[arg(long, global = true, value_name = "KIND", env = "TARPON_ISOLATION", hide_env_values = true)]
    #[arg(value_parser = isolation)]
    pub(crate) isolation: Option<Isolation>,
    /// Print only errors and results
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

impl Global {
    /// The store that the options name, or the default for this user.
    pub(crate) fn store_folder(&self) -> Result<PathBuf> {
        // An empty `TARPON_STORE=` counts as not set.
        match self.store.as_ref().filter(|dir| !dir.as_os_str().is_empty()) {
            Some(dir) => std::path::absolute(dir)
                .map_err(|error| Failure::io(format_args!("cannot use the store {}", dir.display()), &error)),
            None => default_store(is_root_of_the_host(), |name| std::env::var_os(name)),
        }
    }
}

fn isolation(text: &str) -> std::result::Result<Isolation, String> {
    [Isolation::Shared, Isolation::Tenant]
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| "expected shared or tenant".to_owned())
}

/// Root of a user namespace is an ordinary user outside of it.
fn is_root_of_the_host() -> bool {
    rustix::process::geteuid().is_root() && !tarpon_engine::store::in_user_namespace()
}

fn default_store(root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    if root {
        return Ok(PathBuf::from(SYSTEM));
    }
    // According to the XDG specification a relative path in the variable is ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    data.map(|dir| dir.join("tarpon")).ok_or_else(|| {
        Failure::new(Exit::Failure, "cannot determine the store directory: neither $XDG_DATA_HOME nor $HOME is set")
            .hint("set --store DIR or $TARPON_STORE")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<PathBuf> {
        default_store(false, |name| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn root_uses_var_lib() {
        let dir = default_store(true, |_| Some("/elsewhere".into())).expect("root has a default");
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
    fn an_empty_store_option_counts_as_not_set() {
        let folder = |store| Global { store, ..Global::default() }.store_folder().ok();
        assert_eq!(folder(Some(PathBuf::new())), folder(None));
        assert_eq!(folder(Some("/srv/x".into())), Some("/srv/x".into()));
    }

    #[test]
    fn without_a_home_directory_the_hint_names_the_option() {
        let failure = with(&[]).expect_err("no default");
        assert_eq!(failure.exit, Exit::Failure);
        assert!(failure.text().contains("--store"));
    }
}
