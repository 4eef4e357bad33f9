//! A scripted network, one step per request, which records every request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use http::{HeaderMap, Method};
use tarpon_registry::transport::{Request, RequestBody, Response, Transport, TransportError, TransportFault};
use url::Url;

use crate::registry::{FakeRegistry, Fault, NoAnswer, Role, answer};

/// A [`Transport`] to a [`FakeRegistry`]. After the end of the script, there are no faults.
pub struct ScriptedTransport {
    registry: Arc<FakeRegistry>,
    script: Mutex<VecDeque<Fault>>,
    attack: Mutex<Option<Attack>>,
    seen: Mutex<Vec<Seen>>,
}

/// A fault of some requests.
pub struct Attack {
    /// The requests, by their addresses.
    pub on: Box<dyn Fn(&Url) -> bool + Send>,
    /// The fault.
    pub fault: Fault,
    /// How many of these requests it still affects.
    pub times: usize,
}

/// A sent request.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Method.
    pub method: Method,
    /// Full address.
    pub url: Url,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl ScriptedTransport {
    /// A network with `registry` on it.
    pub fn new(registry: Arc<FakeRegistry>) -> Self {
        Self { registry, script: Mutex::default(), attack: Mutex::default(), seen: Mutex::default() }
    }

    /// Sets the faults of the next requests.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// From now on, applies this fault to all requests whose path contains `part`, after the script; `None`: no fault.
    pub fn attack(&self, part: &'static str, fault: Option<Fault>) {
        let on = Box::new(move |url: &Url| url.path().contains(part));
        self.set_attack(fault.map(|fault| Attack { on, fault, times: usize::MAX }));
    }

    /// Replaces the attack. Returns the one before it, from which `times` shows how often it had an effect.
    pub fn set_attack(&self, attack: Option<Attack>) -> Option<Attack> {
        std::mem::replace(&mut *self.attack.lock().unwrap_or_else(PoisonError::into_inner), attack)
    }

    fn fault(&self, url: &Url) -> Fault {
        if let Some(fault) = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
            return fault;
        }
        let mut attack = self.attack.lock().unwrap_or_else(PoisonError::into_inner);
        match attack.as_mut().filter(|attack| attack.times > 0 && (attack.on)(url)) {
            Some(attack) => {
                attack.times -= 1;
                attack.fault.clone()
            }
            None => Fault::Pass,
        }
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn role(&self, url: &Url) -> Option<Role> {
        let hosts = self.registry.hosts();
        let at = |base: &str| Url::parse(base).is_ok_and(|base| base.origin() == url.origin());
        [(hosts.registry, Role::Registry), (hosts.tokens, Role::Tokens), (hosts.blobs, Role::Blobs)]
            .into_iter()
            .find(|(base, _)| at(base))
            .map(|(_, role)| role)
    }

    async fn respond(&self, request: Request) -> Result<Response, TransportError> {
        let fault = self.fault(&request.url);
        let sent = sent(request.body, &fault).await;
        let body = sent.clone().unwrap_or_default();
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(Seen {
            method: request.method.clone(),
            url: request.url.clone(),
            headers: request.headers.clone(),
            body,
        });
        // A network takes time: other tasks run before the answer.
        tokio::task::yield_now().await;
        let Some(role) = self.role(&request.url) else {
            return Err(TransportError::new(TransportFault::Connect, "no such host"));
        };
        let mut inner = http::Request::new(sent?);
        *inner.method_mut() = request.method;
        *inner.headers_mut() = request.headers;
        let target = request.url[url::Position::BeforePath..].parse();
        *inner.uri_mut() = target.map_err(|_| TransportError::new(TransportFault::Broken, "odd address"))?;
        let answer = answer(&self.registry, role, inner, fault).await.map_err(|error| match error {
            NoAnswer::Connect => TransportError::new(TransportFault::Connect, "connection refused"),
            NoAnswer::NotTls => TransportError::new(TransportFault::NotTls, "corrupt message"),
            NoAnswer::Certificate => TransportError::new(TransportFault::Certificate, "unknown issuer"),
            NoAnswer::Broken => TransportError::new(TransportFault::Broken, "connection reset by peer"),
        })?;
        let (head, body) = answer.into_parts();
        let body =
            body.map(|piece| piece.map_err(|error| TransportError::new(TransportFault::Broken, error.to_string())));
        Ok(Response { status: head.status, headers: head.headers, body: body.boxed() })
    }
}

/// The part of `body` that is sent: all of it under most faults; if the fault is in the middle of the body, a little more
/// than arrives.
async fn sent(body: RequestBody, fault: &Fault) -> Result<Bytes, TransportError> {
    let mut pieces = match body {
        RequestBody::Whole(bytes) => return Ok(bytes),
        RequestBody::Pieces { pieces, .. } => pieces,
    };
    let enough = match fault {
        Fault::TakeAndBreak(bytes) | Fault::TakeAndHang(bytes) => *bytes,
        _ => usize::MAX,
    };
    let mut sent = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        sent.extend_from_slice(&piece?);
        if sent.len() > enough {
            break;
        }
    }
    Ok(sent.freeze())
}

impl Transport for ScriptedTransport {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        self.respond(request).boxed()
    }
}
