//! The contents of a small read-only registry, and its answers to single requests.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tarpon_blob::BlobSource as _;
use tarpon_oci::{Blob, Digest, Document, MediaType, Verified, limits, media_type};

use crate::local::{LocalBlobs, LocalSource};
use crate::stats::Counters;

/// The body of an answer. An error in it closes the connection.
pub type Body = BoxStream<'static, io::Result<Bytes>>;

/// Manifests and blobs by name, in memory or in OCI layouts on disk.
#[derive(Default)]
pub struct Contents {
    tags: HashMap<(String, String), Digest>,
    manifests: HashMap<Digest, (String, Bytes)>,
    blobs: HashMap<Digest, Bytes>,
    layouts: Vec<Arc<LocalBlobs>>,
}

impl Contents {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves `bytes` as a blob of every repository.
    pub fn add_blob(&mut self, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = Digest::of(&bytes);
        self.blobs.insert(digest, bytes);
        digest
    }

    /// Serves `bytes` as a manifest or index, and as `repository:tag` if there is a tag.
    pub fn add_manifest(&mut self, tag: Option<(&str, &str)>, media_type: &str, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = Digest::of(&bytes);
        self.manifests.insert(digest, (media_type.to_owned(), bytes));
        if let Some((repository, tag)) = tag {
            self.tags.insert((repository.to_owned(), tag.to_owned()), digest);
        }
        digest
    }

    /// Removes a manifest and its tags. `false`: there was none.
    pub fn remove_manifest(&mut self, digest: &Digest) -> bool {
        self.tags.retain(|_, tagged| tagged != digest);
        self.manifests.remove(digest).is_some()
    }

    /// Serves the OCI layout in `directory`: each image that has a name in it becomes that tag of `repository`, one without becomes
    /// `latest`. Blobs are read when they are requested.
    pub fn add_layout(&mut self, repository: &str, directory: &Path) -> io::Result<()> {
        let invalid = |error: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", directory.display()))
        };
        let index = Bytes::from(std::fs::read(directory.join("index.json"))?);
        let index = tarpon_oci::ImageIndex::parse(Verified::seal(index)).map_err(|error| invalid(&error))?;
        for found in &index.manifests {
            let name = found.annotations.get("org.opencontainers.image.ref.name");
            let tag = name.and_then(|name| name.rsplit(':').next()).unwrap_or("latest");
            self.add_layout_manifest(directory, found.blob(), Some((repository, tag)))?;
        }
        let name = format!("oci:{}", directory.display());
        self.layouts.push(Arc::new(LocalBlobs::directory(directory.to_owned(), name, Arc::new(Counters::default()))));
        Ok(())
    }

    /// Loads a manifest and those that it lists into memory.
    fn add_layout_manifest(&mut self, directory: &Path, blob: Blob, tag: Option<(&str, &str)>) -> io::Result<()> {
        if blob.size > limits::MANIFEST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let bytes = Bytes::from(std::fs::read(directory.join("blobs/sha256").join(blob.digest.hex()))?);
        let verified = Verified::check(&blob.digest, bytes.clone()).map_err(io::Error::other)?;
        match Document::parse(verified, None).map_err(io::Error::other)? {
            Document::Manifest(_) => drop(self.add_manifest(tag, media_type::OCI_MANIFEST, bytes)),
            Document::Index(index) => {
                self.add_manifest(tag, media_type::OCI_INDEX, bytes);
                for found in index.manifests.iter().filter(|found| found.media_type == MediaType::Manifest) {
                    self.add_layout_manifest(directory, found.blob(), None)?;
                }
            }
        }
        Ok(())
    }

    /// The answer to one request, as the distribution specification requires.
    pub async fn answer(&self, request: &Request<Bytes>) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return error(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED");
        }
        let Some(path) = request.uri().path().strip_prefix("/v2/") else {
            return error(StatusCode::NOT_FOUND, "NAME_UNKNOWN");
        };
        let answer = if path.is_empty() {
            whole("application/json", Bytes::from_static(b"{}"), None)
        } else if let Some((repository, name)) = path.split_once("/manifests/") {
            self.manifest(repository, name)
        } else if let Some(repository) = path.strip_suffix("/tags/list") {
            self.tags(repository)
        } else if let Some((_, digest)) = path.split_once("/blobs/") {
            self.blob(digest, request.headers()).await
        } else {
            error(StatusCode::NOT_FOUND, "NAME_UNKNOWN")
        };
        match *request.method() {
            Method::HEAD => answer.map(|_| stream::empty().boxed()),
            _ => answer,
        }
    }

    fn manifest(&self, repository: &str, name: &str) -> Response<Body> {
        let digest = match name.parse() {
            Ok(digest) => Some(digest),
            Err(_) => self.tags.get(&(repository.to_owned(), name.to_owned())).copied(),
        };
        match digest.and_then(|digest| Some((digest, self.manifests.get(&digest)?))) {
            Some((digest, (media_type, bytes))) => whole(media_type, bytes.clone(), Some(digest)),
            None => error(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN"),
        }
    }

    fn tags(&self, repository: &str) -> Response<Body> {
        let mut tags: Vec<&str> =
            self.tags.keys().filter(|(named, _)| named == repository).map(|(_, tag)| tag.as_str()).collect();
        tags.sort_unstable();
        let text = serde_json::json!({ "name": repository, "tags": tags }).to_string();
        whole("application/json", Bytes::from(text), None)
    }

    async fn blob(&self, digest: &str, headers: &HeaderMap) -> Response<Body> {
        let Ok(digest) = digest.parse::<Digest>() else {
            return error(StatusCode::BAD_REQUEST, "DIGEST_INVALID");
        };
        let memory = self.blobs.get(&digest);
        let size = memory.map(|bytes| bytes.len() as u64);
        let size = size.or_else(|| self.layouts.iter().find_map(|layout| layout.size(&digest)));
        let Some(size) = size else { return error(StatusCode::NOT_FOUND, "BLOB_UNKNOWN") };
        let range = match headers.get(RANGE) {
            None => None,
            Some(range) => match range.to_str().ok().and_then(|text| parse_range(text, size)) {
                Some(range) => Some(range),
                None => {
                    let mut answer = error(StatusCode::RANGE_NOT_SATISFIABLE, "RANGE_INVALID");
                    set(answer.headers_mut(), CONTENT_RANGE, format!("bytes */{size}"));
                    return answer;
                }
            },
        };
        let wanted = range.clone().unwrap_or(0..size);
        let body = match memory {
            Some(bytes) => {
                let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                one_piece(bytes.slice(at(wanted.start)..at(wanted.end)))
            }
            None => match self.read_layout(Blob { digest, size }, wanted.clone()).await {
                Some(body) => body,
                None => return error(StatusCode::NOT_FOUND, "BLOB_UNKNOWN"),
            },
        };
        let mut answer = Response::new(body);
        let headers = answer.headers_mut();
        set(headers, CONTENT_LENGTH, (wanted.end - wanted.start).to_string());
        set(headers, CONTENT_TYPE, "application/octet-stream".to_owned());
        set(headers, ACCEPT_RANGES, "bytes".to_owned());
        if range.is_some() {
            set(headers, CONTENT_RANGE, format!("bytes {}-{}/{size}", wanted.start, wanted.end - 1));
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        answer
    }

    async fn read_layout(&self, blob: Blob, range: Range<u64>) -> Option<Body> {
        if range.is_empty() {
            return Some(stream::empty().boxed());
        }
        for layout in &self.layouts {
            if let Ok(pieces) = LocalSource(layout.clone()).read(blob, range.clone()).await {
                return Some(pieces.map(|piece| piece.map_err(io::Error::other)).boxed());
            }
        }
        None
    }
}

/// `bytes=A-B`, `bytes=A-` and `bytes=-N`, clipped to `size`. `None` for everything else and for ranges outside.
fn parse_range(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", last) => size.saturating_sub(last.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?.min(size),
    };
    (range.start < range.end).then_some(range)
}

