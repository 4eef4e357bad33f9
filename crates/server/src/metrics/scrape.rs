//! Answers scrapes with the metrics of all mounts.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tarpon_client::protocol::MountRequest;
use tarpon_registry::serve::{Body, Handler};

use super::super::mount_table::MountTable;
use super::text::{self, Exposition, Label};
use crate::{Error, ErrorKind, Result};

/// Opens the endpoint if the mount requests it. Must be called in a runtime. Returns `true` if it was not open before, so that a failed
/// mount can close it again.
pub(in super::super) fn expose(mounts: &Arc<MountTable>, request: &MountRequest) -> Result<bool> {
    request.metrics.map_or(Ok(false), |address| open(mounts, address))
}

/// As [`expose`], at an address that no mount requested.
pub(in super::super) fn open(mounts: &Arc<MountTable>, address: SocketAddr) -> Result<bool> {
    let handler = || -> Arc<dyn Handler> { Arc::new(MetricsHandler(Arc::downgrade(mounts))) };
    mounts.endpoint.open(address, handler).map_err(|cause| {
        Error::new(ErrorKind::Conflict, "serve metrics", cause)
            .hint("a server has one address for its metrics, and each store a server of its own; nothing was mounted")
    })
}

/// As [`expose`], for a mount that a dead server left. A failure does not prevent the mount.
pub(in super::super) fn serve_again(mounts: &Arc<MountTable>, request: &mut MountRequest) {
    if let Err(error) = expose(mounts, request) {
        tracing::warn!(%error, "the metrics of an earlier server are no longer served");
        request.fallbacks.push(format!("no metrics: {}", error.cause()));
        request.metrics = None;
    }
}

/// Handles scrapes.
struct MetricsHandler(Weak<MountTable>);

impl Handler for MetricsHandler {
    fn handle(&self, request: http::Request<Bytes>) -> BoxFuture<'_, io::Result<http::Response<Body>>> {
        Box::pin(async move {
            let mounts = self.0.upgrade().ok_or(io::ErrorKind::BrokenPipe)?;
            let scrape = (request.uri().path() == "/metrics").then(|| request.method() == http::Method::GET);
            let answer = match scrape {
                Some(true) => {
                    // Blocks while another thread loads an image from the disk.
                    let page = tokio::task::spawn_blocking(move || page(&mounts)).await.map_err(io::Error::other)?;
                    plain(200).header(http::header::CONTENT_TYPE, text::CONTENT_TYPE).body(page)
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
fn page(mounts: &MountTable) -> String {
    let mut modes: BTreeMap<&str, u64> = BTreeMap::new();
    for served in mounts.places.mounted() {
        *modes.entry(served.mounted.mode().name()).or_default() += 1;
    }
    modes.extend(mounts.exposed().filter(|(_, count)| *count > 0));
    // An image from two sources, or one whose record was rewritten, is a single image in a graph.
    let mut images: BTreeMap<Label, Vec<tarpon_fetch::Stats>> = BTreeMap::new();
    let mut prepared = BTreeMap::new();
    for image in mounts.domains.all().iter().flat_map(|domain| domain.images.all()) {
        let label = Label::of(image.handle().name(), &image.record.manifest);
        prepared.insert(label.clone(), image.prepared_bytes());
        images.entry(label).or_default().push(image.counters());
    }
    let host = vec![mounts.domains.whole().images.fetcher().stats()];
    let (scrub, endpoints) = (mounts.scrub.status(), mounts.domains.whole().counters.endpoints.by_host());
    let text = Exposition { host, images, prepared, modes, scrub, endpoints }.text();
    mounts.keep_counters();
    text
}
