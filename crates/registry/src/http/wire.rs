//! Single requests: counted, timed, to the right kind of peer. Also chooses between HTTPS and HTTP.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, select};
use futures::{FutureExt as _, StreamExt as _};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tarpon_blob::Fault;
use tokio::time::timeout;
use url::Url;

use super::call::{Activity, Call, join};
use super::hosts::{Hosts, Slot};
use super::retry::{Failure, Retry};
use crate::registries::{Address, Endpoint, Header};
use crate::stats::Counters;
use crate::timing;
use crate::transport::{Peer, Request, Response, Transport, TransportError, TransportFault, without_query};

/// The network access of one registry.
pub(super) struct Wire {
    transport: Arc<dyn Transport>,
    secure: Url,
    plain: Url,
    /// Whether the user allows plain HTTP (`--tls-verify=false`), or the registry is this machine.
    plain_allowed: bool,
    chosen: OnceLock<Url>,
    choosing: tokio::sync::Mutex<()>,
    counters: Arc<Counters>,
    hosts: Arc<Hosts>,
    /// Headers of all requests to the registry itself.
    headers: HeaderMap,
    /// The parameter `ns` of all requests to the registry itself.
    namespace: Option<String>,
}

impl Wire {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        endpoint: &Endpoint,
        counters: Arc<Counters>,
        hosts: Arc<Hosts>,
    ) -> Result<Self, url::ParseError> {
        let (chosen, choosing) = (OnceLock::new(), tokio::sync::Mutex::new(()));
        let host = endpoint.reference.api_host();
        let (secure, plain, plain_allowed) = match &endpoint.address {
            Some(Address { api, .. }) => {
                let base = Url::parse(&format!("{api}/"))?;
                drop(chosen.set(base.clone()));
                (base.clone(), base, false)
            }
            None => {
                let secure = Url::parse(&format!("https://{host}/v2/"))?;
                let plain_allowed = endpoint.insecure || crate::transport::is_loopback(&secure);
                if !plain_allowed {
                    drop(chosen.set(secure.clone()));
                }
                (secure, Url::parse(&format!("http://{host}/v2/"))?, plain_allowed)
            }
        };
        let (headers, namespace) = match &endpoint.address {
            Some(address) => (headers(&address.headers), address.namespace.clone()),
            None => (HeaderMap::new(), None),
        };
        Ok(Self { transport, secure, plain, plain_allowed, chosen, choosing, counters, hosts, headers, namespace })
    }

    /// The address of `path` below `base`, which is the root of the registry's API.
    pub(super) fn url(&self, base: &Url, path: &str) -> Url {
        let mut url = join(base, path);
        if let Some(namespace) = &self.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        url
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The registry's `/v2/`, once its scheme is known.
    pub(super) fn base(&self) -> Option<&Url> {
        self.chosen.get()
    }

    /// The addresses at which the registry may be: both schemes, until it is known which one it speaks.
    pub(super) fn candidates(&self) -> impl Iterator<Item = &Url> {
        match self.base() {
            Some(base) => [Some(base), None],
            None => [Some(&self.secure), Some(&self.plain)],
        }
        .into_iter()
        .flatten()
    }

    /// Whether the registry is known to list referrers.
    pub(super) fn lists_referrers(&self) -> bool {
        self.base().is_some_and(|base| self.hosts.lists_referrers(base))
    }

    /// Remembers for all images of the host whether it lists referrers.
    pub(super) fn note_referrers(&self, are_listed: bool) {
        if let Some(base) = self.base() {
            self.hosts.note_referrers(base, are_listed);
        }
    }

    /// Whether the registry speaks plain HTTP.
    pub(super) fn is_plain(&self) -> bool {
        self.base().is_some_and(|base| base.scheme() == "http")
    }

    /// Whether `url` is at the registry itself: scheme, host and port are the same.
    pub(super) fn is_registry(&self, url: &Url) -> bool {
        self.base().is_some_and(|base| base.origin() == url.origin())
    }

    /// Sends one request as soon as its host has room. It is counted whatever the outcome. The head of its answer must arrive in time.
    pub(super) async fn send(
        &self,
        url: Url,
        call: &Call,
        authorization: Option<HeaderValue>,
    ) -> Result<Response, Failure> {
        let shown = without_query(&url);
        let place = self.hosts.enter(&url, call).await?;
        let _waiting = self.counters.sent();
        self.try_send(url, call, authorization, place).await.map_err(|error| failure(&shown, &error))
    }

    /// Determines the scheme. The first request to a registry that may speak plain HTTP is sent under both schemes at once, without
    /// credentials, and HTTPS wins if it answers at all. So this costs no round trip, unless the request changes something: then
    /// another one is sent first.
    ///
    /// `None`: the scheme is known by now, send as usual.
    pub(super) async fn choose(&self, path: &str, call: &Call) -> Result<Option<Response>, Failure> {
        if matches!(call.method, Method::GET | Method::HEAD) {
            return self.choose_by(path, call).await;
        }
        if let Some(response) = self.choose_by("", &Call::get("/v2/")).await? {
            super::body::drain(response).await;
        }
        Ok(None)
    }

    async fn choose_by(&self, path: &str, call: &Call) -> Result<Option<Response>, Failure> {
        if self.chosen.get().is_some() {
            return Ok(None);
        }
        let _guard = self.choosing.lock().await;
        if self.chosen.get().is_some() {
            return Ok(None);
        }
        debug_assert!(self.plain_allowed, "the scheme of others is chosen from the start");
        let (at_secure, at_plain) =
            (self.hosts.enter(&self.secure, call).await?, self.hosts.enter(&self.plain, call).await?);
        // They count as one: of the two, one leads nowhere.
        let _waiting = self.counters.sent();
        let ask = |base: &Url, place: Slot| self.try_send(self.url(base, path), call, None, place).boxed();
        let (secure, plain) = match select(ask(&self.secure, at_secure), ask(&self.plain, at_plain)).await {
            Either::Left((secure @ Ok(_), _)) => (secure, Err(too_slow(call.time_limit))),
            Either::Left((secure, plain)) => (secure, plain.await),
            Either::Right((plain @ Ok(_), secure)) => (
                timeout(timing::HTTPS_GRACE, secure).await.unwrap_or_else(|_| Err(too_slow(timing::HTTPS_GRACE))),
                plain,
            ),
            Either::Right((plain, secure)) => (secure.await, plain),
        };
        match (secure, plain) {
            (Ok(response), _) => {
                drop(self.chosen.set(self.secure.clone()));
                Ok(Some(response))
            }
            // An untrusted certificate stays final, whatever the other scheme answers.
            (Err(error), Ok(response)) if error.kind != TransportFault::Certificate => {
                drop(self.chosen.set(self.plain.clone()));
                Ok(Some(response))
            }
            (Err(error), _) => Err(failure(self.secure.authority(), &error)),
        }
    }

    /// Sends one request, which its caller counts, and counts the bytes of the answer.
    async fn try_send(
        &self,
        url: Url,
        call: &Call,
        authorization: Option<HeaderValue>,
        place: Slot,
    ) -> Result<Response, TransportError> {
        let same_host = url.host() == self.secure.host();
        let peer = if same_host { Peer::Registry } else { Peer::Other };
        let mut headers = call.headers.clone();
        if !self.headers.is_empty() && self.is_registry(&url) {
            headers.extend(self.headers.clone());
        }
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value);
        }
        let activity = Arc::new(Activity::default());
        let body = call.payload.open(&activity).await;
        let request = Request { method: call.method.clone(), url, headers, body, peer };
        tracing::trace!(?request, "sending");
        let response = match self.watched(request, &activity, place.time_limit(call)).await {
            Ok(response) => response,
            Err(error) => {
                if error.kind == TransportFault::Slow {
                    place.was_silent();
                }
                return Err(error);
            }
        };
        place.answered(&response);
        let counters = self.counters.clone();
        let body = response.body.inspect(move |piece| {
            if let Ok(piece) = piece {
                counters.received(piece.len() as u64);
            }
        });
        Ok(Response { body: body.boxed(), ..response })
    }

    /// Waits for an answer as long as the body makes progress, and `time_limit` longer.
    async fn watched(
        &self,
        request: Request,
        activity: &Activity,
        time_limit: Duration,
    ) -> Result<Response, TransportError> {
        let mut sending = self.transport.send(request);
        loop {
            let before = activity.taken();
            match timeout(time_limit, &mut sending).await {
                Ok(answer) => return answer,
                Err(_) if activity.has_progressed_since(before) => {}
                Err(_) => return Err(too_slow(time_limit)),
            }
        }
    }
}

