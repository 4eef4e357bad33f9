//! Private keys as `cosign generate-key-pair` writes them: PKCS#8 in a secretbox, whose key scrypt derives from a password.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crypto_secretbox::aead::{Aead as _, KeyInit as _};
use crypto_secretbox::{Key, Nonce, XSalsa20Poly1305};
use scrypt::Params;
use serde::Deserialize;

/// The labels of the PEM block, of newer and older versions of cosign.
const LABELS: [&str; 2] = ["ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY"];

/// Bounds of the derivation: 1 GiB of memory and seconds at most. Cosign takes 2^16, 8 and 1, which need 64 MiB.
const LOG_N: u32 = 20;
const R: u32 = 8;
const P: u32 = 4;

#[derive(Deserialize)]
struct Sealed {
    kdf: Kdf,
    cipher: Cipher,
    ciphertext: String,
}

#[derive(Deserialize)]
struct Kdf {
    name: String,
    params: KdfParams,
    salt: String,
}

#[derive(Deserialize)]
struct KdfParams {
    #[serde(rename = "N")]
    n: u64,
    r: u32,
    p: u32,
}

#[derive(Deserialize)]
struct Cipher {
    name: String,
    nonce: String,
}

/// The content of the PEM block; `None` if there is none of this kind.
pub(crate) fn sealed(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?;
    LABELS.into_iter().find_map(|label| {
        let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
        let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
        STANDARD.decode(body.split_whitespace().collect::<String>()).ok()
    })
}

/// Decrypts the key: PKCS#8.
pub(crate) fn open(sealed: &[u8], password: &[u8]) -> Result<Vec<u8>, String> {
    let failed = str::to_owned;
    let sealed: Sealed = serde_json::from_slice(sealed).map_err(|error| error.to_string())?;
    if sealed.kdf.name != "scrypt" || sealed.cipher.name != "nacl/secretbox" {
        return Err(failed("it is encrypted in another way than cosign does"));
    }
    let bytes = |text: &str| STANDARD.decode(text).map_err(|_| failed("not base64"));
    let KdfParams { n, r, p } = sealed.kdf.params;
    let log_n = n.checked_ilog2().filter(|log| n.is_power_of_two() && *log <= LOG_N);
    let log_n = log_n.filter(|_| r <= R && p <= P).and_then(|log| u8::try_from(log).ok());
    let params = log_n
        .and_then(|log| Params::new(log, r, p, Params::RECOMMENDED_LEN).ok())
        .ok_or_else(|| failed("its scrypt parameters"))?;
    let mut key = Key::default();
    scrypt::scrypt(password, &bytes(&sealed.kdf.salt)?, &params, &mut key)
        .map_err(|_| failed("its scrypt parameters"))?;
    let nonce: [u8; 24] = bytes(&sealed.cipher.nonce)?.try_into().map_err(|_| failed("its nonce"))?;
    let box_ = XSalsa20Poly1305::new(&key);
    let opened = box_.decrypt(&Nonce::from(nonce), &*bytes(&sealed.ciphertext)?);
    opened.map_err(|_| failed("the password is wrong"))
}
