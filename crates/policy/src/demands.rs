//! [`Demands`]: what the policy demands of one image, with everything that is needed to check it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarpon_oci::{Digest, Source};

use crate::identity::Identity;
use crate::key::PublicKey;
use crate::payload::{self, Payload};

/// What an image must fulfil. Another process can check it: keys are in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Demands {
    /// The file of the policy; `None` if the host has none.
    pub(crate) policy: Option<String>,
    /// The scope that applies, for messages.
    pub(crate) scope: String,
    pub(crate) list: Vec<Demand>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Demand {
    Accept,
    Reject,
    /// A signature by one of the keys (`SubjectPublicKeyInfo`) for a name that the rule accepts.
    Signed {
        keys: Vec<Vec<u8>>,
        identity: Identity,
    },
    /// Fulfilled by no image, for this reason.
    Unfulfillable(String),
}

/// Why the policy refuses an image: one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policy {policy} ({scope}) refuses it: {why}")]
pub struct Refusal {
    policy: String,
    scope: String,
    why: String,
}

/// A signature as it was found: nothing of it is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The media type of the payload.
    pub media_type: String,
    /// What is signed.
    pub payload: Bytes,
    /// The signature, in base64.
    pub signature: Option<String>,
}

impl Demands {
    /// Nothing is demanded: the host has no policy.
    pub fn nothing() -> Self {
        Self { policy: None, scope: "default".to_owned(), list: vec![Demand::Accept] }
    }

    /// Whether signatures decide. If not, [`Demands::check`] needs none.
    pub fn need_signatures(&self) -> bool {
        self.list.iter().any(|demand| matches!(demand, Demand::Signed { .. }))
    }

    /// Refuses an image that no signature helps, before anything is requested of it.
    ///
    /// # Errors
    /// The image is rejected, or a demand cannot be checked.
    pub fn check_before(&self) -> Result<(), Refusal> {
        self.list.iter().try_for_each(|demand| match demand {
            Demand::Accept | Demand::Signed { .. } => Ok(()),
            Demand::Reject => Err(self.refusal("it rejects such images")),
            Demand::Unfulfillable(why) => Err(self.refusal(why)),
        })
    }

    /// Checks the image `source`, whose manifest is `manifest`.
    ///
    /// # Errors
    /// A demand is not fulfilled.
    pub fn check(&self, source: &Source, manifest: &Digest, signatures: &[Signature]) -> Result<(), Refusal> {
        self.check_before()?;
        self.list.iter().try_for_each(|demand| match demand {
            Demand::Signed { keys, identity } => {
                self.check_signatures(source, manifest, signatures, &Signed::new(keys, identity))
            }
            _ => Ok(()),
        })
    }

    fn check_signatures(
        &self,
        source: &Source,
        manifest: &Digest,
        signatures: &[Signature],
        demand: &Signed<'_>,
    ) -> Result<(), Refusal> {
        if signatures.is_empty() {
            return Err(self.refusal("it demands a signature, and the image has none"));
        }
        let mut why = Vec::new();
        for signature in signatures {
            match demand.accepts(source, manifest, signature) {
                Ok(()) => return Ok(()),
                Err(reason) if why.contains(&reason) => {}
                Err(reason) => why.push(reason),
            }
        }
        Err(self.refusal(&why.join("; ")))
    }

    /// The keys that sign for the image: those whose signature is demanded of it.
    pub fn keys(&self) -> Vec<PublicKey> {
        let of = |demand: &Demand| match demand {
            Demand::Signed { keys, .. } => keys.clone(),
            _ => Vec::new(),
        };
        self.list.iter().flat_map(of).map(PublicKey::from_der).collect()
    }

    /// A digest that differs for other demands and for another name of the image.
    pub fn fingerprint(&self, source: &Source) -> Digest {
        // Strings and lists of bytes always have a form in JSON.
        let text = serde_json::to_vec(&(source.to_string(), &self.list)).unwrap_or_default();
        Digest::of(&text)
    }

    /// A refusal for this reason.
    pub fn refusal(&self, why: &str) -> Refusal {
        let policy = self.policy.clone().unwrap_or_else(|| "of the host".to_owned());
        Refusal { policy, scope: self.scope.clone(), why: why.to_owned() }
    }
}

impl Signature {
    /// What is signed, if one of the keys signed it.
    ///
    /// # Errors
    /// The reason, one line.
    fn verified(&self, keys: &[PublicKey]) -> Result<Payload, String> {
        if self.media_type != payload::MEDIA_TYPE {
            return Err(format!("an attachment of type {:?} is no signature", self.media_type));
        }
        let signature = self.signature.as_deref().ok_or("a signature has no bytes")?;
        let signature =
            STANDARD.decode(signature.replace(['\r', '\n'], "")).map_err(|_| "a signature is not base64")?;
        if !keys.iter().any(|key| key.verifies(&self.payload, &signature)) {
            return Err("a signature is not by a key of the policy".to_owned());
        }
        Payload::parse(&self.payload).map_err(|error| error.to_string())
    }

    /// Whether one of the keys signed the manifest with this digest. Its name does not matter: the manifest itself states what it is for.
    ///
    /// # Errors
    /// The reason, one line.
    pub fn signs(&self, keys: &[PublicKey], manifest: &Digest) -> Result<(), String> {
        let signed = self.verified(keys)?.digest;
        if signed == *manifest {
            return Ok(());
        }
        Err(format!("a signature is for the digest {signed}"))
    }
}

struct Signed<'d> {
    keys: Vec<PublicKey>,
    identity: &'d Identity,
}

impl<'d> Signed<'d> {
    fn new(keys: &[Vec<u8>], identity: &'d Identity) -> Self {
        Self { keys: keys.iter().cloned().map(PublicKey::from_der).collect(), identity }
    }

    fn accepts(&self, source: &Source, manifest: &Digest, found: &Signature) -> Result<(), String> {
        let signed = found.verified(&self.keys)?;
        if signed.digest != *manifest {
            return Err(format!("a signature is for the digest {}, the image's is {manifest}", signed.digest));
        }
        if !self.identity.accepts(source, &signed.reference) {
            return Err(format!("a signature is for the name {:?}", signed.reference));
        }
        Ok(())
    }
}
