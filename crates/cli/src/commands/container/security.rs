//! `--security-opt` of `tarpon run`.

use std::str::FromStr;

use tarpon_engine::AppArmor;

/// A value of `--security-opt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Security {
    NoNewPrivileges(bool),
    /// Do not filter system calls.
    AnySystemCall,
    AppArmor(AppArmor),
    /// Accept that the container has no SELinux label of its own.
    NoLabel,
}

impl FromStr for Security {
    type Err = String;

    // No message names an option that would make a container less safe.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(['=', ':']).map_or((text, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("no-new-privileges", None | Some("true")) => Ok(Self::NoNewPrivileges(true)),
            ("no-new-privileges", Some("false")) => Ok(Self::NoNewPrivileges(false)),
            ("seccomp", Some("unconfined")) => Ok(Self::AnySystemCall),
            ("seccomp", _) => {
                Err("seccomp profiles are not supported: omit the option for the built-in filter".to_owned())
            }
            ("apparmor", Some("unconfined")) => Ok(Self::AppArmor(AppArmor::Unconfined)),
            ("apparmor", Some(profile)) if !profile.is_empty() => {
                Ok(Self::AppArmor(AppArmor::Profile(profile.to_owned())))
            }
            ("apparmor", _) => Err("expected apparmor=PROFILE".to_owned()),
            ("label", Some("disable")) => Ok(Self::NoLabel),
            ("label", _) => Err("SELinux labels are not supported: use Podman with tarpon's image store".to_owned()),
            _ => Err("expected no-new-privileges or apparmor=PROFILE; see --help".to_owned()),
        }
    }
}

/// The combination of all values; the last value of each kind counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SecurityChoice {
    pub(crate) no_new_privileges: bool,
    pub(crate) any_system_call: bool,
    pub(crate) apparmor: AppArmor,
    pub(crate) unlabelled: bool,
}

impl SecurityChoice {
    pub(crate) fn of(all: &[Security]) -> Self {
        let mut choice = Self::default();
        for one in all {
            match one {
                Security::NoNewPrivileges(is_on) => choice.no_new_privileges = *is_on,
                Security::AnySystemCall => choice.any_system_call = true,
                Security::AppArmor(profile) => choice.apparmor = profile.clone(),
                Security::NoLabel => choice.unlabelled = true,
            }
        }
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_podman() {
        let all = ["no-new-privileges", "seccomp=unconfined", "apparmor=mine", "label=disable"];
        let all: Vec<Security> = all.iter().map(|text| text.parse().unwrap()).collect();
        let expected = SecurityChoice {
            no_new_privileges: true,
            any_system_call: true,
            apparmor: AppArmor::Profile("mine".to_owned()),
            unlabelled: true,
        };
        assert_eq!(SecurityChoice::of(&all), expected);
        assert_eq!(SecurityChoice::of(&["no-new-privileges:false".parse().unwrap()]), SecurityChoice::default());
        assert_eq!(SecurityChoice::of(&[]), SecurityChoice::default());
    }

    #[test]
    fn no_message_names_a_weaker_setting() {
        for odd in
            ["seccomp=/profile.json", "seccomp", "label=type:x", "no-new-privilege", "apparmor", "seccomp=unconfine"]
        {
            let error = odd.parse::<Security>().unwrap_err();
            assert!(!error.contains("unconfined") && !error.contains("disable"), "{odd}: {error}");
        }
    }
}
