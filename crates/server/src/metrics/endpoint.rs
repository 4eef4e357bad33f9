//! [`Endpoint`]: the HTTP endpoint of the metrics.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_registry::serve::{Handler, Limits, Server};

/// Maximum number of connections. Scrapers are few and rare, so eight leave room for some that hang until they time out.
const CONNECTIONS: usize = 8;
/// Maximum size of a request's line and headers: several times what a scraper sends.
const HEAD_BYTES: usize = 8 << 10;
/// Maximum duration of a scrape: as long as Prometheus waits by default.
const LIFETIME: Duration = Duration::from_secs(10);

/// The metrics endpoint of a server.
#[derive(Default)]
pub(in super::super) struct Endpoint {
    running: Mutex<Option<Running>>,
}

struct Running {
    /// The requested address. With port 0, it is not the actual one.
    asked: SocketAddr,
    server: Server,
}

impl Endpoint {
    /// The actual address, if the endpoint is open.
    pub(in super::super) fn address(&self) -> Option<SocketAddr> {
        self.running.lock().as_ref().map(|running| running.server.address())
    }

    /// Closes it.
    pub(in super::super) fn close(&self) {
        drop(self.running.lock().take());
    }

    /// Opens the endpoint at `address`, unless it is open. Returns `true` if it was not open before.
    pub(super) fn open(
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
            return Err(format!("the server of this store serves them at {at} already"));
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
