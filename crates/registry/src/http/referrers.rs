//! The referrers of a manifest (distribution spec 1.1, "Listing Referrers"): from the registry's own list, or from the index that
//! clients keep under a tag where a registry has no such list.
//!
//! A registry shows that it has no list only by its answer, and the request for the tag would cost another round trip. So both are
//! requested at once, unless the host has returned a list before. The list decides wherever there is one: then the answer about the
//! tag is read and dropped. Its request would not be worth ending, because that ends an HTTP/1.1 connection too.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, select};
use http::header::{CONTENT_TYPE, LINK};
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::media_type::OCI_INDEX;
use tarpon_oci::{Descriptor, Digest, ImageIndex, InvalidManifest, MediaType, Verified, limits};
use url::Url;

use super::answers::{expect, resolve, text};
use super::body;
use super::call::Call;
use super::retry::{Failure, Retry, retried};
use super::session::Session;
use crate::referrers::of_kind;
use crate::transport::Response;
use crate::{Error, timing};

/// Statuses of a registry that has no such list.
const NO_SUCH_API: [u16; 3] = [400, 404, 405];

/// The tag of the index that clients keep.
pub(crate) fn fallback_tag(subject: &Digest) -> String {
    format!("sha256-{}", subject.hex())
}

/// A part of the list.
struct Page {
    found: Vec<Descriptor>,
    next: Option<Url>,
}

/// The answer about the index under the tag; `None`: there is none.
type Tagged = Result<Option<Verified<Bytes>>, SourceError>;

impl Session {
    /// The manifests of kind `artifact_type` whose subject is `subject`. An empty result is no error.
    pub(crate) async fn referrers(
        self: &Arc<Self>,
        subject: &Digest,
        artifact_type: &str,
    ) -> Result<Vec<Descriptor>, Error> {
        let (listed, tagged) = match self.lists_referrers() {
            true => (self.listed(subject, artifact_type).await, None),
            false => self.listed_and_tagged(subject, artifact_type).await,
        };
        let listed = listed.map_err(Error::Source)?;
        self.note_referrers(listed.is_some());
        match (listed, tagged) {
            (Some(listed), tagged) => {
                if let Some(tagged) = tagged {
                    read_and_drop(tagged);
                }
                Ok(listed)
            }
            (None, Some(tagged)) => of_index(tagged.await, artifact_type),
            (None, None) => of_index(self.clone().tagged(*subject).await, artifact_type),
        }
    }

    /// The registry's list, and the answer about the tag, which was requested at the same time.
    async fn listed_and_tagged(
        self: &Arc<Self>,
        subject: &Digest,
        kind: &str,
    ) -> (Result<Option<Vec<Descriptor>>, SourceError>, Option<BoxFuture<'static, Tagged>>) {
        let listed = self.listed(subject, kind).boxed();
        let tagged = self.clone().tagged(*subject).boxed();
        match select(listed, tagged).await {
            Either::Left((listed, tagged)) => (listed, Some(tagged)),
            Either::Right((tagged, listed)) => (listed.await, Some(futures::future::ready(tagged).boxed())),
        }
    }

    /// From the registry's list; `None` if it keeps none.
    async fn listed(&self, subject: &Digest, kind: &str) -> Result<Option<Vec<Descriptor>>, SourceError> {
        let path = self.path(&format!("referrers/{subject}"));
        let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("artifactType", kind).finish();
        let call = Call::get(&path).accepting(&[OCI_INDEX]);
        let first = format!("{path}?{query}");
        let (mut found, mut at) = (Vec::new(), None);
        for _ in 0..limits::REFERRERS_PAGES {
            let Some(page) = self.page(&call, &first, at.as_ref(), kind).await? else { return Ok(None) };
            found.extend(page.found);
            if page.next.is_none() {
                return Ok(Some(found));
            }
            at = page.next;
        }
        let message = format!("{}: more than {} pages", call.shown, limits::REFERRERS_PAGES);
        Err(SourceError::new(Fault::Refused, message))
    }

