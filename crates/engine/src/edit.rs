//! Documents of an image, changed in what has to change: all else stays as it was, letter by letter.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tarpon_oci::limits;

use crate::{Error, ErrorKind, Result};

/// A JSON object whose values are not looked into.
pub(crate) type Object = BTreeMap<String, Box<RawValue>>;

/// Puts `value` in the place of what `key` was.
pub(crate) fn set(object: &mut Object, key: &str, value: impl Serialize) -> Result<()> {
    object.insert(key.to_owned(), to_raw_value(&value).map_err(malformed)?);
    Ok(())
}

/// `document`, unless nobody would read it.
pub(crate) fn sized(document: Vec<u8>) -> Result<Bytes> {
    match document.len() as u64 {
        0..=limits::MANIFEST_BYTES => Ok(document.into()),
        size => Err(malformed(format!("{size} bytes are more than it may have ({})", limits::MANIFEST_BYTES))),
    }
}

/// A document that is not what it should be.
pub(crate) fn malformed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Refused, "write the new manifest", error)
}
