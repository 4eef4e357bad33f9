//! Writes blobs: mounts, uploads in one piece, uploads as a stream.
//!
//! ```text
//! POST …/blobs/uploads/      202 Location: an upload session
//!   PATCH Location           202 Location, Range: what arrived        as a stream; after a break GET Location has what
//!   PUT Location&digest=     201                                      arrived, and another PATCH sends the rest
//! ```
//!
//! A stream is sent in one PATCH, as every client does: many registries accept no second one. Each answer names the address where
//! the session continues, which may be another host. Credentials stay with the registry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_RANGE, CONTENT_TYPE, LOCATION, RANGE};
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{Blob, Digest};
use url::Url;

use super::answers::{check_stored, expect, location, redirect, refusal, text};
use super::body;
use super::call::{Call, Payload};
use super::feed::Feed;
use super::retry::{Budget, Failure, Retry, retried};
use super::session::Session;
use crate::error::UploadError;
use crate::timing;
use crate::transport::Response;

const OCTETS: &str = "application/octet-stream";

impl Session {
    /// Whether the repository has `blob`. An unclear answer counts as no.
    pub(crate) async fn has_blob(&self, blob: Blob) -> Result<bool, SourceError> {
        retried(Budget::new(), &self.has_call(blob).shown, || self.look_for(blob)).await
    }

    async fn look_for(&self, blob: Blob) -> Result<bool, Failure> {
        let (path, call) = (self.blob_path(blob), self.has_call(blob));
        let mut response = self.at_registry(&path, &call).await?;
        if let Some(url) = redirect(&response, &self.url(&path), &call.shown)? {
            response = self.follow(&url, &call).await?;
        }
        match response.status.as_u16() {
            200 => {
                let named = text(&response.headers, "docker-content-digest");
                let same = named.is_none_or(|named| named == blob.digest.to_string());
                Ok(same && body::content_length(&response) == Some(blob.size))
            }
            404 | 410 | 200..=299 => Ok(false),
            _ => Err(refusal(response, &call.shown).await),
        }
    }

    fn blob_path(&self, blob: Blob) -> String {
        self.path(&format!("blobs/{}", blob.digest))
    }

    fn has_call(&self, blob: Blob) -> Call {
        Call::new(Method::HEAD, &self.blob_path(blob))
    }

    /// Mounts `blob` from the repository `from` of the same registry. `false`: the registry refuses for any reason, which a push
    /// will show.
    pub(crate) async fn mount(&self, blob: Blob, from: &str) -> Result<bool, SourceError> {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("mount", &blob.digest.to_string())
            .append_pair("from", from)
            .finish();
        let path = &format!("{}?{query}", self.uploads());
        let call = &Call { shown: format!("mounting {} from {from}", blob.digest), ..self.opening() };
        retried(Budget::new(), &call.shown, || async move {
            let response = match self.at_registry(path, call).await {
                Err(failure) if failure.error.fault == Fault::Denied => return Ok(false),
                other => other?,
            };
            match response.status.as_u16() {
                201 => check_stored(&response, &blob.digest, &call.shown).map(|()| true),
                202 => {
                    let session = location(&response, &self.url(path), &call.shown)?;
                    body::drain(response).await;
                    self.cancel(&session).await;
                    Ok(false)
                }
                400..=405 => Ok(false),
                _ => Err(refusal(response, &call.shown).await),
            }
        })
        .await
    }

    /// Uploads `bytes`, which are `blob`, in one piece.
    pub(crate) async fn push_bytes(&self, blob: Blob, bytes: &Bytes) -> Result<(), SourceError> {
        let shown = format!("PUT {}", self.uploads());
        retried(Budget::carrying(blob.size), &shown, || async {
            let url = self.open_upload().await?;
            let done = self.close_upload(&url, &blob.digest, bytes.clone()).await;
            if done.is_err() {
                self.cancel(&url).await;
            }
            done
        })
        .await
    }

    /// Uploads all of `feed`, and returns its digest and size.
    pub(crate) async fn push_feed(&self, feed: &Arc<Feed>) -> Result<Blob, UploadError> {
        let mut url = self.open_upload_patiently().await.map_err(UploadError::Push)?;
        let done = self.stream(&mut url, feed).await;
        if done.is_err() {
            self.cancel(&url).await;
        }
        done
    }

    async fn stream(&self, url: &mut Url, feed: &Arc<Feed>) -> Result<Blob, UploadError> {
        let sent = match feed.is_empty().await {
            true => Ok(()),
            false => self.append_all(url, feed).await,
        };
        // If the bytes could not be read, that is why the upload broke off.
        if let Some(error) = feed.failure().await {
            return Err(UploadError::Source(error));
        }
        sent.map_err(UploadError::Push)?;
        let blob = feed.finish().await.map_err(UploadError::Source)?;
        let (shown, again) = (format!("PUT {}", self.uploads()), AtomicBool::new(false));
        let (url, again) = (&*url, &again);
        let close = || async move {
            // Perhaps only the answer to the first attempt was lost.
            if again.swap(true, Ordering::Relaxed) && self.look_for(blob).await? {
                return Ok(());
            }
            self.close_upload(url, &blob.digest, Bytes::new()).await
        };
        retried(Budget::carrying(0), &shown, close).await.map_err(UploadError::Push)?;
        Ok(blob)
    }