    /// The page at `at`, or the first; `None` if there is no such list.
    async fn page(&self, call: &Call, first: &str, at: Option<&Url>, kind: &str) -> Result<Option<Page>, SourceError> {
        retried(self.budget(), &call.shown, || async move {
            let response = match at {
                None => self.at_registry(first, call).await?,
                Some(url) => self.at(url, call).await?,
            };
            if at.is_none() && NO_SUCH_API.contains(&response.status.as_u16()) {
                body::drain(response).await;
                return Ok(None);
            }
            let response = expect(call, response, &[200]).await?;
            let from = at.cloned().unwrap_or_else(|| self.url(first));
            self.read_page(response, &from, call, kind).await.map(Some)
        })
        .await
    }

    async fn read_page(&self, response: Response, from: &Url, call: &Call, kind: &str) -> Result<Page, Failure> {
        let bad = |why: &dyn std::fmt::Display| Failure::bad_data(format!("{}: {why}", call.shown));
        let served_as = text(&response.headers, CONTENT_TYPE.as_str()).map(MediaType::parse);
        if let Some(served_as) = served_as.filter(|served_as| *served_as != MediaType::Index) {
            return Err(bad(&format_args!("{served_as} is not an image index")));
        }
        let filtered = text(&response.headers, "oci-filters-applied")
            .is_some_and(|applied| applied.split(',').any(|filter| filter.trim() == "artifactType"));
        let next = self.next_page(&response, from, call)?;
        let bytes = body::collect(response, limits::MANIFEST_BYTES, &call.shown).await?;
        let index = ImageIndex::parse(Verified::seal(bytes)).map_err(|error| bad(&error))?;
        if index.manifests.len() > limits::REFERRERS {
            let message = format!("{}: more than {} referrers", call.shown, limits::REFERRERS);
            return Err(Failure::new(Fault::Refused, Retry::Never, message));
        }
        Ok(Page { found: of_kind(index.manifests, kind, filtered), next })
    }

    /// The address of the page after `response`.
    pub(super) fn next_page(&self, response: &Response, from: &Url, call: &Call) -> Result<Option<Url>, Failure> {
        let links = response.headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
        let Some(next) = links.filter_map(next_link).next() else { return Ok(None) };
        let next = resolve(next, from)?;
        match self.is_registry(&next) {
            true => Ok(Some(next)),
            false => Err(Failure::refused(format!("{}: the next page is at another host", call.shown))),
        }
    }

    /// The index under the tag.
    async fn tagged(self: Arc<Self>, subject: Digest) -> Tagged {
        match self.manifest(&fallback_tag(&subject), None).await {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(error) if error.fault == Fault::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The manifests of kind `kind` in the index under the tag.
fn of_index(tagged: Tagged, kind: &str) -> Result<Vec<Descriptor>, Error> {
    let unreadable = |error: InvalidManifest| Error::Manifest { what: "list of referrers", error };
    match tagged.map_err(Error::Source)? {
        Some(bytes) => Ok(of_kind(ImageIndex::parse(bytes).map_err(unreadable)?.manifests, kind, false)),
        None => Ok(Vec::new()),
    }
}

/// Waits for an answer that is not needed, as long as a connection is worth it.
fn read_and_drop(tagged: BoxFuture<'static, Tagged>) {
    tokio::spawn(tokio::time::timeout(timing::DRAIN, tagged));
}

/// The target of `<TARGET>; rel="next"` (RFC 8288) among the links of one header.
fn next_link(header: &str) -> Option<&str> {
    let mut rest = header;
    while let Some((_, link)) = rest.split_once('<') {
        let (target, after) = link.split_once('>')?;
        let parameters = after.split_once('<').map_or(after, |(parameters, _)| parameters);
        let is_next = |parameter: &str| {
            let value = parameter.trim().trim_end_matches(',').strip_prefix("rel=");
            value.is_some_and(|value| value.trim_matches('"').split(' ').any(|kind| kind == "next"))
        };
        if parameters.split(';').any(is_next) {
            return Some(target);
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::next_link;

    #[test]
    fn the_next_page_is_found_among_links() {
        assert_eq!(next_link(r#"</v2/a/referrers/x?n=1>; rel="next""#), Some("/v2/a/referrers/x?n=1"));
        assert_eq!(next_link("<?page=2>; rel=next"), Some("?page=2"));
        assert_eq!(next_link(r#"<a>; rel="prev", <b>; title="x"; rel="last next""#), Some("b"));
        for text in ["", "<a>", "<a", r#"<a>; rel="prev""#, "a; rel=next", r#"<a>; rel="nextish""#] {
            assert_eq!(next_link(text), None, "{text}");
        }
    }
}
