//! The host's policy: for each case the verdict is that of Skopeo, and what it refuses is not shown from the store either.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use tarpon_engine::oci::media_type::OCI_MANIFEST;
use tarpon_engine::oci::{Compression, Digest, Platform};
use tarpon_engine::registry::Contents;
use tarpon_engine::{Access, ErrorKind, ImageRequest, Images, PolicyChoice, Pull, Silent};
use tarpon_images::access;
use tarpon_policy::{Payload, SIGNATURE, SigningKey};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};
use tarpon_testkit::registry::Auth;

/// The repositories, by the signatures that the image has in each.
const REPOSITORIES: [&str; 15] = [
    "unsigned",
    "good",
    "bare",
    "other-key",
    "other-digest",
    "other-name",
    "vendor",
    "two",
    "wrong-kind",
    "extra-field",
    "not-base64",
    "no-signature",
    "other-type",
    "team/deep",
    "attached",
];

struct Keys {
    own: SigningKey,
    other: SigningKey,
}

struct World {
    fixture: Fixture,
    digest: Digest,
    keys: Keys,
}

fn private_key() -> SigningKey {
    let random = ring::rand::SystemRandom::new();
    let pkcs8 =
        ring::signature::EcdsaKeyPair::generate_pkcs8(&ring::signature::ECDSA_P256_SHA256_ASN1_SIGNING, &random);
    let pem = pem("PRIVATE KEY", pkcs8.unwrap().as_ref());
    SigningKey::from_pem(pem.as_bytes(), None).unwrap()
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

fn public_pem(key: &SigningKey) -> String {
    pem("PUBLIC KEY", &key.public_key().unwrap().into_der())
}

impl World {
    async fn new() -> Self {
        let image = image();
        let mut contents = Contents::new();
        REPOSITORIES.iter().for_each(|repository| image.add_to(&mut contents, repository, "v1"));
        let fixture = Fixture::with_registry(contents, Auth::Anonymous).await;
        let keys = Keys { own: private_key(), other: private_key() };
        let world = Self { fixture, digest: image.digest(), keys };
        for repository in REPOSITORIES {
            let signatures = world.signatures(repository);
            if repository == "attached" {
                world.attach_as_published(repository).await;
            } else if !signatures.is_empty() {
                world.attach(repository, &signatures).await;
            }
        }
        world
    }

    fn name(&self, repository: &str) -> String {
        format!("{}/{repository}", self.fixture.registry().host())
    }

    /// Payloads and descriptors of the signatures.
    fn signatures(&self, repository: &str) -> Vec<(Bytes, Value)> {
        let signed = |key: &SigningKey, payload: Bytes| {
            let signature = STANDARD.encode(key.sign(&payload).unwrap());
            let layer = json!({
                "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
                "digest": Digest::of(&payload).to_string(),
                "size": payload.len(),
                "annotations": { SIGNATURE: signature },
            });
            (payload, layer)
        };
        let payload = |digest: Digest, name: &str| Payload { digest, reference: name.to_owned() }.to_bytes();
        let tagged = payload(self.digest, &format!("{}:v1", self.name(repository)));
        let edited = |edit: fn(&mut Value)| {
            let mut document: Value = serde_json::from_slice(&tagged).unwrap();
            edit(&mut document);
            Bytes::from(document.to_string())
        };
        let Keys { own, other } = &self.keys;
        let mut good = signed(own, tagged.clone());
        match repository {
            "unsigned" | "attached" => Vec::new(),
            "bare" => vec![signed(own, payload(self.digest, &self.name(repository)))],
            "other-key" => vec![signed(other, tagged)],
            "other-digest" => {
                vec![signed(own, payload(Digest::of(b"other"), &format!("{}:v1", self.name(repository))))]
            }
            "other-name" => vec![signed(own, payload(self.digest, &format!("{}:v1", self.name("good"))))],
            "vendor" => vec![signed(own, payload(self.digest, "vendor.example/images/vendor:v1"))],
            "two" => vec![signed(other, tagged), good],
            "wrong-kind" => vec![signed(own, edited(|document| document["critical"]["type"] = json!("other")))],
            "extra-field" => vec![signed(own, edited(|document| document["critical"]["more"] = json!(1)))],
            "not-base64" => {
                good.1["annotations"][SIGNATURE] = json!("???");
                vec![good]
            }
            "no-signature" => {
                good.1["annotations"] = json!({});
                vec![good]
            }
            "other-type" => {
                good.1["mediaType"] = json!("application/vnd.dsse.envelope.v1+json");
                vec![good]
            }
            _ => vec![good],
        }
    }

    /// Signs as `tarpon index --sign-by-key` does.
    async fn attach_as_published(&self, repository: &str) {
        let engine = support::engine(&self.fixture.path("signer"));
        let place = format!("{}:v1", self.name(repository)).parse().unwrap();
        engine.sign_index(&self.keys.own, &self.digest, &place, &self.access(None)).await.unwrap();
    }

    async fn attach(&self, repository: &str, signatures: &[(Bytes, Value)]) {
        let tag = tarpon_policy::signature_tag(&self.digest);
        let destination = access::destination(&format!("{}:{tag}", self.name(repository)), &self.access(None)).unwrap();
        let config = Bytes::from_static(b"{}");
        let layers: Vec<&Value> = signatures.iter().map(|(_, layer)| layer).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "size": config.len(),
                "digest": Digest::of(&config).to_string(),
            },
            "layers": layers,
        });
        destination.push_bytes(config).await.unwrap();
        for (payload, _) in signatures {
            destination.push_bytes(payload.clone()).await.unwrap();
        }
        destination.push_manifest(OCI_MANIFEST, manifest.to_string().into(), Some(&tag)).await.unwrap();
    }

    /// Whether a policy accepts an image with signatures, by the rules of containers-policy.json(5).
    fn accepts(&self, policy: &str, image: &str) -> bool {
        let image = image.strip_prefix("docker://").and_then(|image| image.strip_prefix(&self.name(""))).unwrap();
        let is_pinned = image.contains('@');
        let repository = image.split(['@', ':']).next().unwrap();
        match (policy, is_pinned) {
            ("signed", false) => ["good", "two", "team/deep"].contains(&repository),
            ("match repository", false) => ["good", "bare", "two", "team/deep", "attached"].contains(&repository),
            ("match repository", true) => ["good", "bare"].contains(&repository),
            ("exact reference" | "exact repository", false) => ["good", "other-name"].contains(&repository),
            ("remapped", _) => repository == "vendor",
            ("signed by both", false) => repository == "two",
            ("key data" | "match exact", false) | ("signed", true) => repository == "good",
            _ => false,
        }
    }

    fn access(&self, policy: Option<&Path>) -> Access {
        let policy = policy.map_or(PolicyChoice::Host, |file| PolicyChoice::File(file.to_owned()));
        Access { tls_verify: Some(false), policy, ..Access::default() }
    }

    fn request(&self, image: &str, policy: &Path) -> ImageRequest {
        let platform: Platform = "linux/amd64".parse().unwrap();
        let access = self.access(Some(policy));
        ImageRequest { access, ..ImageRequest::new(image, image.parse().unwrap(), platform) }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.fixture.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn image() -> Image {
    Image::of([Layer::plain(&tar(&[Item::file("file", "text")], Dialect::Pax), Compression::Gzip)])
}

/// The policies, by name.
fn policies(world: &World) -> BTreeMap<&'static str, String> {
    let host = world.fixture.registry().host();
    let own = world.write("own.pub", &public_pem(&world.keys.own)).display().to_string();
    let other = world.write("other.pub", &public_pem(&world.keys.other)).display().to_string();
    let garbage = world.write("garbage.pub", "no key").display().to_string();
    let layout = world.fixture.layout();
    let (accept, reject) = (json!({"type": "insecureAcceptAnything"}), json!({"type": "reject"}));
    let signed = |key: &str| json!({"type": "sigstoreSigned", "keyPath": key});
    let identified = |identity: Value| json!({"type": "sigstoreSigned", "keyPath": own, "signedIdentity": identity});
    let default = |list: &[Value]| json!({"default": list}).to_string();
    let docker = |fallback: &Value, scope: &str, list: &[Value]| {
        json!({"default": [fallback], "transports": {"docker": {scope: list}}}).to_string()
    };
    let one = std::slice::from_ref;
    BTreeMap::from([
        ("accept", default(one(&accept))),
        ("reject", default(one(&reject))),
        ("accept and reject", default(&[accept.clone(), reject.clone()])),
        ("signed", default(&[signed(&own)])),
        ("signed by both", default(&[signed(&own), signed(&other)])),
        ("key data", default(&[json!({"type": "sigstoreSigned", "keyData": STANDARD.encode(public_pem(&world.keys.own))})])),
        ("match repository", default(&[identified(json!({"type": "matchRepository"}))])),
        ("match exact", default(&[identified(json!({"type": "matchExact"}))])),
        ("exact reference", default(&[identified(json!({"type": "exactReference", "dockerReference": format!("{host}/good:v1")}))])),
        ("exact repository", default(&[identified(json!({"type": "exactRepository", "dockerRepository": format!("{host}/good")}))])),
        ("remapped", default(&[identified(json!({"type": "remapIdentity", "prefix": host, "signedPrefix": "vendor.example/images"}))])),
        ("no key", default(&[signed("/missing/key.pub")])),
        ("garbage key", default(&[signed(&garbage)])),
        ("gpg", default(&[json!({"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/missing/keys.gpg"})])),
        ("host", docker(&reject, &host, one(&accept))),
        ("repository", docker(&reject, &format!("{host}/good"), one(&accept))),
        ("namespace", docker(&reject, &format!("{host}/team"), one(&accept))),
        ("half a name", docker(&reject, &format!("{host}/goo"), one(&accept))),
        ("tag", docker(&reject, &format!("{host}/good:v1"), one(&accept))),
        ("other tag", docker(&reject, &format!("{host}/good:v2"), one(&accept))),
        ("digest", docker(&reject, &format!("{host}/good@{}", world.digest), one(&accept))),
        ("wildcard", docker(&reject, "*.0.0.1", one(&accept))),
        ("wide wildcard", docker(&accept, "*.1", one(&reject))),
        ("whole host as wildcard", docker(&accept, "*.127.0.0.1", one(&reject))),
        ("transport", docker(&accept, "", one(&reject))),
        ("layout", json!({"default": [reject], "transports": {"oci": {layout.display().to_string(): [accept]}}}).to_string()),
        ("folder of layout", json!({"default": [reject], "transports": {"oci": {world.fixture.folder().display().to_string(): [accept]}}}).to_string()),
        ("layouts", json!({"default": [accept], "transports": {"oci": {"": [reject]}}}).to_string()),
        ("unknown key", json!({"default": [accept], "defaults": []}).to_string()),
        ("unknown type", default(&[json!({"type": "signed"})])),
        ("no default", json!({"transports": {}}).to_string()),
        ("nothing", default(&[])),
        ("twice", r#"{"default":[{"type":"reject"}],"default":[{"type":"insecureAcceptAnything"}]}"#.to_owned()),
        ("field of reject", default(&[json!({"type": "insecureAcceptAnything", "keyPath": "/a"})])),
        ("two key sources", default(&[json!({"type": "sigstoreSigned", "keyPath": own, "keyData": "YQ=="})])),
        ("relative scope", json!({"default": [accept], "transports": {"oci": {"a": [accept]}}}).to_string()),
        ("bad prefix", default(&[identified(json!({"type": "remapIdentity", "prefix": "", "signedPrefix": "a.example"}))])),
        ("not JSON", "default".to_owned()),
    ])
}

/// Which images are checked by which policies. Each pair is one case.
fn cases(world: &World) -> Vec<(&'static str, String)> {
    let tag = |repository: &str| format!("docker://{}:v1", world.name(repository));
    let pinned = |repository: &str| format!("docker://{}@{}", world.name(repository), world.digest);
    let layout = format!("oci:{}:v1", world.fixture.layout().display());
    let mut cases = Vec::new();
    for policy in ["signed", "match repository"] {
        cases.extend(REPOSITORIES.iter().map(|repository| (policy, tag(repository))));
    }
    for policy in ["match exact", "exact reference", "exact repository", "remapped", "key data"] {
        cases.extend(["unsigned", "good", "bare", "other-name", "vendor"].map(|repository| (policy, tag(repository))));
    }
    for policy in ["signed", "match repository", "match exact", "remapped"] {
        cases.extend(["good", "bare", "other-name", "vendor"].map(|repository| (policy, pinned(repository))));
    }
    cases.extend(["good", "two", "other-key"].map(|repository| ("signed by both", tag(repository))));
    for policy in [
        "accept",
        "reject",
        "accept and reject",
        "no key",
        "garbage key",
        "gpg",
        "host",
        "repository",
        "namespace",
        "half a name",
        "tag",
        "other tag",
        "digest",
        "wildcard",
        "wide wildcard",
        "whole host as wildcard",
        "transport",
        "unknown key",
        "unknown type",
        "no default",
        "nothing",
        "twice",
        "field of reject",
        "two key sources",
        "relative scope",
        "bad prefix",
        "not JSON",
    ] {
        cases.push((policy, tag("good")));
    }
    for policy in ["tag", "digest", "repository"] {
        cases.push((policy, pinned("good")));
    }
    cases.extend(["repository", "namespace"].map(|policy| (policy, tag("team/deep"))));
    for policy in
        ["accept", "reject", "signed", "exact repository", "layout", "folder of layout", "layouts", "transport"]
    {
        cases.push((policy, layout.clone()));
    }
    cases
}

/// Skopeo, or `$SKOPEO`: a build that checks signatures by sigstore.
fn program() -> OsString {
    std::env::var_os("SKOPEO").unwrap_or_else(|| "skopeo".into())
}

/// Whether Skopeo copies the image.
fn skopeo(world: &World, policy: &Path, registries: &Path, image: &str, to: &Path) -> Result<(), String> {
    let mut command = Command::new(program());
    command.arg("--policy").arg(policy).arg("--registries.d").arg(registries);
    command.args(["--override-os", "linux", "--override-arch", "amd64"]);
    command.args(["copy", "-q", "--src-tls-verify=false", "--remove-signatures", image]);
    let output = command.arg(format!("dir:{}", to.display())).env("HOME", world.fixture.folder()).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_verdict_is_that_of_skopeo() {
    if Command::new(program()).arg("--version").output().is_err() {
        println!("skipped: skopeo is not installed");
        return;
    }
    let world = World::new().await;
    image().write_layout("v1", &world.fixture.layout());
    let registries = world.fixture.path("registries.d");
    std::fs::create_dir(&registries).unwrap();
    std::fs::write(registries.join("default.yaml"), "default-docker:\n  use-sigstore-attachments: true\n").unwrap();
    let policies: BTreeMap<_, _> = policies(&world)
        .into_iter()
        .enumerate()
        .map(|(number, (name, text))| (name, world.write(&format!("policy-{number}.json"), &text)))
        .collect();
    let images = Images::open(&world.fixture.path("store")).unwrap();
    let (mut differences, mut accepted, mut compared) = (String::new(), 0, 0);
    let cases = cases(&world);
    for (number, (name, image)) in cases.iter().enumerate() {
        let policy = &policies[name];
        let theirs = skopeo(&world, policy, &registries, image, &world.fixture.path(&format!("copy-{number}")));
        if let Err(message) = &theirs {
            let is_verdict = ["rejected", "olicy"].iter().any(|word| message.contains(word));
            assert!(is_verdict, "{name}, {image}: {message}");
        }
        let ours = images.inspect(&world.request(image, policy)).await.map(drop);
        if let Err(error) = &ours {
            assert_eq!(error.kind, ErrorKind::Forbidden, "{name}, {image}: {error}");
        }
        accepted += usize::from(ours.is_ok());
        let expected = match theirs {
            // Debian's build has no check of signatures by sigstore.
            Err(message) if message.contains("sigstore disabled") => world.accepts(name, image),
            verdict => {
                compared += 1;
                verdict.is_ok()
            }
        };
        if expected != ours.is_ok() {
            writeln!(differences, "{name}, {image}: expected {expected}, tarpon {ours:?}").unwrap();
        }
    }
    println!("{} cases, {compared} compared with Skopeo, {accepted} accepted", cases.len());
    assert!(differences.is_empty(), "{differences}");
    assert!(cases.len() >= 100 && compared >= 40 && accepted >= 30, "{} cases", cases.len());
}

#[tokio::test]
async fn an_image_of_the_store_is_used_only_under_the_demands_that_accepted_it() {
    let world = World::new().await;
    let policies = policies(&world);
    let policy = world.write("policy.json", &policies["accept"]);
    let set = |name: &str| world.write("policy.json", &policies[name]);
    let images = Images::open(&world.fixture.path("store")).unwrap();
    let prepare = async |repository: &str, pull: Pull| {
        let request = world.request(&format!("{}:v1", world.name(repository)), &policy);
        images.prepare(&ImageRequest { pull, ..request }, &Silent).await.map(drop).map_err(|error| error.to_string())
    };
    prepare("good", Pull::Missing).await.unwrap();
    prepare("unsigned", Pull::Missing).await.unwrap();

    set("reject");
    let refused = prepare("good", Pull::Never).await.unwrap_err();
    assert!(refused.contains("policy.json (default) refuses it: it rejects such images"), "{refused}");

    set("signed");
    let unchecked = prepare("good", Pull::Never).await.unwrap_err();
    assert!(unchecked.contains("was not checked when it was stored"), "{unchecked}");
    let unsigned = prepare("unsigned", Pull::Missing).await.unwrap_err();
    assert!(unsigned.contains("the image has none"), "{unsigned}");
    prepare("good", Pull::Missing).await.unwrap();
    prepare("good", Pull::Never).await.unwrap();
    assert!(prepare("other-name", Pull::Never).await.is_err(), "the same manifest under a name that was not checked");

    set("match repository");
    assert!(prepare("good", Pull::Never).await.is_err(), "other demands");
    set("accept");
    prepare("unsigned", Pull::Never).await.unwrap();
}
