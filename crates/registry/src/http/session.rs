//! Requests to one repository: authorised, redirected, retried.
//!
//! Invariants: an `Authorization` header is sent to the registry's own origin and to nothing else, and no answer leads from HTTPS
//! to HTTP.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{Digest, Verified, limits, media_type};
use url::Url;

use super::answers::{declared_digest, expect, redirect, text};
use super::auth::{Authenticator, Purpose};
use super::body;
use super::call::{Call, Payload};
use super::challenge::Challenge;
use super::hosts::Hosts;
use super::retry::{Budget, Failure, Position, Retry, retried};
use super::wire::Wire;
use crate::credentials::CredentialSource;
use crate::registries::Endpoint;
use crate::stats::Counters;
use crate::transport::{Response, Transport, without_query};

/// Connections opened ahead, beside that of the first request: for an index in four parts, its manifest and the index of its boot pack.
const WARM_CONNECTIONS: usize = 5;

/// One repository of one registry.
pub(crate) struct Session {
    wire: Arc<Wire>,
    auth: Authenticator,
    repository: String,
    position: Position,
    /// How long a request may take, if that is less than for every host in this position.
    time_limit: Option<Duration>,
}

impl Session {
    /// A session for the repository of the endpoint.
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        endpoint: &Endpoint,
        credentials: CredentialSource,
        purpose: Purpose,
        counters: Arc<Counters>,
        hosts: Arc<Hosts>,
    ) -> Result<Self, url::ParseError> {
        let reference = &endpoint.reference;
        let repository = reference.repository().to_owned();
        Ok(Self {
            wire: Arc::new(Wire::new(transport, endpoint, counters, hosts)?),
            auth: Authenticator::new(credentials, reference.registry().to_owned(), repository.clone(), purpose),
            repository,
            position: Position::default(),
            time_limit: endpoint.address.as_ref().and_then(|address| address.time_limit),
        })
    }

    /// What is counted for its host.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        self.wire.counters()
    }

    pub(crate) fn at_position(self, position: Position) -> Self {
        Self { position, ..self }
    }

    /// The budget of a short request for what other hosts may have too.
    pub(super) fn budget(&self) -> Budget {
        self.position.budget(self.time_limit)
    }

    /// A session for the same repository over the same connections, with tokens for another purpose.
    pub(crate) fn for_purpose(&self, purpose: Purpose) -> Self {
        let auth = self.auth.for_purpose(purpose);
        let Self { position, time_limit, .. } = *self;
        Self { wire: self.wire.clone(), auth, repository: self.repository.clone(), position, time_limit }
    }

    /// Opens connections for the next requests, without credentials. Their answers do not matter. As long as the scheme of a registry
    /// is not known, they are opened under both. Does nothing for a registry on this machine, where handshakes are free.
    pub(crate) async fn warm_up(&self) {
        self.connect(WARM_CONNECTIONS).await;
    }

    async fn connect(&self, connections: usize) {
        let connect = async |base: &Url| {
            if let Ok(response) = self.wire.send(base.clone(), &Call::get("/v2/"), None).await {
                body::drain(response).await;
            }
        };
        let distant: Vec<&Url> = self.distant().collect();
        let wanted = distant.iter().flat_map(|base| std::iter::repeat_n(*base, connections));
        futures::future::join_all(wanted.map(connect)).await;
    }

    /// Opens connections and gets a token, so that the next `requests` requests at once cost one round trip. Its outcome shows with
    /// them. Does nothing where [`Session::warm_up`] does nothing.
    pub(crate) async fn get_ready(&self, requests: usize) {
        if self.distant().next().is_some() {
            let (_shown_later, ()) = futures::join!(self.check_access(), self.connect(requests.saturating_sub(1)));
        }
    }

    /// The addresses at which the registry may be, if it is not on this machine.
    fn distant(&self) -> impl Iterator<Item = &Url> {
        self.wire.candidates().filter(|base| !crate::transport::is_loopback(base))
    }

    /// Whether the registry is known to list referrers.
    pub(super) fn lists_referrers(&self) -> bool {
        self.wire.lists_referrers()
    }

    /// Remembers for all images of the registry whether it lists referrers.
    pub(super) fn note_referrers(&self, are_listed: bool) {
        self.wire.note_referrers(are_listed);
    }

    /// A manifest or index and its `Content-Type`. `expected`: its digest, if known.
    pub(crate) async fn manifest(
        &self,
        tag_or_digest: &str,
        expected: Option<&Digest>,
    ) -> Result<(Verified<Bytes>, Option<String>), SourceError> {
        let path = &self.path(&format!("manifests/{tag_or_digest}"));
        let call = &Call::get(path).accepting(&media_type::ACCEPT_MANIFEST);
        retried(self.budget(), &call.shown, || async move {
            let response = self.at_registry(path, call).await?;
            // Some registries only redirect to others, which get no credentials.
            let response = match redirect(&response, &self.url(path), &call.shown)? {
                Some(elsewhere) => {
                    body::drain(response).await;
                    self.follow(&elsewhere, call).await?
                }
                None => response,
            };
            let response = expect(call, response, &[200]).await?;
            let expected = expected.copied().or(declared_digest(&response.headers));
            let content_type = text(&response.headers, CONTENT_TYPE.as_str()).map(str::to_owned);
            let bytes = body::collect(response, limits::MANIFEST_BYTES, &call.shown).await?;
            let verified = match expected {
                Some(digest) => {
                    Verified::check(&digest, bytes).map_err(|error| Failure::bad_data(error.to_string()))?
                }
                None => Verified::seal(bytes),
            };
            Ok((verified, content_type))
        })
        .await
    }

    /// Sends one request for the root of the registry's API, which shows whether it accepts the credentials. Wrong ones are not tried
    /// again: registries lock accounts.
    pub(crate) async fn check_access(&self) -> Result<(), SourceError> {
        let call = &Call::get("/v2/");
        let sent = async { expect(call, self.at_registry("", call).await?, &[200]).await };
        let response = Budget::new().within(&call.shown, sent).await.map_err(|failure| failure.error)?;
        body::drain(response).await;
        Ok(())
    }

    /// The path of `what` in the repository, below the registry's `/v2/`.
    pub(super) fn path(&self, what: &str) -> String {
        format!("{}/{what}", self.repository)
    }

    /// The address of `path`. Valid after the first request to the registry.
    pub(super) fn url(&self, path: &str) -> Url {
        self.wire.url(self.wire.base().expect("the first request chose the scheme"), path)
    }

    /// Whether `url` is at the registry itself, so that it may receive credentials.
    pub(super) fn is_registry(&self, url: &Url) -> bool {
        self.wire.is_registry(url)
    }

    /// Sends `call` to `path` of the registry itself, answering one challenge.
    pub(super) async fn at_registry(&self, path: &str, call: &Call) -> Result<Response, Failure> {
        // The very first request also determines the scheme.
        match self.wire.choose(path, call).await? {
            Some(response) if response.status == StatusCode::UNAUTHORIZED => {
                self.challenged(None, response).await?;
                self.authorized(&self.url(path), call, true).await
            }
            Some(response) => Ok(response),
            None => self.authorized(&self.url(path), call, false).await,
        }
    }

    /// Sends `call` to `url`, with credentials only if that is the registry.
    pub(super) async fn at(&self, url: &Url, call: &Call) -> Result<Response, Failure> {
        match self.is_registry(url) {
            true => self.authorized(url, call, false).await,
            false => self.wire.send(url.clone(), call, None).await,
        }
    }

    /// Sends `call` to `url`, and follows redirects.
    pub(super) async fn follow(&self, url: &Url, call: &Call) -> Result<Response, Failure> {
        let mut url = url.clone();
        for _ in 0..limits::REDIRECTS {
            let response = self.at(&url, call).await?;
            match redirect(&response, &url, &call.shown)? {
                Some(next) => url = next,
                None => return Ok(response),
            }
            body::drain(response).await;
        }
        Err(Failure::refused(format!("{}: more than {} redirects", call.shown, limits::REDIRECTS)))
    }

    /// Sends `call` once with the credentials at hand, and waits for as little as possible: for requests that may fail without harm.
    pub(super) async fn attempt_quietly(&self, url: &Url, call: &Call) {
        let sent = async {
            let header = match self.is_registry(url) {
                true => self.auth.authorize(&self.wire).await?.header,
                false => None,
            };
            self.wire.send(url.clone(), call, header).await
        };
        if let Ok(Ok(response)) = tokio::time::timeout(crate::timing::DRAIN, sent).await {
            body::drain(response).await;
        }
    }

    /// Sends `call` to `url` at the registry. `challenged`: a challenge was answered just before.
    async fn authorized(&self, url: &Url, call: &Call, mut challenged: bool) -> Result<Response, Failure> {
        loop {
            let authorization = self.auth.authorize(&self.wire).await?;
            let response = self.wire.send(url.clone(), call, authorization.header.clone()).await?;
            if response.status != StatusCode::UNAUTHORIZED {
                if shows_good_credentials(response.status) {
                    self.auth.accepted(&authorization).await;
                }
                return Ok(response);
            }
            if challenged {
                let message = format!("{}: 401 Unauthorized, even with a new token", call.shown);
                self.auth.denied(&message).await;
                return Err(Failure::new(Fault::Denied, Retry::Never, message));
            }
            challenged = true;
            self.challenged(Some(&authorization), response).await?;
            if matches!(call.payload, Payload::Feed(_)) {
                // Part of the body is sent: the uploader finds out where to continue.
                let message = format!("{}: 401 Unauthorized", call.shown);
                return Err(Failure::new(Fault::Denied, Retry::Once, message));
            }
        }
    }

    async fn challenged(&self, used: Option<&super::auth::Authorization>, response: Response) -> Result<(), Failure> {
        let challenge = Challenge::from_headers(&response.headers);
        body::drain(response).await;
        self.auth.challenged(used, challenge, &self.wire).await
    }
}

/// Whether only authorised clients get this status. Any other can come from a server in front of the registry, which checks no
/// credentials.
fn shows_good_credentials(status: StatusCode) -> bool {
    status.is_success()
        || status.is_redirection()
        || matches!(status, StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE)
}

/// Shown in `Debug` of types that contain a session.
impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.wire.base().map(without_query).unwrap_or_default())
    }
}
