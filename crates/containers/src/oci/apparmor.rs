//! AppArmor: the profile that confines a container, on a host with AppArmor.

use std::path::PathBuf;
use std::process::Command;

use crate::program;
use crate::{Error, ErrorKind, Result};

/// Our profile. The number changes with its text, because a host keeps a loaded profile under its name.
const PROFILE: &str = "tarpon-default-1";
const TEXT: &str = include_str!("apparmor.txt");

/// Equivalent profiles of other tools, for a host without `apparmor_parser` to load ours.
const OTHERS: [&str; 3] = ["containers-default-", "docker-default", "cri-containerd.apparmor.d"];

/// Directories of administrative programs, which are not on every user's `PATH`.
const SBIN: [&str; 2] = ["/usr/sbin", "/sbin"];

const STEP: &str = "confine the container with AppArmor";

/// The AppArmor profile of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AppArmor {
    /// Ours, if the host has AppArmor.
    #[default]
    Usual,
    /// No profile.
    Unconfined,
    /// A loaded profile of this name.
    Profile(String),
}

/// The AppArmor of a host.
struct Host {
    /// Contains `Y` if the kernel has AppArmor and it is on.
    enabled: PathBuf,
    /// The loaded profiles, one `NAME (MODE)` per line.
    profiles: PathBuf,
    parser: Option<PathBuf>,
}

impl AppArmor {
    /// The profile on this host; `None` if it has no AppArmor.
    ///
    /// # Errors
    /// The named profile is not loaded.
    pub(super) fn profile(&self) -> Result<Option<String>> {
        self.profile_on(&Host::this())
    }

    fn profile_on(&self, host: &Host) -> Result<Option<String>> {
        match self {
            Self::Unconfined => Ok(None),
            Self::Usual if host.is_enabled() => Ok(host.usual()),
            Self::Usual => Ok(None),
            Self::Profile(_) if !host.is_enabled() => {
                Err(Error::new(ErrorKind::CannotMount, STEP, "this host has no AppArmor, or it is off"))
            }
            Self::Profile(name) if host.loaded().contains(name) => Ok(Some(name.clone())),
            Self::Profile(name) => {
                let cause = format!("the profile {name:?} is not loaded");
                Err(Error::new(ErrorKind::NotFound, STEP, cause).hint("load it with apparmor_parser -r FILE"))
            }
        }
    }
}

impl Host {
    fn this() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SBIN.map(PathBuf::from));
        Self {
            enabled: "/sys/module/apparmor/parameters/enabled".into(),
            profiles: "/sys/kernel/security/apparmor/profiles".into(),
            parser: folders.map(|folder| folder.join("apparmor_parser")).find(|program| program.is_file()),
        }
    }

    fn is_enabled(&self) -> bool {
        std::fs::read_to_string(&self.enabled).is_ok_and(|text| text.starts_with('Y'))
    }

    fn loaded(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.profiles).unwrap_or_default();
        let name = |line: &str| line.rsplit_once(" (").map_or(line, |(name, _)| name).to_owned();
        text.lines().map(name).collect()
    }

    /// Our profile, loaded if needed, or else that of another tool.
    fn usual(&self) -> Option<String> {
        let loaded = self.loaded();
        if loaded.iter().any(|name| name == PROFILE) {
            return Some(PROFILE.to_owned());
        }
        let why = match self.load() {
            Ok(()) => return Some(PROFILE.to_owned()),
            Err(why) => why,
        };
        let other = OTHERS.into_iter().find_map(|known| loaded.iter().find(|name| name.starts_with(known))).cloned();
        if other.is_none() {
            tracing::warn!(%why, "AppArmor does not confine the container: the profile cannot be loaded");
        }
        other
    }

    fn load(&self) -> std::result::Result<(), String> {
        let parser = self.parser.as_deref().ok_or("there is no apparmor_parser")?;
        let mut command = Command::new(parser);
        // No cache, because the text is ours and short.
        command.args(["--skip-cache", "--replace"]);
        let output = program::input(TEXT.as_bytes())
            .and_then(|text| {
                command.stdin(text);
                program::output(command, program::TIMEOUT)
            })
            .map_err(|error| format!("{} --replace: {error}", parser.display()))?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::process::Stdio;

    use tarpon_testkit::descriptors::write_program;

    use super::*;

    /// A host whose parser runs a script with the profile as input. `$0` is in the directory of its files.
    fn host(folder: &Path, enabled: &str, loaded: &str, script: Option<&str>) -> Host {
        let (known, profiles, parser) = (folder.join("enabled"), folder.join("profiles"), folder.join("parser"));
        std::fs::write(&known, enabled).unwrap();
        std::fs::write(&profiles, loaded).unwrap();
        let parser = script.map(|script| {
            write_program(&parser, &format!("#!/bin/sh\n{script}\n")).unwrap();
            parser
        });
        Host { enabled: known, profiles, parser }
    }

    fn on(host: &Host) -> Option<String> {
        AppArmor::Usual.profile_on(host).unwrap()
    }

    #[test]
    fn a_host_without_apparmor_confines_nothing_and_refuses_a_profile() {
        let folder = tempfile::tempdir().unwrap();
        let off = host(folder.path(), "N\n", "", Some("exit 1"));
        assert_eq!(on(&off), None);
        let error = AppArmor::Profile("mine".into()).profile_on(&off).unwrap_err();
        assert!(error.cause().to_string().contains("has no AppArmor"), "{error}");
        let none = Host { enabled: folder.path().join("nothing"), ..off };
        assert_eq!(on(&none), None);
    }

    #[test]
    fn the_profile_is_loaded_once() {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"cat > "$(dirname "$0")/text"; echo "$@" > "$(dirname "$0")/arguments""#;
        let new = host(folder.path(), "Y\n", "/usr/bin/man (enforce)\n", Some(script));
        assert_eq!(on(&new).as_deref(), Some(PROFILE));
        let text = std::fs::read_to_string(folder.path().join("text")).unwrap();
        assert!(text.contains(&format!("profile {PROFILE} ")), "{text}");
        let loaded = host(folder.path(), "Y\n", &format!("{PROFILE} (enforce)\n"), Some("exit 1"));
        assert_eq!(on(&loaded).as_deref(), Some(PROFILE));
    }

    #[test]
    fn without_a_parser_the_profile_of_another_tool_is_used_if_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let others = "snap.x (complain)\ncontainers-default-0.50.1 (enforce)\n";
        assert_eq!(on(&host(folder.path(), "Y", others, None)).as_deref(), Some("containers-default-0.50.1"));
        assert_eq!(on(&host(folder.path(), "Y", others, Some("exit 1"))).as_deref(), Some("containers-default-0.50.1"));
        assert_eq!(on(&host(folder.path(), "Y", "", Some("exit 1"))), None);
    }

    #[test]
    fn a_named_profile_must_be_loaded_and_none_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let host = host(folder.path(), "Y", "my profile (complain)\n", None);
        let named = |name: &str| AppArmor::Profile(name.to_owned()).profile_on(&host);
        assert_eq!(named("my profile").unwrap().as_deref(), Some("my profile"));
        assert!(named("my").unwrap_err().to_string().contains("not loaded"));
        assert_eq!(AppArmor::Unconfined.profile_on(&host).unwrap(), None);
    }

    #[test]
    fn the_profile_is_what_the_parser_takes() {
        let Some(parser) = Host::this().parser else {
            println!("skipped: no apparmor_parser");
            return;
        };
        let mut child =
            Command::new(parser).args(["--skip-kernel-load", "--skip-cache"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(TEXT.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}
