//! [`TierOptions`]: credentials and settings of a tier, from the environment.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::location::{Kind, TierLocation};

/// Longest value: a service account's key has about 2,500 bytes.
const VALUE_BYTES: usize = 16 << 10;
/// Most variables that are passed on.
const VARIABLES: usize = 64;

/// Variables whose values are paths of files with credentials.
const FILES: [&str; 7] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_STORAGE_FEDERATED_TOKEN_FILE",
];

/// What the environment states about a store: `AWS_…`, `GOOGLE_…` or `AZURE_…`, as for the store's own tools. Values may be secret: they are
/// erased from memory with the options, and never printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierOptions {
    variables: Vec<(String, Zeroizing<String>)>,
}

impl TierOptions {
    /// Those of this process for the tier.
    pub fn from_environment(location: &TierLocation) -> Self {
        // Not `vars`, which panics if any variable of the process is no UTF-8.
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Self::among(location, std::env::vars_os().filter_map(text))
    }

    fn among(location: &TierLocation, variables: impl Iterator<Item = (String, String)>) -> Self {
        let Some(prefix) = prefix(location.kind()) else { return Self::default() };
        let is_meant = |(name, value): &(String, String)| name.starts_with(prefix) && value.len() <= VALUE_BYTES;
        let variables = variables.filter(is_meant).take(VARIABLES);
        Self { variables: variables.map(|(name, value)| (name, Zeroizing::new(value))).collect() }
    }

    /// Files with credentials that the store's client reads.
    pub fn files(&self) -> Vec<PathBuf> {
        let named = self.variables.iter().filter(|(name, _)| FILES.contains(&name.as_str()));
        named.map(|(_, path)| PathBuf::from(path.as_str())).collect()
    }

    /// Names, in lower case, and values.
    pub(crate) fn each(&self) -> impl Iterator<Item = (String, &str)> {
        self.variables.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
    }
}

fn prefix(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::S3 => Some("AWS_"),
        Kind::Google => Some("GOOGLE_"),
        Kind::Azure => Some("AZURE_"),
        Kind::Folder => None,
    }
}

impl fmt::Debug for TierOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.variables.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_variables_of_the_store_are_taken_and_no_value_is_printed() {
        let environment = [
            ("AWS_SECRET_ACCESS_KEY", "hidden"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/token"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", "another"),
            ("PATH", "/bin"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let options = TierOptions::among(&"s3://bucket".parse().unwrap(), environment.clone().into_iter());
        assert_eq!(format!("{options:?}"), r#"["AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"]"#);
        assert_eq!(options.files(), [PathBuf::from("/run/token")]);
        let folder = TierOptions::among(&"file:///srv".parse().unwrap(), environment.into_iter());
        assert_eq!(folder, TierOptions::default());
    }
}
