//! [`IndexLock`]: the trusted index of each image.
//!
//! It names images by their manifests and not by their tags, so its meaning does not change when a tag moves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Digest, json, limits};

/// The supported version.
const VERSION: u64 = 1;

/// The content of a `tarpon.lock`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexLock {
    images: BTreeMap<Digest, Pinned>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pinned {
    image: String,
    index: Digest,
}

/// Why bytes are not a valid lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLock {
    /// Over [`limits::LOCK_BYTES`].
    #[error("the file has more than {} bytes", limits::LOCK_BYTES)]
    TooLarge,
    /// Not JSON, of another shape, or with two readings.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Written by a later program.
    #[error("version {0} is not supported, only version {VERSION}")]
    Version(u64),
    /// A name of an image or index that is no digest.
    #[error("{0:?} is not a sha256 digest")]
    Digest(String),
    /// An invalid entry of an image.
    #[error("its entry of {0} is not a name and the digest of an index")]
    Entry(Digest),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u64,
    images: Map<String, Value>,
}

impl IndexLock {
    /// Parses a lock, written by [`IndexLock::to_json`] or by hand.
    ///
    /// # Errors
    /// [`InvalidLock`]. Unknown content is never skipped: a pin must not be lost silently.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidLock> {
        if bytes.len() as u64 > limits::LOCK_BYTES {
            return Err(InvalidLock::TooLarge);
        }
        json::check(bytes)?;
        let version = serde_json::from_slice::<Map<String, Value>>(bytes)?.get("version").and_then(Value::as_u64);
        if let Some(version) = version.filter(|version| *version != VERSION) {
            return Err(InvalidLock::Version(version));
        }
        let Document { images, .. } = serde_json::from_slice(bytes)?;
        let images = images.into_iter().map(|(manifest, entry)| {
            let manifest = digest(&manifest)?;
            Ok((manifest, pinned(&manifest, &entry)?))
        });
        Ok(Self { images: images.collect::<Result<_, InvalidLock>>()? })
    }

    /// The index of the image with this manifest, if one is pinned.
    pub fn index_of(&self, manifest: &Digest) -> Option<&Digest> {
        self.images.get(manifest).map(|pinned| &pinned.index)
    }

    /// Pins the index of an image, and replaces the previous one. The name is for users.
    pub fn pin(&mut self, manifest: Digest, image: &str, index: Digest) {
        self.images.insert(manifest, Pinned { image: image.to_owned(), index });
    }

    /// The file, sorted by manifest, so that a diff shows exactly the changed pins.
    ///
    /// # Errors
    /// [`InvalidLock`] if no reader would accept it.
    pub fn to_json(&self) -> Result<Vec<u8>, InvalidLock> {
        let entry = |(manifest, pinned): (&Digest, &Pinned)| {
            let entry = serde_json::json!({ "image": pinned.image, "index": pinned.index.to_string() });
            (manifest.to_string(), entry)
        };
        let document = Document { version: VERSION, images: self.images.iter().map(entry).collect() };
        let mut bytes = serde_json::to_vec_pretty(&document)?;
        bytes.push(b'\n');
        Self::parse(&bytes)?;
        Ok(bytes)
    }
}

fn digest(text: &str) -> Result<Digest, InvalidLock> {
    text.parse().map_err(|_| InvalidLock::Digest(text.chars().take(80).collect()))
}

