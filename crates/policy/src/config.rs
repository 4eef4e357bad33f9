//! [`Policy`]: the file. What containers/image does not accept is an error here too: a typing error must not weaken a policy.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;
use tarpon_oci::Source;

use crate::identity::Identity;
use crate::scope;
use crate::strict::{self, present};

/// The file is not a policy.
#[derive(Debug, thiserror::Error)]
#[error("not a policy: {0}")]
pub struct InvalidPolicy(String);

/// A policy: requirements by transport and scope.
#[derive(Debug, Clone)]
pub struct Policy {
    default: Vec<Requirement>,
    transports: BTreeMap<String, BTreeMap<String, Vec<Requirement>>>,
}

/// What an image must fulfil.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Requirement {
    Accept,
    Reject,
    Sigstore {
        keys: Keys,
        identity: Identity,
    },
    /// One that is understood and cannot be checked, with the reason.
    Unsupported(&'static str),
}

/// Where public keys are. One of them must have signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Keys {
    Files(Vec<PathBuf>),
    Data(Vec<Vec<u8>>),
}

impl Policy {
    /// Parses the file.
    ///
    /// # Errors
    /// The text is not JSON, has a key that is not known or occurs twice, or a value that is not allowed.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPolicy> {
        let read = || -> Result<Self, serde_json::Error> {
            let raw: RawPolicy = strict::object(strict::parse(bytes)?)?;
            let mut transports = BTreeMap::new();
            for (transport, scopes) in raw.transports.unwrap_or_default() {
                transports.insert(transport.clone(), scopes_of(&transport, scopes)?);
            }
            Ok(Self { default: requirements(raw.default)?, transports })
        };
        read().map_err(|error| InvalidPolicy(error.to_string()))
    }

    /// The scope that applies to the image, for messages, and its requirements.
    pub(crate) fn requirements(&self, source: &Source) -> (String, &[Requirement]) {
        let (transport, names) = scope::of(source);
        if let Some(scopes) = self.transports.get(transport) {
            for name in names.iter().map(String::as_str).chain([""]) {
                if let Some(found) = scopes.get(name) {
                    let shown =
                        if name.is_empty() { format!("transport {transport}") } else { format!("scope {name}") };
                    return (shown, found);
                }
            }
        }
        ("default".to_owned(), &self.default)
    }
}

fn scopes_of(transport: &str, scopes: Value) -> Result<BTreeMap<String, Vec<Requirement>>, serde_json::Error> {
    let scopes: BTreeMap<String, Value> = strict::object(scopes)?;
    let read = |(name, list): (String, Value)| {
        if !name.is_empty()
            && let Err(why) = scope::check(transport, &name)
        {
            return Err(serde_json::Error::custom(format!("{name:?} is no scope of transport {transport}: {why}")));
        }
        Ok((name, requirements(list)?))
    };
    scopes.into_iter().map(read).collect()
}

fn requirements(list: Value) -> Result<Vec<Requirement>, serde_json::Error> {
    let Value::Array(list) = list else {
        return Err(serde_json::Error::custom("requirements are not a list"));
    };
    if list.is_empty() {
        return Err(serde_json::Error::custom("a list of requirements is empty"));
    }
    list.into_iter().map(|one| strict::object::<RawRequirement>(one)?.into_requirement()).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    default: Value,
    #[serde(default, deserialize_with = "present_object")]
    transports: Option<BTreeMap<String, Value>>,
}