fn whole(content_type: &str, bytes: Bytes, digest: Option<Digest>) -> Response<Body> {
    let length = bytes.len();
    let mut answer = Response::new(one_piece(bytes));
    set(answer.headers_mut(), CONTENT_LENGTH, length.to_string());
    set(answer.headers_mut(), CONTENT_TYPE, content_type.to_owned());
    if let Some(digest) = digest {
        set(answer.headers_mut(), http::HeaderName::from_static("docker-content-digest"), digest.to_string());
    }
    answer
}

fn error(status: StatusCode, code: &str) -> Response<Body> {
    let text = format!(r#"{{"errors":[{{"code":"{code}","message":"{}"}}]}}"#, code.to_lowercase().replace('_', " "));
    let mut answer = whole("application/json", Bytes::from(text), None);
    *answer.status_mut() = status;
    answer
}

fn one_piece(bytes: Bytes) -> Body {
    stream::iter((!bytes.is_empty()).then_some(Ok(bytes))).boxed()
}

fn set(headers: &mut HeaderMap, name: http::HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::parse_range;

    #[test]
    fn ranges_are_clipped_and_nonsense_is_refused() {
        assert_eq!(parse_range("bytes=0-0", 10), Some(0..1));
        assert_eq!(parse_range("bytes=5-99", 10), Some(5..10));
        assert_eq!(parse_range("bytes=5-", 10), Some(5..10));
        assert_eq!(parse_range("bytes=-3", 10), Some(7..10));
        assert_eq!(parse_range("bytes=-30", 10), Some(0..10));
        for text in ["bytes=10-", "bytes=5-4", "bytes=a-b", "bytes=0-1,3-4", "items=0-1", "bytes=-0"] {
            assert_eq!(parse_range(text, 10), None, "{text}");
        }
    }
}