/// Headers of the configuration. Invalid ones are left out, with a warning that shows no value.
fn headers(configured: &[Header]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for header in configured {
        match (header.name().parse::<HeaderName>(), HeaderValue::from_str(header.value())) {
            (Ok(name), Ok(mut value)) => {
                value.set_sensitive(true);
                headers.append(name, value);
            }
            _ => tracing::warn!("the header {:?} of the configuration is not valid, and is not sent", header.name()),
        }
    }
    headers
}

fn too_slow(time_limit: Duration) -> TransportError {
    TransportError::new(TransportFault::Slow, format!("no response within {} s", time_limit.as_secs_f64()))
}

fn failure(shown: &str, error: &TransportError) -> Failure {
    let message = match error.kind {
        TransportFault::Certificate => format!("{shown}: TLS: {error}"),
        TransportFault::NotTls => {
            format!("{shown}: not a TLS server: {error} (for a registry on plain HTTP use --tls-verify=false)")
        }
        TransportFault::Connect => format!("{shown}: cannot connect: {error}"),
        TransportFault::Broken | TransportFault::Slow => format!("{shown}: {error}"),
    };
    match error.kind {
        TransportFault::Certificate | TransportFault::NotTls => Failure::new(Fault::Refused, Retry::Never, message),
        TransportFault::Slow => Failure::new(Fault::Timeout, Retry::Later, message),
        TransportFault::Connect | TransportFault::Broken => Failure::new(Fault::Unavailable, Retry::Later, message),
    }
}
