//! What the server counts, over HTTP, for Prometheus and whoever reads its text format.
//!
//! One endpoint for a server, from the first mount that asks for one until the server ends. It tells of all mounts of the store.

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

/// Few scrape, once in a while: eight connections leave room for those that hang until their time is over.
const CONNECTIONS: usize = 8;
/// Bytes of a request's line and headers: what a scraper sends, several times over.
const HEAD_BYTES: usize = 8 << 10;
/// How long one scrape may take, as long as Prometheus waits for it by default.
const LIFETIME: Duration = Duration::from_secs(10);

/// Where a server tells its metrics.
#[derive(Default)]
pub(super) struct Endpoint {
    running: Mutex<Option<Running>>,
}

struct Running {
    /// As it was asked for: with port 0, not where it is.
    asked: SocketAddr,
    server: Server,
}

impl Endpoint {
    /// Where it is, if there is one.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.running.lock().as_ref().map(|running| running.server.address())
    }

    /// Ends it.
    pub(super) fn close(&self) {
        drop(self.running.lock().take());
    }

    /// Begins to answer at `address`, unless it does.
    /// `true`: it did not before.
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

/// Begins to tell the metrics where the mount asks for it. Must be called in a runtime. `true`: they were not told before, and need not be
/// if it is not mounted after all.
pub(super) fn tell(mounts: &Arc<Mounts>, request: &MountRequest) -> Result<bool> {
    request.metrics.map_or(Ok(false), |address| open(mounts, address))
}

/// As [`tell`], at an address that nobody's mount has asked for.
pub(super) fn open(mounts: &Arc<Mounts>, address: SocketAddr) -> Result<bool> {
    let handler = || -> Arc<dyn Handler> { Arc::new(Told(Arc::downgrade(mounts))) };
    mounts.endpoint.open(address, handler).map_err(|cause| {
        Error::new(ErrorKind::Conflict, "tell metrics", cause)
            .hint("a server has one address for its metrics, and each store a server of its own; nothing was mounted")
    })
}

/// As [`tell`], for a mount that a dead server left: it is made again all the same.
pub(super) fn tell_again(mounts: &Arc<Mounts>, request: &mut MountRequest) {
    if let Err(error) = tell(mounts, request) {
        tracing::warn!(%error, "the metrics of an earlier server are not told any more");
        request.fallbacks.push(format!("no metrics: {}", error.cause));
        request.metrics = None;
    }
}

/// Answers scrapes.
struct Told(Weak<Mounts>);

impl Handler for Told {
    fn handle(&self, request: http::Request<Bytes>) -> BoxFuture<'_, io::Result<http::Response<Body>>> {
        Box::pin(async move {
            let mounts = self.0.upgrade().ok_or(io::ErrorKind::BrokenPipe)?;
            let scrape = (request.uri().path() == "/metrics").then(|| request.method() == http::Method::GET);
            let answer = match scrape {
                Some(true) => {
                    // Waits for whoever is just loading an image from the disk.
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
    // The same image from two sources, or of a record that was made anew, is one to whoever looks at a graph.
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