fn present_object<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BTreeMap<String, Value>>, D::Error> {
    strict::object(Value::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum RawRequirement {
    InsecureAcceptAnything {},
    Reject {},
    SignedBaseLayer {
        #[serde(deserialize_with = "Identity::in_policy")]
        base_layer_identity: Identity,
    },
    SignedBy {
        key_type: KeyType,
        #[serde(default, deserialize_with = "present")]
        key_path: Option<PathBuf>,
        #[serde(default, deserialize_with = "present")]
        key_paths: Option<Vec<PathBuf>>,
        #[serde(default, deserialize_with = "present")]
        key_data: Option<Base64>,
        #[serde(default, deserialize_with = "Identity::present")]
        signed_identity: Option<Identity>,
    },
    SigstoreSigned(Box<RawSigstore>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSigstore {
    #[serde(default, deserialize_with = "present")]
    key_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "present")]
    key_paths: Option<Vec<PathBuf>>,
    #[serde(default, deserialize_with = "present")]
    key_data: Option<Base64>,
    #[serde(default, deserialize_with = "present")]
    key_datas: Option<Vec<Base64>>,
    #[serde(default, deserialize_with = "present")]
    fulcio: Option<Fulcio>,
    #[serde(default, deserialize_with = "present")]
    pki: Option<Pki>,
    #[serde(default, deserialize_with = "present")]
    rekor_public_key_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "present")]
    rekor_public_key_paths: Option<Vec<PathBuf>>,
    #[serde(default, deserialize_with = "present")]
    rekor_public_key_data: Option<Base64>,
    #[serde(default, deserialize_with = "present")]
    rekor_public_key_datas: Option<Vec<Base64>>,
    #[serde(default, deserialize_with = "Identity::present")]
    signed_identity: Option<Identity>,
}

#[derive(Deserialize)]
enum KeyType {
    #[serde(rename = "GPGKeys")]
    Gpg,
    #[serde(rename = "signedByGPGKeys")]
    ByGpg,
    #[serde(rename = "X509Certificates")]
    X509,
    #[serde(rename = "signedByX509CAs")]
    ByX509,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fulcio {
    #[serde(default, deserialize_with = "present")]
    ca_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "present")]
    ca_data: Option<Base64>,
    #[serde(rename = "oidcIssuer")]
    oidc_issuer: String,
    subject_email: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pki {
    #[serde(default, deserialize_with = "present", rename = "caRootsPath")]
    roots_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "present", rename = "caRootsData")]
    roots_data: Option<Base64>,
    #[serde(default, deserialize_with = "present", rename = "caIntermediatesPath")]
    intermediates_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "present", rename = "caIntermediatesData")]
    intermediates_data: Option<Base64>,
    #[serde(default, deserialize_with = "present", rename = "subjectEmail")]
    subject_email: Option<String>,
    #[serde(default, deserialize_with = "present", rename = "subjectHostname")]
    subject_hostname: Option<String>,
}

/// Bytes in base64.
struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Go's decoder skips line breaks.
        let text = String::deserialize(from)?.replace(['\r', '\n'], "");
        STANDARD.decode(text).map(Self).map_err(D::Error::custom)
    }
}

const SIGNED_BY: &str = "it demands signatures of type signedBy (GPG), which tarpon does not check; use sigstoreSigned";
const FULCIO: &str = "it demands a certificate of Fulcio, which tarpon does not check; use a key";
const PKI: &str = "it demands a certificate of a PKI, which tarpon does not check; use a key";
const REKOR: &str = "it demands an entry in Rekor, which tarpon does not check; use a key alone";

impl RawRequirement {
    fn into_requirement(self) -> Result<Requirement, serde_json::Error> {
        let invalid = |why: &str| Err(serde_json::Error::custom(why));
        Ok(match self {
            Self::InsecureAcceptAnything {} => Requirement::Accept,
            Self::Reject {} => Requirement::Reject,
            Self::SignedBaseLayer { base_layer_identity: _understood } => {
                Requirement::Unsupported("it demands a signed base layer (signedBaseLayer), which no program checks")
            }
            Self::SignedBy { key_type, key_path, key_paths, key_data, signed_identity: _understood } => {
                match key_type {
                    KeyType::Gpg | KeyType::ByGpg | KeyType::X509 | KeyType::ByX509 => {}
                }
                let sources = [
                    key_path.is_some_and(|path| !path.as_os_str().is_empty()),
                    key_paths.is_some(),
                    key_data.is_some(),
                ];
                if count(&sources) != 1 {
                    return invalid("exactly one of keyPath, keyPaths and keyData must be there");
                }
                Requirement::Unsupported(SIGNED_BY)
            }
            Self::SigstoreSigned(raw) => return raw.into_requirement(),
        })
    }
}

