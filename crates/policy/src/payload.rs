//! [`Payload`]: what a signature signs, a "simple signing" document.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tarpon_oci::Digest;

use crate::strict;

/// The media type of a payload.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The kind of signature.
const KIND: &str = "cosign container image signature";

/// The bytes are not a payload.
#[derive(Debug, thiserror::Error)]
#[error("not a payload of a signature: {0}")]
pub struct InvalidPayload(String);

/// What a signature states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The signed manifest.
    pub digest: Digest,
    /// The name that it was signed for.
    pub reference: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    critical: Value,
    optional: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    r#type: String,
    image: Value,
    identity: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    #[serde(rename = "docker-reference")]
    reference: String,
}

impl Payload {
    /// The document, as cosign writes it.
    pub fn to_bytes(&self) -> Bytes {
        let document = json!({
            "critical": {
                "identity": { "docker-reference": self.reference },
                "image": { "docker-manifest-digest": self.digest.to_string() },
                "type": KIND,
            },
            "optional": null,
        });
        Bytes::from(document.to_string())
    }

    /// Parses a payload whose signature was checked.
    ///
    /// # Errors
    /// The bytes are not a payload, or of another kind.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPayload> {
        let read = || -> Result<Self, String> {
            let text = |error: serde_json::Error| error.to_string();
            let raw: Raw = strict::object(strict::parse(bytes).map_err(text)?).map_err(text)?;
            check_optional(&raw.optional)?;
            let critical: Critical = strict::object(raw.critical).map_err(text)?;
            if critical.r#type != KIND {
                return Err(format!("its type is {:?}", critical.r#type));
            }
            let image: Image = strict::object(critical.image).map_err(text)?;
            let name: Name = strict::object(critical.identity).map_err(text)?;
            let digest = image.digest.parse().map_err(|_| format!("{:?} is not a sha256 digest", image.digest))?;
            Ok(Self { digest, reference: name.reference })
        };
        read().map_err(InvalidPayload)
    }
}

/// Annotations of the signer: nothing depends on them, but containers/image refuses some.
fn check_optional(optional: &Value) -> Result<(), String> {
    let fields = match optional {
        Value::Null => return Ok(()),
        Value::Object(fields) => fields,
        _ => return Err("optional is not an object".to_owned()),
    };
    let is_good = |(key, value): (&String, &Value)| match key.as_str() {
        "creator" => value.is_string() || value.is_null(),
        "timestamp" => value.is_null() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    };
    if fields.iter().all(is_good) { Ok(()) } else { Err("optional has a wrong creator or timestamp".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(kind: &str, optional: &str, extra: &str) -> String {
        let digest = Digest::of(b"m");
        format!(
            r#"{{"critical":{{"identity":{{"docker-reference":"r.example/a"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"{kind}"}},"optional":{optional}{extra}}}"#
        )
    }

    #[test]
    fn a_payload_is_read_strictly() {
        let read = Payload::parse(payload(KIND, "null", "").as_bytes()).unwrap();
        assert_eq!(read, Payload { digest: Digest::of(b"m"), reference: "r.example/a".to_owned() });
        assert!(
            Payload::parse(payload(KIND, r#"{"creator":"x","timestamp":1700000000,"a":{}}"#, "").as_bytes()).is_ok()
        );
        let bad = [
            payload("atomic container signature", "null", ""),
            payload(KIND, "[]", ""),
            payload(KIND, r#"{"timestamp":1.5}"#, ""),
            payload(KIND, "null", r#","more":1"#),
            payload(KIND, "null", r#","optional":null"#),
            payload(KIND, "null", "").replace("sha256:", "md5:"),
            payload(KIND, "null", "").replace(r#","optional":null"#, ""),
        ];
        for text in bad {
            assert!(Payload::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
