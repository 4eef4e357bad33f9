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
/// Most bytes of all names and values, as they are encoded in the setup of a worker: a message has at most 128 KiB. What does not fit is left
/// out.
const TOTAL_BYTES: usize = 64 << 10;

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
        let meant = variables.filter(is_meant).map(|(name, value)| (name, Zeroizing::new(value)));
        let mut variables: Vec<_> = meant.collect();
        // The same ones each time, whatever the order of the environment.
        variables.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut left = TOTAL_BYTES;
        variables.retain(|(name, value)| {
            let fits = left.checked_sub(encoded_bytes(name) + encoded_bytes(value));
            left = fits.unwrap_or(left);
            fits.is_some()
        });
        variables.truncate(VARIABLES);
        Self { variables }
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

/// The most that a text takes in JSON, with its quotation marks and separators.
fn encoded_bytes(text: &str) -> usize {
    let encoded = |byte: u8| match byte {
        0..=0x1f => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(encoded).sum::<usize>() + 4
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

    /// The names that are taken of these.
    fn taken(environment: &[(&str, String)]) -> TierOptions {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        TierOptions::among(&"s3://bucket".parse().unwrap(), environment)
    }

    #[test]
    fn the_order_of_the_environment_does_not_decide_what_is_taken() {
        let large = || "x".repeat(VALUE_BYTES);
        let mut environment = ["AWS_E", "AWS_B", "AWS_D", "AWS_A", "AWS_C"].map(|name| (name, large())).to_vec();
        environment.push(("AWS_Z", "small".to_owned()));
        let options = taken(&environment);
        assert_eq!(format!("{options:?}"), r#"["AWS_A", "AWS_B", "AWS_C", "AWS_Z"]"#);
        environment.reverse();
        assert_eq!(taken(&environment), options);
    }

    #[test]
    fn what_is_taken_fits_into_a_message_however_it_is_encoded() {
        for text in ["x", "\u{1}", "\"", "\\", "é", "\n"] {
            let names: Vec<String> = (0..40).map(|number| format!("AWS_{number}")).collect();
            let value = text.repeat(3_000 / text.len());
            let environment: Vec<_> = names.iter().map(|name| (name.as_str(), value.clone())).collect();
            let options = taken(&environment);
            assert!(!options.variables.is_empty(), "{text:?}");
            assert!(serde_json::to_string(&options).unwrap().len() <= TOTAL_BYTES + 100, "{text:?}");
        }
    }
}