impl RawSigstore {
    fn into_requirement(self) -> Result<Requirement, serde_json::Error> {
        let invalid = |why: &str| Err(serde_json::Error::custom(why));
        let is_set = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
        let is_empty = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| path.as_os_str().is_empty());
        if is_empty(&self.key_path) || is_empty(&self.rekor_public_key_path) {
            return invalid("a path of a key is empty");
        }
        let keys = [
            is_set(&self.key_path),
            self.key_paths.is_some(),
            self.key_data.is_some(),
            self.key_datas.is_some(),
            self.fulcio.is_some(),
            self.pki.is_some(),
        ];
        if count(&keys) != 1 {
            return invalid("exactly one of keyPath, keyPaths, keyData, keyDatas, fulcio and pki must be there");
        }
        let rekor = [
            is_set(&self.rekor_public_key_path),
            self.rekor_public_key_paths.is_some(),
            self.rekor_public_key_data.is_some(),
            self.rekor_public_key_datas.is_some(),
        ];
        if count(&rekor) > 1 {
            return invalid("at most one of the fields rekorPublicKey… can be there");
        }
        let (has_rekor, identity) = (count(&rekor) == 1, self.signed_identity.unwrap_or_default());
        if let Some(fulcio) = self.fulcio {
            fulcio.check().map_err(serde_json::Error::custom)?;
            return if has_rekor {
                Ok(Requirement::Unsupported(FULCIO))
            } else {
                invalid("fulcio needs a key of Rekor")
            };
        }
        if let Some(pki) = self.pki {
            pki.check().map_err(serde_json::Error::custom)?;
            return if has_rekor {
                invalid("pki and Rekor exclude each other")
            } else {
                Ok(Requirement::Unsupported(PKI))
            };
        }
        let data = |list: Vec<Base64>| Keys::Data(list.into_iter().map(|key| key.0).collect());
        let keys = match (self.key_path, self.key_paths, self.key_data, self.key_datas) {
            (Some(one), ..) => Keys::Files(vec![one]),
            (_, Some(several), ..) => Keys::Files(several),
            (_, _, Some(one), _) => data(vec![one]),
            (.., several) => data(several.unwrap_or_default()),
        };
        let is_empty = match &keys {
            Keys::Files(files) => files.is_empty(),
            Keys::Data(keys) => keys.is_empty(),
        };
        match (is_empty, has_rekor) {
            (true, _) => invalid("a list of keys is empty"),
            (false, true) => Ok(Requirement::Unsupported(REKOR)),
            (false, false) => Ok(Requirement::Sigstore { keys, identity }),
        }
    }
}

impl Fulcio {
    fn check(&self) -> Result<(), &'static str> {
        let path = self.ca_path.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
        if path == self.ca_data.is_some() {
            return Err("fulcio needs either caPath or caData");
        }
        if self.oidc_issuer.is_empty() || self.subject_email.is_empty() {
            return Err("fulcio needs oidcIssuer and subjectEmail");
        }
        Ok(())
    }
}

impl Pki {
    fn check(&self) -> Result<(), &'static str> {
        if self.roots_path.is_some() == self.roots_data.is_some() {
            return Err("pki needs either caRootsPath or caRootsData");
        }
        if self.intermediates_path.is_some() && self.intermediates_data.is_some() {
            return Err("pki has both caIntermediatesPath and caIntermediatesData");
        }
        if self.subject_email.is_none() && self.subject_hostname.is_none() {
            return Err("pki needs subjectEmail or subjectHostname");
        }
        Ok(())
    }
}

