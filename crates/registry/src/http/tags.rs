//! The tags of a repository (distribution spec 1.1, "Listing Tags").

use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{is_tag, limits};
use url::Url;

use super::answers::expect;
use super::body;
use super::call::Call;
use super::retry::{Budget, Failure, Retry, retried};
use super::session::Session;

/// Tags requested at a time: the most that common registries return.
const PAGE: usize = 1_000;

#[derive(serde::Deserialize)]
struct Page {
    /// Some registries write `null` for none.
    tags: Option<Vec<String>>,
}

impl Session {
    /// All tags of the repository.
    pub(crate) async fn tags(&self) -> Result<Vec<String>, SourceError> {
        let path = self.path("tags/list");
        let (call, first) = (Call::get(&path), format!("{path}?n={PAGE}"));
        let (mut tags, mut at) = (Vec::new(), None);
        for _ in 0..limits::TAG_PAGES {
            let (page, next) = self.tags_at(&call, &first, at.as_ref()).await?;
            tags.extend(page.into_iter().filter(|tag| is_tag(tag)));
            if tags.len() > limits::TAGS {
                break;
            }
            if next.is_none() {
                return Ok(tags);
            }
            at = next;
        }
        let message = format!("{}: more than {} tags or {} pages", call.shown, limits::TAGS, limits::TAG_PAGES);
        Err(SourceError::new(Fault::Refused, message))
    }

    async fn tags_at(
        &self,
        call: &Call,
        first: &str,
        at: Option<&Url>,
    ) -> Result<(Vec<String>, Option<Url>), SourceError> {
        retried(Budget::new(), &call.shown, || async move {
            let response = match at {
                None => self.at_registry(first, call).await?,
                Some(url) => self.at(url, call).await?,
            };
            let response = expect(call, response, &[200]).await?;
            let from = at.cloned().unwrap_or_else(|| self.url(first));
            let next = self.next_page(&response, &from, call)?;
            let bytes = body::collect(response, limits::MANIFEST_BYTES, &call.shown).await?;
            let page: Page = serde_json::from_slice(&bytes)
                .map_err(|error| Failure::new(Fault::BadData, Retry::Once, format!("{}: {error}", call.shown)))?;
            Ok((page.tags.unwrap_or_default(), next))
        })
        .await
    }
}
