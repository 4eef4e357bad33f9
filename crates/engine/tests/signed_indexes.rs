//! Signed indexes: used without being asked for if a key of the policy signed them, and otherwise refused with one line.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use support::{EngineFixture, Notes};
use tarpon_engine::oci::media_type::{OCI_INDEX, OCI_MANIFEST};
use tarpon_engine::oci::{Compression, Digest};
use tarpon_engine::registry::Contents;
use tarpon_engine::{Access, Engine, ImageRequest, IndexChoice, PolicyChoice, SigningKey};
use tarpon_images::access;
use tarpon_policy::{Attachment, signature_tag};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};
use tarpon_testkit::registry::{Auth, Referrers};

struct SignedFixture {
    fixture: Fixture,
    engine: Engine,
    key: SigningKey,
    notes: Notes,
    v0: Digest,
    v1: Digest,
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

fn private_key() -> SigningKey {
    let random = ring::rand::SystemRandom::new();
    let pkcs8 =
        ring::signature::EcdsaKeyPair::generate_pkcs8(&ring::signature::ECDSA_P256_SHA256_ASN1_SIGNING, &random);
    SigningKey::from_pem(pem("PRIVATE KEY", pkcs8.unwrap().as_ref()).as_bytes(), None).unwrap()
}

fn image(text: &str) -> Image {
    Image::of([Layer::plain(&tar(&[Item::file("file", text)], Dialect::Pax), Compression::Gzip)])
}

impl SignedFixture {
    /// A registry with two signed images, and a policy that names the key.
    async fn new() -> Self {
        let (v0, v1) = (image("old"), image("new"));
        let mut contents = Contents::new();
        v0.add_to(&mut contents, "app", "v0");
        v1.add_to(&mut contents, "app", "v1");
        let fixture = Fixture::with_registry(contents, Auth::Anonymous).await;
        fixture.registry().model().set_referrers(Referrers::Unknown);
        let key = private_key();
        std::fs::write(fixture.path("key.pub"), pem("PUBLIC KEY", &key.public_key().unwrap().into_der())).unwrap();
        let policy = json!({"default": [{
            "type": "sigstoreSigned",
            "keyPath": fixture.path("key.pub"),
            "signedIdentity": {"type": "matchRepository"},
        }]});
        std::fs::write(fixture.path("policy.json"), policy.to_string()).unwrap();
        let engine = fixture.engine("maker");
        let this = Self { fixture, engine, key, notes: Notes::default(), v0: v0.digest(), v1: v1.digest() };
        for (image, digest) in [("app:v0", this.v0), ("app:v1", this.v1)] {
            this.sign(&this.key, image, digest).await;
        }
        this
    }

    fn access(&self) -> Access {
        let policy = PolicyChoice::File(self.fixture.path("policy.json"));
        Access { tls_verify: Some(false), policy, ..Access::default() }
    }

    fn request(&self, image: &str) -> ImageRequest {
        ImageRequest { index: IndexChoice::Signed, access: self.access(), ..self.fixture.request(image) }
    }

    async fn sign(&self, key: &SigningKey, image: &str, digest: Digest) {
        let place = self.fixture.request(image).source;
        self.engine.sign_index(key, &digest, &place, &self.access()).await.unwrap();
    }

    /// Publishes an index of the image.
    async fn publish(&self, image: &str) -> Digest {
        let request = ImageRequest { index: IndexChoice::None, ..self.request(image) };
        let made = self.engine.make_index(&request, &[], &self.notes).await.unwrap();
        self.engine.publish_index(&made, &request.source, &request.access, None).await.unwrap()
    }

