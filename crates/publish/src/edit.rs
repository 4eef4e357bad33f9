//! Edits documents of an image where they have to change: everything else stays as it was, byte for byte.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tarpon_images::index::soci::INDEX_DIGEST as SOCI_INDEX;
use tarpon_oci::{Manifest, limits};

use crate::{Cause, Error, ErrorKind, Result};

/// A JSON object whose values are not parsed.
pub(crate) type Object = BTreeMap<String, Box<RawValue>>;

/// Replaces the value of `key` by `value`.
pub(crate) fn set(object: &mut Object, key: &str, value: impl Serialize) -> Result<()> {
    object.insert(key.to_owned(), to_raw_value(&value).map_err(malformed)?);
    Ok(())
}

/// The annotations of a manifest for one with other layers: without the SOCI index, which describes the old layers and is in their repository.
pub(crate) fn annotations_for_other_layers(old: &Manifest) -> BTreeMap<String, String> {
    let mut annotations = old.annotations.clone();
    annotations.remove(SOCI_INDEX);
    annotations
}

/// `document`, or an error if it is too large for readers.
pub(crate) fn sized(document: Vec<u8>) -> Result<Bytes> {
    match document.len() as u64 {
        0..=limits::MANIFEST_BYTES => Ok(document.into()),
        size => Err(malformed(format!("{size} bytes are more than it may have ({})", limits::MANIFEST_BYTES))),
    }
}

/// The error for a malformed document.
pub(crate) fn malformed(error: impl Into<Cause>) -> Error {
    Error::new(ErrorKind::Refused, "write the new manifest", error)
}
