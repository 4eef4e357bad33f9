//! [`PolicyChoice`]: which file is the policy.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tarpon_oci::Source;

use crate::config::{InvalidPolicy, Keys, Policy, Requirement};
use crate::demands::{Demand, Demands};
use crate::key::PublicKey;

/// Longest policy or key: real ones have a few KiB.
const FILE_BYTES: u64 = 1 << 20;

/// The policy of all users.
const SYSTEM: &str = "/etc/containers/policy.json";

/// The policy to apply.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum PolicyChoice {
    /// The user's file, else the system's. If neither exists, every image is accepted.
    #[default]
    Host,
    /// This file.
    File(PathBuf),
    /// What another process read from the policy for the image.
    Settled(Box<Demands>),
}

/// Why the policy is not known. No image is used then.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is not a policy.
    #[error("{}: {error}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Why.
        error: InvalidPolicy,
    },
}

impl PolicyChoice {
    /// What is demanded of the image. Reads the policy, and the keys that it names for the image.
    ///
    /// # Errors
    /// The policy cannot be read or is invalid.
    pub fn demands(&self, source: &Source) -> Result<Demands, PolicyError> {
        let file = match self {
            Self::Settled(demands) => return Ok((**demands).clone()),
            Self::File(file) => Some(file.clone()),
            Self::Host => of_host(|name| std::env::var_os(name), Path::new(SYSTEM)),
        };
        let Some(file) = file else { return Ok(Demands::nothing()) };
        let bytes = read(&file).map_err(|error| PolicyError::Read { file: file.clone(), error })?;
        let policy = Policy::parse(&bytes).map_err(|error| PolicyError::Invalid { file: file.clone(), error })?;
        let (scope, requirements) = policy.requirements(source);
        let list = requirements.iter().map(demand).collect();
        Ok(Demands { policy: Some(file.display().to_string()), scope, list })
    }
}

fn demand(requirement: &Requirement) -> Demand {
    match requirement {
        Requirement::Accept => Demand::Accept,
        Requirement::Reject => Demand::Reject,
        Requirement::Unsupported(why) => Demand::Unfulfillable((*why).to_owned()),
        Requirement::Sigstore { keys, identity } => match load(keys) {
            Ok(keys) => Demand::Signed { keys, identity: identity.clone() },
            Err(why) => Demand::Unfulfillable(why),
        },
    }
}

/// The keys. One that cannot be read makes the demand fail, even if another one signed, so that it is noticed before it is needed.
fn load(keys: &Keys) -> Result<Vec<Vec<u8>>, String> {
    let parsed = |pem: &[u8], what: &str| {
        PublicKey::from_pem(pem).map(PublicKey::into_der).map_err(|error| format!("{what} cannot be used: {error}"))
    };
    match keys {
        Keys::Files(files) => files
            .iter()
            .map(|file| {
                let what = format!("the key {}", file.display());
                let pem = read(file).map_err(|error| format!("{what} cannot be read: {error}"))?;
                parsed(&pem, &what)
            })
            .collect(),
        Keys::Data(keys) => keys.iter().map(|pem| parsed(pem, "a key in it")).collect(),
    }
}

/// The file that exists; one that cannot be looked up counts as existing, so that it is noticed.
fn of_host(variable: impl Fn(&str) -> Option<OsString>, system: &Path) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = path("XDG_CONFIG_HOME").or_else(|| path("HOME").map(|home| home.join(".config")));
    let own = config.map(|folder| folder.join("containers/policy.json"));
    let is_absent = |file: &PathBuf| matches!(file.try_exists(), Ok(false));
    own.into_iter().chain([system.to_owned()]).find(|file| !is_absent(file))
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(io::Error::other(format!("longer than {FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_comes_before_the_systems_and_none_accepts_everything() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_owned();
        let find = |system: &Path| of_host(|name| (name == "HOME").then(|| home.clone().into_os_string()), system);
        let system = folder.path().join("system.json");
        assert_eq!(find(&system), None);
        std::fs::write(&system, "").unwrap();
        assert_eq!(find(&system), Some(system.clone()));
        let own = folder.path().join(".config/containers/policy.json");
        std::fs::create_dir_all(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "").unwrap();
        assert_eq!(find(&system), Some(own));
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.json");
        let demands = || PolicyChoice::File(file.clone()).demands(&"debian".parse().unwrap());
        assert!(matches!(demands(), Err(PolicyError::Read { .. })));
        std::fs::write(&file, "{}").unwrap();
        assert!(matches!(demands(), Err(PolicyError::Invalid { .. })));
        std::fs::write(&file, r#"{"default":[{"type":"reject"}]}"#).unwrap();
        let refused = demands().unwrap().check_before().unwrap_err().to_string();
        assert!(
            refused.starts_with("the policy /") && refused.ends_with("(default) refuses it: it rejects such images")
        );
    }

    #[test]
    fn a_key_that_cannot_be_read_concerns_only_the_images_of_its_scope() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.json");
        let text = r#"{"default":[{"type":"insecureAcceptAnything"}],
            "transports":{"docker":{"r.example":[{"type":"sigstoreSigned","keyPath":"/missing/key.pub"}]}}}"#;
        std::fs::write(&file, text).unwrap();
        let demands = |image: &str| PolicyChoice::File(file.clone()).demands(&image.parse().unwrap()).unwrap();
        assert!(demands("debian").check_before().is_ok());
        let refused = demands("r.example/a").check_before().unwrap_err().to_string();
        assert!(refused.contains("the key /missing/key.pub cannot be read"), "{refused}");
    }
}
