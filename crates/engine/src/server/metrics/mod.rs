//! The server's metrics over HTTP, in the text format of Prometheus.
//!
//! One endpoint per server, from the first mount that requests one until the server ends. It covers all mounts of the store.

mod text;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tarpon_registry::serve::{Body, Handler, Limits, Server};

use super::mounts::Mounts;
use crate::protocol::MountRequest;
use crate::{Error, ErrorKind, Result};
use text::{Exposition, Label};

/// Maximum number of connections. Scrapers are few and rare, so eight leave room for some that hang until they time out.
const CONNECTIONS: usize = 8;
/// Maximum size of a request's line and headers: several times what a scraper sends.
const HEAD_BYTES: usize = 8 << 10;
/// Maximum duration of a scrape: as long as Prometheus waits by default.
const LIFETIME: Duration = Duration::from_secs(10);

/// The metrics endpoint of a server.
#[derive(Default)]
pub(super) struct Endpoint {
    running: Mutex<Option<Running>>,
}

struct Running {
    /// The requested address. With port 0, it is not the actual one.
    asked: SocketAddr,
    server: Server,
}

impl Endpoint {
    /// The actual address, if the endpoint is open.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.running.lock().as_ref().map(|running| running.server.address())
    }

    /// Closes it.
    pub(super) fn close(&self) {
        drop(self.running.lock().take());
    }

    /// Opens the endpoint at `address`, unless it is open. Returns `true` if it was not open before.
    fn open(
        &self,
        address: SocketAddr,
        handler: impl FnOnce() -> Arc<dyn Handler>,
    ) -> std::result::Result<bool, String> {
        let mut running = self.running.lock();
        if let Some(known) = &*running {
            let at = known.server.address();
            if known.asked == address || at == address {
                return Ok(false);
            }
            return Err(format!("the server of this store tells them at {at} already"));
        }
        let started = listen(address).and_then(|listener| {
            let limits = Limits { connections: CONNECTIONS, head_bytes: HEAD_BYTES, lifetime: Some(LIFETIME) };
            Server::on(listener, handler(), limits)
        });
        let server = started.map_err(|error| format!("cannot listen at {address}: {error}"))?;
        tracing::info!("metrics at http://{}/metrics", server.address());
        *running = Some(Running { asked: address, server });
        Ok(true)
    }
}

fn listen(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// Opens the endpoint if the mount requests it. Must be called in a runtime. Returns `true` if it was not open before, so that a failed
/// mount can close it again.
pub(super) fn tell(mounts: &Arc<Mounts>, request: &MountRequest) -> Result<bool> {
    request.metrics.map_or(Ok(false), |address| open(mounts, address))
}

/// As [`tell`], at an address that no mount requested.
pub(super) fn open(mounts: &Arc<Mounts>, address: SocketAddr) -> Result<bool> {
    let handler = || -> Arc<dyn Handler> { Arc::new(Told(Arc::downgrade(mounts))) };
    mounts.endpoint.open(address, handler).map_err(|cause| {
        Error::new(ErrorKind::Conflict, "tell metrics", cause)
            .hint("a server has one address for its metrics, and each store a server of its own; nothing was mounted")
    })
}

/// As [`tell`], for a mount that a dead server left. A failure does not prevent the mount.
pub(super) fn tell_again(mounts: &Arc<Mounts>, request: &mut MountRequest) {
    if let Err(error) = tell(mounts, request) {
        tracing::warn!(%error, "the metrics of an earlier server are not told any more");
        request.fallbacks.push(format!("no metrics: {}", error.cause));
        request.metrics = None;
    }
}

/// Handles scrapes.
struct Told(Weak<Mounts>);

impl Handler for Told {
    fn handle(&self, request: http::Request<Bytes>) -> BoxFuture<'_, io::Result<http::Response<Body>>> {
        Box::pin(async move {
            let mounts = self.0.upgrade().ok_or(io::ErrorKind::BrokenPipe)?;
            let scrape = (request.uri().path() == "/metrics").then(|| request.method() == http::Method::GET);
            let answer = match scrape {
                Some(true) => {
                    // Blocks while another thread loads an image from the disk.
                    let told = tokio::task::spawn_blocking(move || told(&mounts)).await.map_err(io::Error::other)?;
                    plain(200).header(http::header::CONTENT_TYPE, text::CONTENT_TYPE).body(told)
                }
                Some(false) => plain(405).header(http::header::ALLOW, "GET").body("only GET\n".to_owned()),
                None => plain(404).body("the metrics are at /metrics\n".to_owned()),
            };
            Ok(answer.map_err(io::Error::other)?.map(whole))
        })
    }
}

fn whole(text: String) -> Body {
    stream::once(std::future::ready(Ok(Bytes::from(text)))).boxed()
}

fn plain(status: u16) -> http::response::Builder {
    http::Response::builder().status(status)
}

/// All metrics of the server.
fn told(mounts: &Mounts) -> String {
    let mut modes: BTreeMap<&str, u64> = BTreeMap::new();
    for served in mounts.places.mounted() {
        *modes.entry(served.mounted.mode().name()).or_default() += 1;
    }
    modes.extend(mounts.shown_to_podman().into_iter().filter(|(_, count)| *count > 0));
    // An image from two sources, or one whose record was rewritten, is a single image in a graph.
    let mut images: BTreeMap<Label, Vec<tarpon_fetch::Stats>> = BTreeMap::new();
    let mut prepared = BTreeMap::new();
    for image in mounts.domains.all().iter().flat_map(|domain| domain.images.all()) {
        let label = Label::of(image.handle().name(), &image.record.manifest);
        prepared.insert(label.clone(), image.record_now().prepared_bytes);
        images.entry(label).or_default().push(image.counters());
    }
    let host = vec![mounts.domains.whole().images.fetcher().stats()];
    Exposition { host, images, prepared, modes, scrub: mounts.scrub.status() }.text()
}