fn pinned(manifest: &Digest, entry: &Value) -> Result<Pinned, InvalidLock> {
    let invalid = || InvalidLock::Entry(*manifest);
    let entry = entry.as_object().filter(|entry| entry.len() == 2).ok_or_else(invalid)?;
    let text = |key| entry.get(key).and_then(Value::as_str).ok_or_else(invalid);
    Ok(Pinned { image: text("image")?.to_owned(), index: digest(text("index")?)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> IndexLock {
        let mut lock = IndexLock::default();
        lock.pin(Digest::of(b"python"), "docker.io/library/python:3.12", Digest::of(b"its index"));
        lock.pin(Digest::of(b"app"), "registry.example/app:v1", Digest::of(b"another"));
        lock
    }

    #[test]
    fn what_is_written_is_read() {
        let lock = lock();
        let written = lock.to_json().unwrap();
        assert_eq!(IndexLock::parse(&written).unwrap(), lock);
        assert_eq!(lock.index_of(&Digest::of(b"app")), Some(&Digest::of(b"another")));
        assert_eq!(lock.index_of(&Digest::of(b"another")), None);
        assert!(String::from_utf8(written).unwrap().ends_with("}\n"));
    }

    #[test]
    fn the_last_pin_of_an_image_counts() {
        let mut lock = lock();
        lock.pin(Digest::of(b"app"), "registry.example/app:v1", Digest::of(b"made anew"));
        assert_eq!(lock.index_of(&Digest::of(b"app")), Some(&Digest::of(b"made anew")));
        assert_eq!(lock.images.len(), 2);
    }

    #[test]
    fn what_is_not_understood_is_refused_and_not_skipped() {
        let good = String::from_utf8(lock().to_json().unwrap()).unwrap();
        let app = Digest::of(b"app").to_string();
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("\"version\": 1", "\"version\": \"1\""),
            ("\"version\": 1", "\"version\": 1, \"Images\": {}"),
            ("\"version\": 1", "\"version\": 1, \"images\": {}"),
            ("\"images\"", "\"image\""),
            ("\"index\"", "\"indexes\""),
            ("\"image\": \"registry.example/app:v1\"", "\"image\": 1"),
            ("\"image\": \"registry.example/app:v1\"", "\"image\": \"\", \"more\": 1"),
            (&*app, &app.to_uppercase()),
            (&app[..10], "sha512:ab"),
        ] {
            assert!(good.contains(from), "{good}");
            assert!(IndexLock::parse(good.replacen(from, to, 1).as_bytes()).is_err(), "{from} → {to}");
        }
        assert!(matches!(IndexLock::parse(br#"{"version":2,"pins":[]}"#), Err(InvalidLock::Version(2))));
        assert!(IndexLock::parse(br#"[1,{}]"#).is_err(), "a list of the fields in their order");
        assert!(IndexLock::parse(b"").is_err());
    }

    #[test]
    fn a_lock_that_pins_an_image_twice_is_refused_and_none_of_the_pins_is_taken() {
        let good = String::from_utf8(lock().to_json().unwrap()).unwrap();
        let (app, other) = (Digest::of(b"app"), Digest::of(b"another index"));
        let entry = format!(r#""{app}": {{ "image": "registry.example/app:v1", "index": "{other}" }}, "#);
        for (before, twice) in [("\"sha256:", entry), ("\"index\"", format!(r#""index": "{other}", "#))] {
            let twice = good.replacen(before, &format!("{twice}{before}"), 1);
            assert!(matches!(IndexLock::parse(twice.as_bytes()), Err(InvalidLock::Json(_))), "{twice}");
        }
    }

    #[test]
    fn its_size_is_bounded_both_ways() {
        let large = vec![b' '; usize::try_from(limits::LOCK_BYTES).unwrap() + 1];
        assert!(matches!(IndexLock::parse(&large), Err(InvalidLock::TooLarge)));
        let mut lock = lock();
        lock.pin(Digest::of(b"app"), &"x".repeat(large.len()), Digest::of(b"another"));
        assert!(matches!(lock.to_json(), Err(InvalidLock::TooLarge)));
        for number in 0..=limits::JSON_ITEMS {
            lock.pin(Digest::of(&number.to_be_bytes()), "", Digest::of(b"another"));
        }
        assert!(lock.to_json().is_err(), "more images than anybody reads");
    }

    #[test]
    fn a_lock_may_be_as_large_as_the_limit() {
        let most = usize::try_from(limits::LOCK_BYTES).unwrap();
        let mut text = lock().to_json().unwrap();
        text.resize(most, b' ');
        assert_eq!(IndexLock::parse(&text).unwrap(), lock());
    }
}
