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
            ("seccomp", _) => Err("there is one filter for system calls, and profiles are not read".to_owned()),
            ("apparmor", Some("unconfined")) => Ok(Self::AppArmor(AppArmor::Unconfined)),
            ("apparmor", Some(profile)) if !profile.is_empty() => {
                Ok(Self::AppArmor(AppArmor::Profile(profile.to_owned())))
            }
            ("apparmor", _) => Err("expected apparmor=PROFILE".to_owned()),
            ("label", Some("disable")) => Ok(Self::NoLabel),
            ("label", _) => Err("containers have no SELinux labels here: use Podman with tarpon's store".to_owned()),
            _ => Err("expected no-new-privileges or apparmor=PROFILE; more is in --help".to_owned()),
        }
    }
}

/// The combination of all values; the last value of each kind counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) no_new_privileges: bool,
    pub(crate) any_system_call: bool,
    pub(crate) apparmor: AppArmor,
    pub(crate) unlabelled: bool,
}

impl Wanted {
    pub(crate) fn of(all: &[Security]) -> Self {
        let mut wanted = Self::default();
        for one in all {
            match one {
                Security::NoNewPrivileges(is_on) => wanted.no_new_privileges = *is_on,
                Security::AnySystemCall => wanted.any_system_call = true,
                Security::AppArmor(profile) => wanted.apparmor = profile.clone(),
                Security::NoLabel => wanted.unlabelled = true,
            }
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_podman() {
        let all = ["no-new-privileges", "seccomp=unconfined", "apparmor=mine", "label=disable"];
        let all: Vec<Security> = all.iter().map(|text| text.parse().unwrap()).collect();
        let expected = Wanted {
            no_new_privileges: true,
            any_system_call: true,
            apparmor: AppArmor::Profile("mine".to_owned()),
            unlabelled: true,
        };
        assert_eq!(Wanted::of(&all), expected);
        assert_eq!(Wanted::of(&["no-new-privileges:false".parse().unwrap()]), Wanted::default());
        assert_eq!(Wanted::of(&[]), Wanted::default());
    }

    #[test]
    fn no_message_says_how_to_be_less_safe() {
        for odd in
            ["seccomp=/profile.json", "seccomp", "label=type:x", "no-new-privilege", "apparmor", "seccomp=unconfine"]
        {
            let error = odd.parse::<Security>().unwrap_err();
            assert!(!error.contains("unconfined") && !error.contains("disable"), "{odd}: {error}");
        }
    }
}
