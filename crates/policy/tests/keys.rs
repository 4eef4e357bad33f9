//! Private keys as openssl and cosign write them sign what their public keys verify.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crypto_secretbox::aead::{Aead as _, KeyInit as _};
use crypto_secretbox::{Key, Nonce, XSalsa20Poly1305};
use scrypt::Params;
use serde_json::json;
use tarpon_policy::{InvalidKey, PublicKey, SigningKey};

fn openssl(folder: &Path, arguments: &[&str]) -> Option<()> {
    let output = Command::new("openssl").args(arguments).current_dir(folder).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

#[test]
fn keys_of_openssl_sign() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, arguments: &[&str]| openssl(folder.path(), &[arguments, &["-out", name]].concat());
    if make("sec1", &["ecparam", "-name", "prime256v1", "-genkey"]).is_none() {
        println!("skipped: openssl is not installed");
        return;
    }
    make("pkcs8", &["pkcs8", "-topk8", "-nocrypt", "-in", "sec1"]).unwrap();
    make("rsa", &["genpkey", "-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:2048"]).unwrap();
    for name in ["sec1", "pkcs8", "rsa"] {
        make(&format!("{name}.pub"), &["pkey", "-pubout", "-in", name]).unwrap();
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        let (private, public) =
            (SigningKey::from_pem(&read(name), None), PublicKey::from_pem(&read(&format!("{name}.pub"))));
        let (private, public) = (private.unwrap(), public.unwrap());
        let signature = private.sign(b"message").unwrap();
        assert!(public.verifies(b"message", &signature), "{name}");
        assert!(!public.verifies(b"another", &signature), "{name}");
        assert_eq!(private.public_key().unwrap(), public, "{name}");
        std::fs::write(folder.path().join("signature"), &signature).unwrap();
        std::fs::write(folder.path().join("message"), b"message").unwrap();
        let verify = format!("{name}.pub");
        openssl(folder.path(), &["dgst", "-sha256", "-verify", &verify, "-signature", "signature", "message"]).unwrap();
    }
    make("p384", &["ecparam", "-name", "secp384r1", "-genkey"]).unwrap();
    let key = SigningKey::from_pem(&std::fs::read(folder.path().join("p384")).unwrap(), None);
    assert!(matches!(key, Err(InvalidKey::Kind)), "{key:?}");
}

/// The key as `cosign generate-key-pair` encrypts it.
fn encrypted(pkcs8: &[u8], password: &[u8]) -> String {
    let (salt, nonce) = ([7_u8; 32], [9_u8; 24]);
    let mut key = Key::default();
    let params = Params::new(10, 8, 1, Params::RECOMMENDED_LEN).unwrap();
    scrypt::scrypt(password, &salt, &params, &mut key).unwrap();
    let sealed = XSalsa20Poly1305::new(&key).encrypt(&Nonce::from(nonce), pkcs8).unwrap();
    let document = json!({
        "kdf": {"name": "scrypt", "params": {"N": 1024, "r": 8, "p": 1}, "salt": STANDARD.encode(salt)},
        "cipher": {"name": "nacl/secretbox", "nonce": STANDARD.encode(nonce)},
        "ciphertext": STANDARD.encode(sealed),
    });
    let body = STANDARD.encode(document.to_string());
    let label = "ENCRYPTED SIGSTORE PRIVATE KEY";
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

#[test]
fn a_key_of_cosign_needs_its_password() {
    let random = ring::rand::SystemRandom::new();
    let pkcs8 =
        ring::signature::EcdsaKeyPair::generate_pkcs8(&ring::signature::ECDSA_P256_SHA256_ASN1_SIGNING, &random);
    let pem = encrypted(pkcs8.unwrap().as_ref(), b"secret");
    let key = SigningKey::from_pem(pem.as_bytes(), Some(b"secret")).unwrap();
    let signature = key.sign(b"message").unwrap();
    assert!(key.public_key().unwrap().verifies(b"message", &signature));
    assert_eq!(format!("{key:?}"), "SigningKey(…)");
    assert!(matches!(SigningKey::from_pem(pem.as_bytes(), None), Err(InvalidKey::NoPassword)));
    let wrong = SigningKey::from_pem(pem.as_bytes(), Some(b"guess")).unwrap_err().to_string();
    assert_eq!(wrong, "the key cannot be decrypted: the password is wrong");
    assert!(SigningKey::from_pem(b"no key", None).is_err());
}
