//! The real transport, on reqwest.
//!
//! Why reqwest and not the crate oci-client: oci-client decides about tokens, redirects and retries inside its client, follows
//! redirects as its HTTP library does, does not check the range that a server answers with, and has no interface between those
//! decisions and the network. Lazy reading depends on exactly these.
//!
//! HTTP/1.1 with a warm pool: ranged reads are few and large, a lost packet stalls one of them and not all, and every registry and
//! object store supports it.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use http::header::CONTENT_LENGTH;
use url::Url;

use super::loopback::is_loopback;
use super::tls::Certificates;
use super::{Peer, Request, RequestBody, Response, Transport, TransportError, TransportFault};
use crate::registries::Endpoint;
use crate::timing;

/// Idle connections kept per host: as many as a mount opens at once.
const IDLE_CONNECTIONS: usize = 32;

/// Sends requests over the network.
pub(crate) struct HttpsTransport {
    certificates: Certificates,
    verify: bool,
    registry: Clients,
    others: Clients,
}

/// The clients for one kind of peer, made when they are needed.
#[derive(Default)]
struct Clients {
    remote: Client,
    /// Loopback is never reached through a proxy.
    loopback: Client,
}

type Client = OnceLock<Result<reqwest::Client, String>>;

impl Clients {
    /// Each request fails for this reason.
    fn unusable(why: &str) -> Self {
        let failed = || Err(why.to_owned()).into();
        Self { remote: failed(), loopback: failed() }
    }

    fn get(
        &self,
        is_loopback: bool,
        tls: impl FnOnce() -> Result<rustls::ClientConfig, String>,
    ) -> &Result<reqwest::Client, String> {
        let client = if is_loopback { &self.loopback } else { &self.remote };
        client.get_or_init(|| build(tls()?, !is_loopback))
    }
}

impl HttpsTransport {
    /// For the registry at `host`. Reads certificates now, so that a wrong folder is reported at once.
    pub(crate) fn new(host: &str, verify: bool, cert_dir: Option<&Path>) -> Result<Self, String> {
        Ok(Self::with(Certificates::load(cert_dir, host)?, verify))
    }

    /// For an endpoint.
    pub(crate) fn at(endpoint: &Endpoint, cert_dir: Option<&Path>) -> Result<Self, String> {
        let mut certificates = Certificates::load(cert_dir, endpoint.reference.api_host())?;
        if let Some(address) = &endpoint.address {
            certificates.add(&address.authorities, &address.identities)?;
        }
        Ok(Self::with(certificates, !endpoint.insecure))
    }

    /// The same without a client certificate.
    pub(crate) fn without_identity(self) -> Self {
        Self::with(self.certificates.without_identity(), self.verify)
    }

    /// For an endpoint whose certificates cannot be used: each request fails for this reason.
    pub(crate) fn unusable(why: String) -> Self {
        let (registry, others) = (Clients::unusable(&why), Clients::unusable(&why));
        Self { registry, others, ..Self::with(Certificates::default(), true) }
    }

    fn with(certificates: Certificates, verify: bool) -> Self {
        Self { certificates, verify, registry: Clients::default(), others: Clients::default() }
    }

    fn client(&self, peer: Peer, url: &Url) -> Result<&reqwest::Client, TransportError> {
        let is_loopback = is_loopback(url);
        let client = match peer {
            Peer::Registry => self.registry.get(is_loopback, || self.certificates.for_registry(self.verify)),
            Peer::Other => self.others.get(is_loopback, || self.certificates.for_others()),
        };
        client.as_ref().map_err(|message| TransportError::new(TransportFault::Certificate, message.clone()))
    }
}

fn build(tls: rustls::ClientConfig, proxy: bool) -> Result<reqwest::Client, String> {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .user_agent(concat!("tarpon/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(timing::CONNECT)
        .tcp_keepalive(timing::KEEPALIVE)
        .pool_idle_timeout(timing::IDLE)
        .pool_max_idle_per_host(IDLE_CONNECTIONS);
    let builder = if proxy { builder } else { builder.no_proxy() };
    builder.build().map_err(|error| chain(&error))
}

impl Transport for HttpsTransport {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        async move {
            let client = self.client(request.peer, &request.url)?;
            let builder = client.request(request.method, request.url).headers(request.headers);
            let builder = match request.body {
                RequestBody::Whole(bytes) => builder.body(bytes),
                RequestBody::Pieces { length, pieces } => {
                    let builder = match length {
                        Some(length) => builder.header(CONTENT_LENGTH, length),
                        None => builder,
                    };
                    builder.body(reqwest::Body::wrap_stream(pieces))
                }
            };
            let response = builder.send().await.map_err(classify)?;
            Ok(Response {
                status: response.status(),
                headers: response.headers().clone(),
                body: response.bytes_stream().map(|piece| piece.map_err(classify)).boxed(),
            })
        }
        .boxed()
    }
}

fn classify(error: reqwest::Error) -> TransportError {
    let error = error.without_url();
    let kind = match tls_error(&error) {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            TransportFault::Certificate
        }
        Some(rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. }) => TransportFault::NotTls,
        // A server that requires a client certificate sends an alert. Another attempt changes nothing.
        Some(rustls::Error::AlertReceived(_)) => TransportFault::Certificate,
        Some(_) => TransportFault::Broken,
        None if error.is_connect() => TransportFault::Connect,
        None => TransportFault::Broken,
    };
    TransportError::new(kind, chain(&error))
}

fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// The error and its causes, outermost first. An I/O error hides its inner error from `source`.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    std::iter::from_fn(move || {
        let current = next?;
        next = match current.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => current.source(),
        };
        Some(current)
    })
}

/// The innermost cause is the informative one. The outer ones only state that something failed.
fn chain(error: &reqwest::Error) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_never_shares_a_client_with_other_hosts_whichever_comes_first() {
        for urls in [["http://127.0.0.1:5000/v2/", "https://cdn.test/"], ["https://cdn.test/", "http://localhost/"]] {
            let [first, second] = urls.map(|url| Url::parse(url).unwrap());
            for peer in [Peer::Registry, Peer::Other] {
                let transport = HttpsTransport::with(Certificates::default(), true);
                let client = |url: &Url| std::ptr::from_ref(transport.client(peer, url).unwrap());
                assert_ne!(client(&first), client(&second), "{peer:?} {urls:?}");
                assert_eq!(client(&first), client(&first));
            }
        }
    }
}
