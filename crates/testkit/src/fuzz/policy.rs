//! Invariant: a policy, a payload of a signature, a list of signatures or a key of any bytes is read or refused, a payload prints as
//! one that reads the same, and no bytes are a signature by a key that did not make it.

use tarpon_oci::Digest;
use tarpon_policy::{Attached, Payload, Policy, PublicKey, Signature};

/// Reads `data` as each of them.
pub fn policy(data: &[u8]) {
    let _ = Policy::parse(data);
    if let Ok(payload) = Payload::parse(data) {
        let printed = Payload::parse(&payload.to_bytes()).expect("what was printed is a payload");
        assert_eq!(printed, payload);
    }
    let _ = Attached::of(data);
    let Ok(key) = PublicKey::from_pem(data) else { return };
    assert!(!key.verifies(b"a message", data));
    let signature = Signature {
        media_type: "application/vnd.dev.cosign.simplesigning.v1+json".into(),
        payload: data.to_vec().into(),
        signature: Some("AAAA".into()),
    };
    assert!(signature.signs(&[key], &Digest::of(data)).is_err());
}
