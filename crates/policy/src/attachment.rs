//! Signatures as cosign attaches them: an image whose layers are the payloads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use tarpon_oci::Digest;
use tarpon_oci::media_type::OCI_MANIFEST;

use crate::key::PublicKey;
use crate::payload::{MEDIA_TYPE, Payload};
use crate::signing_key::{InvalidKey, SigningKey};

/// The annotation of a payload that contains its signature.
pub const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// The type of the config of an attachment.
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// The tag under which the signatures of a manifest are attached.
pub fn signature_tag(manifest: &Digest) -> String {
    format!("sha256-{}.sig", manifest.hex())
}

/// What is pushed to attach a signature, blobs first.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// The payload.
    pub payload: Bytes,
    /// The config.
    pub config: Bytes,
    /// The manifest.
    pub manifest: Bytes,
}

/// An attached payload.
#[derive(Debug, Clone)]
pub struct Attached {
    /// Its descriptor, verbatim.
    pub descriptor: Value,
    /// Its digest.
    pub digest: String,
}

impl Attached {
    /// The payloads that a manifest attaches.
    ///
    /// # Errors
    /// It is no manifest.
    pub fn of(manifest: &[u8]) -> Result<Vec<Self>, String> {
        let document: Value = serde_json::from_slice(manifest).map_err(|error| error.to_string())?;
        let layers = document["layers"].as_array().ok_or("the attached signatures are not a manifest")?;
        let read = |layer: &Value| {
            let digest = layer["digest"].as_str().ok_or("a signature has no digest")?.to_owned();
            Ok(Self { descriptor: layer.clone(), digest })
        };
        layers.iter().map(read).collect()
    }

    /// Whether it is what [`Attachment::sign`] attaches for the manifest `digest` and the repository `name`, signed by this key.
    pub fn is_by(&self, key: &PublicKey, digest: Digest, name: &str) -> bool {
        let payload = Payload { digest, reference: name.to_owned() }.to_bytes();
        let signature = self.descriptor["annotations"][SIGNATURE].as_str().and_then(|text| STANDARD.decode(text).ok());
        self.digest == Digest::of(&payload).to_string()
            && signature.is_some_and(|signature| key.verifies(&payload, &signature))
    }
}

impl Attachment {
    /// A signature of the manifest `digest`, for the repository `name`, beside those that are attached already.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn sign(key: &SigningKey, digest: Digest, name: &str, attached: &[Attached]) -> Result<Self, InvalidKey> {
        let payload = Payload { digest, reference: name.to_owned() }.to_bytes();
        let signature = STANDARD.encode(key.sign(&payload)?);
        let own = Digest::of(&payload).to_string();
        let layer = json!({
            "mediaType": MEDIA_TYPE,
            "size": payload.len(),
            "digest": own,
            "annotations": { SIGNATURE: signature },
        });
        let layers: Vec<Value> = attached.iter().map(|one| one.descriptor.clone()).chain([layer]).collect();
        let digests: Vec<&str> = attached.iter().map(|one| one.digest.as_str()).chain([own.as_str()]).collect();
        let config = json!({
            "architecture": "",
            "created": "0001-01-01T00:00:00Z",
            "os": "",
            "rootfs": { "type": "layers", "diff_ids": digests },
            "config": {},
        });
        let config = Bytes::from(config.to_string());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": { "mediaType": CONFIG_TYPE, "size": config.len(), "digest": Digest::of(&config).to_string() },
            "layers": layers,
        });
        Ok(Self { payload, config, manifest: Bytes::from(manifest.to_string()) })
    }
}