    /// How the layer of `app:v1` is known in an empty store, and the notes.
    async fn prepared(&self, store: &str) -> (String, Vec<String>) {
        self.notes.take();
        let prepared = self.fixture.engine(store).prepare(&self.request("app:v1"), &self.notes).await.unwrap();
        (prepared.record.layers[0].verification.to_string(), self.notes.take())
    }
}

#[tokio::test]
async fn an_index_that_a_key_of_the_policy_signed_is_used_without_being_asked_for() {
    let fixture = SignedFixture::new().await;
    let (state, notes) = fixture.prepared("without").await;
    assert_eq!((state.as_str(), notes.as_slice()), ("diffID-verified", &[][..]), "no index is no news");

    let index = fixture.publish("app:v1").await;
    let (state, notes) = fixture.prepared("unsigned").await;
    assert_eq!(state, "diffID-verified");
    assert_eq!(notes, [format!("the index {index} is not used: it has no signature")]);

    fixture.sign(&fixture.key, "app:v1", index).await;
    let (state, notes) = fixture.prepared("signed").await;
    assert_eq!(state, "index-signed");
    assert_eq!(notes, [format!("the index {index} is used, because a key of the policy signed it")]);
}

#[tokio::test]
async fn an_index_that_another_key_signed_is_used_once_the_right_one_signed_it_too() {
    let fixture = SignedFixture::new().await;
    let index = fixture.publish("app:v1").await;
    fixture.sign(&private_key(), "app:v1", index).await;
    let (state, notes) = fixture.prepared("other").await;
    assert_eq!(state, "diffID-verified");
    assert_eq!(notes, [format!("the index {index} is not used: a signature is not by a key of the policy")]);
    fixture.sign(&fixture.key, "app:v1", index).await;
    assert_eq!(fixture.prepared("both").await.0, "index-signed");
}

#[tokio::test]
async fn a_signature_of_another_digest_is_refused() {
    let fixture = SignedFixture::new().await;
    let index = fixture.publish("app:v1").await;
    // The image's own signature under the index's tag.
    let name = fixture.fixture.name("app");
    let name = name.strip_suffix(":latest").unwrap_or(&name);
    let attachment = Attachment::sign(&fixture.key, fixture.v1, name, &[]).unwrap();
    let target = access::destination(&fixture.fixture.name("app:v1"), &fixture.access()).unwrap();
    target.push_bytes(attachment.payload).await.unwrap();
    target.push_bytes(attachment.config).await.unwrap();
    target.push_manifest(OCI_MANIFEST, attachment.manifest, Some(&signature_tag(&index))).await.unwrap();
    let (state, notes) = fixture.prepared("store").await;
    assert_eq!(state, "diffID-verified");
    assert_eq!(notes, [format!("the index {index} is not used: a signature is for the digest {}", fixture.v1)]);
}

#[tokio::test]
async fn a_signed_index_of_an_older_image_is_refused_for_a_newer_one() {
    let fixture = SignedFixture::new().await;
    let index = fixture.publish("app:v0").await;
    fixture.sign(&fixture.key, "app:v0", index).await;
    // The registry lists it for the newer image.
    let target = access::destination(&fixture.fixture.name("app:v1"), &fixture.access()).unwrap();
    let source = access::open(&fixture.fixture.name("app:v0"), &fixture.access()).await.unwrap();
    let bytes = source.manifest(&index).await.unwrap();
    let list = json!({
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [{
            "mediaType": OCI_MANIFEST,
            "digest": index.to_string(),
            "size": bytes.len(),
            "artifactType": "application/vnd.tarpon.index.v1",
        }],
    });
    let tag = format!("sha256-{}", fixture.v1.hex());
    target.push_manifest(OCI_INDEX, list.to_string().into(), Some(&tag)).await.unwrap();
    let (state, notes) = fixture.prepared("store").await;
    assert_eq!(state, "diffID-verified");
    assert_eq!(notes, [format!("the index {index} is not used: it is about another image")]);
}

#[tokio::test]
async fn without_a_key_in_the_policy_no_list_is_requested() {
    let fixture = SignedFixture::new().await;
    let index = fixture.publish("app:v1").await;
    fixture.sign(&fixture.key, "app:v1", index).await;
    std::fs::write(fixture.fixture.path("policy.json"), r#"{"default":[{"type":"insecureAcceptAnything"}]}"#).unwrap();
    let (state, notes) = fixture.prepared("store").await;
    assert_eq!((state.as_str(), notes.as_slice()), ("diffID-verified", &[][..]));
}
