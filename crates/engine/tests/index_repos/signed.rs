//! Signed indexes in an index repository: the policy's scope of that repository names the key, and the image need not be signed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tarpon_engine::oci::Digest;
use tarpon_engine::oci::media_type::OCI_MANIFEST;
use tarpon_engine::{ImageRequest, IndexChoice, SigningKey, index_destination};
use tarpon_images::access;
use tarpon_policy::{Attachment, signature_tag};

use crate::fixture::Repos;

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

pub(crate) fn key() -> SigningKey {
    let random = ring::rand::SystemRandom::new();
    let pkcs8 =
        ring::signature::EcdsaKeyPair::generate_pkcs8(&ring::signature::ECDSA_P256_SHA256_ASN1_SIGNING, &random);
    SigningKey::from_pem(pem("PRIVATE KEY", pkcs8.unwrap().as_ref()).as_bytes(), None).unwrap()
}

/// A policy that accepts every image, and demands this of the index repository.
fn write_policy(repos: &Repos, requirement: &serde_json::Value) {
    let policy = json!({
        "default": [{"type": "insecureAcceptAnything"}],
        "transports": {"docker": {repos.indexes.name("tarpon"): [requirement]}},
    });
    std::fs::write(repos.policy(), policy.to_string()).unwrap();
}

pub(crate) fn demand_signatures(repos: &Repos, key: &SigningKey) {
    let file = repos.images.path("key.pub");
    std::fs::write(&file, pem("PUBLIC KEY", &key.public_key().unwrap().into_der())).unwrap();
    let identity = json!({"type": "matchRepository"});
    write_policy(repos, &json!({"type": "sigstoreSigned", "keyPath": file, "signedIdentity": identity}));
}

pub(crate) async fn sign(repos: &Repos, key: &SigningKey, request: &ImageRequest, index: &Digest) {
    let (place, access) = index_destination(request).unwrap();
    repos.engine("maker").sign_index(key, index, &place, &access).await.unwrap();
}

#[tokio::test]
async fn an_index_is_used_if_a_key_of_the_index_repositorys_scope_signed_it() {
    let (repos, key) = (Repos::new().await, key());
    demand_signatures(&repos, &key);
    let request = repos.request("app:v1");
    let index = repos.publish(&request, &[]).await.index_digest;
    let place = repos.place();
    let line = |why: &str| format!("the index {index} of {place} {why}");

    for (store, choice) in [("unset", IndexChoice::Unset), ("listed", IndexChoice::Registry)] {
        let request = ImageRequest { index: choice, ..request.clone() };
        let (state, notes) = repos.prepared(store, &request).await;
        assert_eq!((state.as_str(), &notes[0]), ("diffID-verified", &line("is not used: it has no signature")));
    }

    sign(&repos, &self::key(), &request, &index).await;
    let (state, notes) = repos.prepared("wrong key", &request).await;
    assert_eq!(state, "diffID-verified");
    assert_eq!(notes, [line("is not used: a signature is not by a key of the policy")]);

    sign(&repos, &key, &request, &index).await;
    for (store, choice) in [("signed", IndexChoice::Unset), ("only signed", IndexChoice::Signed)] {
        let (state, notes) = repos.prepared(store, &ImageRequest { index: choice, ..request.clone() }).await;
        assert_eq!(state, "index-signed");
        assert_eq!(notes, [line("is used, because a key of the policy signed it")]);
    }
}

#[tokio::test]
async fn a_signature_of_another_digest_is_refused() {
    let (repos, key) = (Repos::new().await, key());
    demand_signatures(&repos, &key);
    let request = repos.request("app:v1");
    let index = repos.publish(&request, &[]).await.index_digest;
    let (place, access) = index_destination(&request).unwrap();
    let attachment = Attachment::sign(&key, repos.v0.digest(), &repos.place(), &[]).unwrap();
    let target = access::open_destination(&place, &access).unwrap();
    target.push_bytes(attachment.payload).await.unwrap();
    target.push_bytes(attachment.config).await.unwrap();
    target.push_manifest(OCI_MANIFEST, attachment.manifest, Some(&signature_tag(&index))).await.unwrap();
    let (state, notes) = repos.prepared("store", &request).await;
    assert_eq!(state, "diffID-verified");
    let (place, other) = (repos.place(), repos.v0.digest());
    assert_eq!(notes, [format!("the index {index} of {place} is not used: a signature is for the digest {other}")]);
}

#[tokio::test]
async fn nothing_is_used_of_an_index_repository_that_the_policy_refuses() {
    let repos = Repos::new().await;
    let request = repos.request("app:v1");
    repos.publish(&request, &[]).await;
    write_policy(&repos, &json!({"type": "reject"}));
    let (_, before) = repos.requests();
    let (state, notes) = repos.prepared("store", &request).await;
    assert_eq!(state, "diffID-verified");
    assert!(notes.len() == 1 && notes[0].contains("refuses it"), "{notes:?}");
    assert_eq!(repos.requests().1, before, "it is not even asked");
}
