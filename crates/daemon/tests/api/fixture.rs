//! A registry, a store, a daemon on it, and a client that checks every answer.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tarpon_daemon::{Daemon, Options, Socket};
use tarpon_engine::oci::media_type;
use tarpon_engine::{Engine, EngineOptions};
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{EstargzOptions, ImageBuilder, Item, estargz};
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::server::TestServer;
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::description::Description;

/// Content of `etc/hello` in the image.
pub(crate) const HELLO: &str = "hello\n";

pub(crate) struct Fixture {
    folder: TempDir,
    pub(crate) registry: TestServer,
    pub(crate) engine: Engine,
    description: Description,
    daemon: Option<Daemon>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(Auth::Anonymous).await
    }

    pub(crate) async fn with(auth: Auth) -> Self {
        let items = [Item::directory("etc"), Item::file("etc/hello", HELLO)];
        let image = ImageBuilder::new().layer(estargz(&items, EstargzOptions::default())).build();
        let marked = [Item::file("tool", "tool"), Item::file(".prefetch.landmark", b"\x0f"), Item::file("rest", HELLO)];
        let marked = ImageBuilder::new().layer(estargz(&marked, EstargzOptions::default())).build();
        let mut contents = Contents::new();
        for (_, blob) in image.blobs().into_iter().chain(marked.blobs()) {
            contents.add_blob(blob);
        }
        contents.add_manifest(Some(("marked", "v1")), media_type::OCI_MANIFEST, marked.manifest);
        contents.add_manifest(Some(("app", "v1")), media_type::OCI_MANIFEST, image.manifest);
        contents.add_manifest(Some(("odd", "v1")), media_type::OCI_MANIFEST, "{}");
        let registry = TestServer::start(Arc::new(FakeRegistry::new(contents, auth, None))).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = EngineOptions {
            store: folder.path().join("store"),
            server_command: Vec::new(),
            worker_command: Vec::new(),
        };
        let engine = Engine::open(options).unwrap();
        let mut fixture = Self { folder, registry, engine, description: Description::new(), daemon: None };
        fixture.start().await;
        fixture
    }

    pub(crate) async fn start(&mut self) {
        let socket = Socket::open(&self.path("api.sock")).unwrap();
        self.start_with(options(socket)).await;
    }

    pub(crate) async fn start_with(&mut self, options: Options) {
        self.daemon = Some(Daemon::start(self.engine.clone(), options).await.unwrap());
    }

    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.registry.host())
    }

    /// A request for an image of the registry.
    pub(crate) fn image_body(&self, name: &str) -> Value {
        json!({"image": self.image(name), "image_options": {"platform": "linux/amd64", "tls_verify": false}})
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn directory(&self, name: &str) -> String {
        std::fs::create_dir(self.path(name)).unwrap();
        self.path(name).canonicalize().unwrap().display().to_string()
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = UnixStream::connect(self.path("api.sock")).await.unwrap();
        let (client, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Sends a request, and returns the head of the response with an unread body.
    pub(crate) async fn open(&self, method: Method, path: &str, body: &[u8]) -> Response<Incoming> {
        let request = request(method, path, body);
        self.connect().await.send_request(request).await.unwrap()
    }

    /// Sends a request whose response must match the description.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let response = self.open(method.clone(), path, body).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        self.description.check(&method, path, head.status, &body);
        (head.status, body)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(Method::GET, path, b"").await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.send(Method::POST, path, body.to_string().as_bytes()).await
    }

    pub(crate) async fn stop(&mut self) {
        self.daemon.take().unwrap().stop().await;
    }
}

pub(crate) fn request(method: Method, path: &str, body: &[u8]) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    request.body(Full::new(Bytes::copy_from_slice(body))).unwrap()
}

/// One object with the fields of both.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

/// Reads a body line by line.
pub(crate) struct Lines {
    body: Incoming,
    read: Vec<u8>,
}

impl Lines {
    pub(crate) fn of(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), read: Vec::new() }
    }

    /// The next line; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.read.extend_from_slice(self.body.frame().await?.unwrap().data_ref().unwrap());
        }
    }

    /// The next line with this event.
    pub(crate) async fn until(&mut self, event: &str) -> Value {
        loop {
            let line = self.next().await.unwrap();
            if line["event"] == event {
                return line;
            }
        }
    }
}

/// The options of a daemon at this socket, for everything else the defaults.
pub(crate) fn options(socket: Socket) -> Options {
    Options {
        socket,
        metrics: None,
        keeper_command: Vec::new(),
        runtime: None,
        policy: tarpon_engine::PolicyChoice::Host,
        index_repos: Vec::new(),
        tier: None,
        scrub: None,
        learning: None,
        program: None,
    }
}
