//! The images of one repository, in a registry with plain HTTP.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tarpon_harness::http;

use super::sha256::digest_of;

/// The media type of an image.
const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of its new layers.
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

pub(crate) struct Repository<'a> {
    pub(crate) registry: &'a str,
    /// Its name.
    pub(crate) image: &'a str,
}

impl Repository<'_> {
    /// The bytes of an image's manifest, if it exists.
    pub(crate) fn manifest(&self, tag: &str) -> Result<Option<Vec<u8>>> {
        self.get(&self.path(&format!("manifests/{tag}")), &format!("Accept: {IMAGE}\r\n"))
    }

    /// The bytes of a blob, if it exists.
    pub(crate) fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>> {
        self.get(&self.path(&format!("blobs/{digest}")), "")
    }

    /// Pushes a blob; returns its descriptor.
    pub(crate) fn push_blob(&self, media_type: &str, bytes: &[u8]) -> Result<Value> {
        let (path, digest) = (self.path("blobs/uploads/"), digest_of(bytes));
        let begun = self.accepted(http::request(self.registry, "POST", &path, "", b"")?, &path, 202)?;
        let location = begun.field("location").context("an upload has no location")?;
        let path = location.strip_prefix(&format!("http://{}", self.registry)).unwrap_or(location);
        let path = format!("{path}{}digest={digest}", if path.contains('?') { '&' } else { '?' });
        self.accepted(http::request(self.registry, "PUT", &path, "", bytes)?, &path, 201)?;
        Ok(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}))
    }

    /// Puts an image under a tag.
    pub(crate) fn put_manifest(&self, tag: &str, manifest: &Value) -> Result<()> {
        let (path, body) = (self.path(&format!("manifests/{tag}")), manifest.to_string());
        let headers = format!("Content-Type: {IMAGE}\r\n");
        self.accepted(http::request(self.registry, "PUT", &path, &headers, body.as_bytes())?, &path, 201).map(drop)
    }

    fn path(&self, rest: &str) -> String {
        format!("/v2/{}/{rest}", self.image)
    }

    /// A document, if it exists.
    fn get(&self, path: &str, headers: &str) -> Result<Option<Vec<u8>>> {
        let answer = http::request(self.registry, "GET", path, headers, b"")?;
        if answer.status == 404 {
            return Ok(None);
        }
        self.accepted(answer, path, 200).map(|answer| Some(answer.body))
    }

    fn accepted(&self, answer: http::Answer, path: &str, status: u16) -> Result<http::Answer> {
        if answer.status != status {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            bail!("{} answers {path} with {}: {text}", self.registry, answer.status);
        }
        Ok(answer)
    }
}
