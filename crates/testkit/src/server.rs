//! A [`FakeRegistry`] on real loopback ports: one for the registry and its token service, one for its blobs.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use tarpon_registry::Stats;
use tarpon_registry::serve::{Body, Handler, Server};
use tokio::sync::watch;

use crate::registry::{FakeRegistry, Fault, Hosts, Role, answer};

/// The running ports. They close when this is dropped.
pub struct TestServer {
    model: Arc<FakeRegistry>,
    registry: Server,
    blobs: Server,
    script: Arc<watch::Sender<VecDeque<Fault>>>,
}

struct Port {
    role: Role,
    model: Arc<FakeRegistry>,
    script: Arc<watch::Sender<VecDeque<Fault>>>,
}

impl TestServer {
    /// Starts serving `model`, which uses these ports in challenges and redirects from now on.
    pub async fn start(model: Arc<FakeRegistry>) -> io::Result<Self> {
        let script = Arc::<watch::Sender<VecDeque<Fault>>>::default();
        let port = |role| Arc::new(Port { role, model: model.clone(), script: script.clone() });
        let registry = Server::start(port(Role::Registry)).await?;
        let blobs = Server::start(port(Role::Blobs)).await?;
        let at = |server: &Server| format!("http://{}", server.host());
        model.set_hosts(Hosts { registry: at(&registry), tokens: at(&registry), blobs: at(&blobs) });
        Ok(Self { model, registry, blobs, script })
    }

    /// The registry behind the ports.
    pub fn model(&self) -> &FakeRegistry {
        &self.model
    }

    /// `127.0.0.1:PORT` of the registry.
    pub fn host(&self) -> String {
        self.registry.host()
    }

    /// Sets the faults of the next requests, on either port.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.script.send_modify(|script| script.extend(faults));
    }

    /// Waits until each fault of the script has been applied to a request.
    pub async fn script_ended(&self) {
        let mut script = self.script.subscribe();
        let _sender_is_here = script.wait_for(VecDeque::is_empty).await;
    }

    /// Requests answered and bytes sent, on both ports.
    pub fn stats(&self) -> Stats {
        let (registry, blobs) = (self.registry.stats(), self.blobs.stats());
        Stats { requests: registry.requests + blobs.requests, bytes: registry.bytes + blobs.bytes }
    }
}

impl Handler for Port {
    fn handle(&self, request: Request<Bytes>) -> BoxFuture<'_, io::Result<Response<Body>>> {
        let role = match request.uri().path() {
            "/token" => Role::Tokens,
            _ => self.role,
        };
        let mut fault = None;
        self.script.send_modify(|script| fault = script.pop_front());
        let fault = fault.unwrap_or(Fault::Pass);
        Box::pin(async move {
            let answer = answer(&self.model, role, request, fault).await;
            answer.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))
        })
    }
}