fn count(which: &[bool]) -> usize {
    which.iter().filter(|is| **is).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope_of(policy: &str, image: &str) -> String {
        Policy::parse(policy.as_bytes()).unwrap().requirements(&image.parse().unwrap()).0
    }

    #[test]
    fn what_containers_image_refuses_is_refused() {
        let bad = [
            "",
            "[]",
            "{}",
            r#"{"default":[]}"#,
            r#"{"default":null}"#,
            r#"{"default":[["reject"]]}"#,
            r#"{"default":[{"type":"reject","x":1}]}"#,
            r#"{"default":[{"type":"insecureAcceptAnything","type":"reject"}]}"#,
            r#"{"default":[{"type":"reject"}],"default":[{"type":"reject"}]}"#,
            r#"{"default":[{"type":"reject"}],"Transports":{}}"#,
            r#"{"default":[{"type":"reject"}],"transports":null}"#,
            r#"{"default":[{"type":"reject"}],"transports":{"docker":[]}}"#,
            r#"{"default":[{"type":"reject"}],"transports":{"docker":{"a.example":[]}}}"#,
            r#"{"default":[{"type":"reject"}],"transports":{"docker":{"a":[{"type":"reject"}],"a":[{"type":"reject"}]}}}"#,
            r#"{"default":[{"type":"reject"}],"transports":{"oci":{"relative":[{"type":"reject"}]}}}"#,
            r#"{"default":[{"type":"reject"}],"transports":{"oci":{"/":[{"type":"reject"}]}}}"#,
            r#"{"default":[{"type":"reject"}],"transports":{"docker-archive":{"/a":[{"type":"reject"}]}}}"#,
            r#"{"default":[{"type":"signedBy"}]}"#,
            r#"{"default":[{"type":"signedBy","keyType":"PGP","keyPath":"/k"}]}"#,
            r#"{"default":[{"type":"sigstoreSigned"}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyPath":""}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyPath":null,"keyData":"YQ=="}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyPath":"/k","keyData":"YQ=="}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyData":"?"}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyDatas":[]}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyPath":"/k","signedIdentity":{"type":"matchAll"}}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyPath":"/k","signedIdentity":{"type":"exactReference"}}]}"#,
            r#"{"default":[{"type":"reject"}]} x"#,
        ];
        for text in bad {
            assert!(Policy::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_it_accepts_is_accepted() {
        let good = [
            r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
            r#"{"default":[{"type":"reject"},{"type":"insecureAcceptAnything"}],"transports":{"docker-daemon":{"":[{"type":"reject"}]}}}"#,
            r#"{"default":[{"type":"signedBy","keyType":"GPGKeys","keyPath":"/k"}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyPath":"/k","signedIdentity":{"type":"matchRepository"}}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyPaths":["/k","/l"]}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","keyDatas":["YQ==","Yg=="],"rekorPublicKeyPath":"/r"}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","fulcio":{"caPath":"/c","oidcIssuer":"i","subjectEmail":"e"},"rekorPublicKeyData":"YQ=="}]}"#,
            r#"{"default":[{"type":"sigstoreSigned","pki":{"caRootsPath":"/c","subjectEmail":"e"}}]}"#,
            r#"{"default":[{"type":"signedBaseLayer","baseLayerIdentity":{"type":"matchExact"}}]}"#,
        ];
        for text in good {
            assert!(Policy::parse(text.as_bytes()).is_ok(), "{text}: {:?}", Policy::parse(text.as_bytes()));
        }
    }

    #[test]
    fn the_narrowest_scope_applies() {
        let scope = |names: &[&str]| {
            let entries: Vec<String> = names.iter().map(|name| format!(r#""{name}":[{{"type":"reject"}}]"#)).collect();
            format!(r#"{{"default":[{{"type":"reject"}}],"transports":{{"docker":{{{}}}}}}}"#, entries.join(","))
        };
        let all = ["", "*.example.com", "*.com", "r.example.com", "r.example.com/team", "r.example.com/team/app"];
        let image = "r.example.com/team/app:v1";
        for (kept, expected) in [
            (6, "scope r.example.com/team/app"),
            (5, "scope r.example.com/team"),
            (4, "scope r.example.com"),
            (3, "scope *.example.com"),
            (1, "transport docker"),
            (0, "default"),
        ] {
            assert_eq!(scope_of(&scope(&all[..kept]), image), expected);
        }
        assert_eq!(scope_of(&scope(&["r.example.com/team/app:v1"]), image), "scope r.example.com/team/app:v1");
        assert_eq!(scope_of(&scope(&["r.example.com/team/app:v2", "*.com"]), image), "scope *.com");
        assert_eq!(scope_of(&scope(&["example.com", "docker.io/library"]), "debian:12"), "scope docker.io/library");
        assert_eq!(
            scope_of(&scope(&["*.com"]), "r.example.com:5000/a"),
            "scope *.com",
            "a port is no part of a domain"
        );
    }
}