    /// Sends the feed to its end, continuing where a connection broke. The attempts are reset when the registry has made good progress.
    async fn append_all(&self, url: &mut Url, feed: &Arc<Feed>) -> Result<(), SourceError> {
        let mut budget = Budget::new();
        let mut reached = 0;
        while let Err(failure) = self.append(url, feed).await {
            if let Some(error) = feed.failure().await {
                return Err(error);
            }
            budget.restart_clock();
            budget.spend(failure).await?;
            let offset = match self.arrived(url).await? {
                Some(offset) => offset,
                None => {
                    *url = self.open_upload_patiently().await?;
                    0
                }
            };
            feed.rewind(offset).await?;
            if feed.sent().await.1 {
                return Ok(());
            }
            if offset >= reached + timing::PROGRESS_BYTES {
                (budget, reached) = (Budget::new(), offset);
            }
        }
        Ok(())
    }

    /// One PATCH with the rest of the feed.
    async fn append(&self, url: &mut Url, feed: &Arc<Feed>) -> Result<(), Failure> {
        let (from, end) = feed.range().await;
        let call = Call::new(Method::PATCH, &self.uploads()).with(CONTENT_TYPE, OCTETS);
        let call = match end {
            Some(end) if from < end => call.with(CONTENT_RANGE, &format!("{from}-{}", end - 1)),
            _ => call,
        };
        let call = call.carrying(Payload::Feed(feed.clone()));
        let response = match expect(&call, self.at(url, &call).await?, &[201, 202, 204]).await {
            // The session is gone. Another one may work.
            Err(failure) if failure.error.fault == Fault::NotFound => {
                return Err(Failure { retry: Retry::Once, ..failure });
            }
            other => other?,
        };
        let (last, (sent, complete)) = (last_byte(&response), feed.sent().await);
        *url = next_location(&response, url, &call.shown)?;
        body::drain(response).await;
        match last {
            Some(last) if last != sent.saturating_sub(1) => {
                let message = format!("{}: {sent} bytes were sent, 0-{last} arrived", call.shown);
                Err(Failure::bad_data(message))
            }
            _ if !complete => {
                Err(Failure::bad_data(format!("{}: response before the whole body was sent", call.shown)))
            }
            _ => Ok(()),
        }
    }

    /// The number of bytes of an upload that the registry has. `None` if it must be restarted. Updates `url` to where the session
    /// continues.
    async fn arrived(&self, url: &mut Url) -> Result<Option<u64>, SourceError> {
        let call = &Call::get(&self.uploads());
        let at = &url.clone();
        let answer = retried(Budget::new(), &call.shown, || async move {
            let response = expect(call, self.at(at, call).await?, &[200, 202, 204]).await?;
            let next = next_location(&response, at, &call.shown)?;
            // Some registries send `0-0` for one byte and for none.
            let last = last_byte(&response).filter(|last| *last > 0);
            body::drain(response).await;
            Ok((next, last))
        })
        .await;
        match answer {
            Ok((next, last)) => {
                *url = next;
                Ok(last.map(|last| last + 1))
            }
            Err(error) if matches!(error.fault, Fault::NotFound | Fault::Refused) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn uploads(&self) -> String {
        self.path("blobs/uploads/")
    }

    fn opening(&self) -> Call {
        Call::new(Method::POST, &self.uploads())
    }

    async fn open_upload_patiently(&self) -> Result<Url, SourceError> {
        retried(Budget::new(), &self.opening().shown, || self.open_upload()).await
    }

    /// Opens an upload session and returns its address.
    async fn open_upload(&self) -> Result<Url, Failure> {
        let (path, call) = (self.uploads(), self.opening());
        let response = expect(&call, self.at_registry(&path, &call).await?, &[202]).await?;
        let url = location(&response, &self.url(&path), &call.shown)?;
        body::drain(response).await;
        Ok(url)
    }

    /// Ends the upload at `url` with its last `bytes`: the blob exists from then on.
    async fn close_upload(&self, url: &Url, digest: &Digest, bytes: Bytes) -> Result<(), Failure> {
        let mut url = url.clone();
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let call = Call::new(Method::PUT, &self.uploads()).with(CONTENT_TYPE, OCTETS).carrying(Payload::Bytes(bytes));
        let response = expect(&call, self.at(&url, &call).await?, &[200, 201, 204]).await?;
        check_stored(&response, digest, &call.shown)?;
        body::drain(response).await;
        Ok(())
    }

    /// Cancels an upload. Registries expire unfinished ones, so nothing depends on this.
    async fn cancel(&self, url: &Url) {
        self.attempt_quietly(url, &Call::new(Method::DELETE, &self.uploads())).await;
    }
}

/// The address where the session at `from` continues.
fn next_location(response: &Response, from: &Url, shown: &str) -> Result<Url, Failure> {
    match response.headers.contains_key(LOCATION) {
        true => location(response, from, shown),
        false => Ok(from.clone()),
    }
}

/// The end of `Range: 0-LAST`, which some registries write as `bytes=0-LAST`.
fn last_byte(response: &Response) -> Option<u64> {
    let range = text(&response.headers, RANGE.as_str())?.trim();
    range.strip_prefix("bytes=").unwrap_or(range).strip_prefix("0-")?.parse().ok()
}
