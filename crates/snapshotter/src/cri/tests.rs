//! The proxy between a client and a scripted containerd, over sockets.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Body as _, Frame};
use parking_lot::Mutex;
use prost::Message as _;
use tarpon_engine::Credentials;
use tarpon_engine::service::Socket;
use tarpon_oci::{Digest, Reference};
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::transport::Server;
use tonic::{Code, Status};
use tower_service::Service;

use super::passing::{WholeBody, whole};
use super::upstream::Upstream;
use super::{CriProxy, MESSAGE_BYTES, PULLS, SERVICE};
use crate::images::{ChainIds, Images, Outcome};
use crate::labels::{PulledLayer, REF};
use crate::messages::CreateRequest;
use crate::pull_credentials::PullCredentials;
use crate::record::{Kind, LazyLayers};
use crate::rpc::Rpc;
use crate::services::Services;
use crate::snapshots::Snapshots;

/// The time limit of what happens at once, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Images of one layer each. Records which credentials they were prepared with, and which mounts got others.
#[derive(Default)]
struct KnownImages {
    credentials: Arc<PullCredentials>,
    configs: Mutex<HashMap<Reference, Digest>>,
    prepared: Mutex<Vec<(Reference, Vec<Credentials>)>>,
    renewed: Mutex<Vec<Reference>>,
    is_unavailable: Mutex<bool>,
}

impl Images for KnownImages {
    fn prepare(&self, layer: PulledLayer) -> BoxFuture<'static, ChainIds> {
        let with = self.credentials.of_pulls(&layer.name, &layer.image);
        self.prepared.lock().push((layer.image, with));
        let prepared = match *self.is_unavailable.lock() {
            true => Err("the registry is not there".to_owned()),
            false => Ok(Arc::from([layer.chain_id])),
        };
        async move { prepared }.boxed()
    }

    fn may_unpack(&self, _: &str) -> BoxFuture<'static, Outcome<()>> {
        async { Ok(()) }.boxed()
    }

    fn mount(&self, _: LazyLayers, _: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        async { Ok(()) }.boxed()
    }

    fn unmount(&self, _: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        async { Ok(()) }.boxed()
    }

    fn config(&self, image: &Reference) -> BoxFuture<'static, Option<Digest>> {
        let config = self.configs.lock().get(image).copied();
        async move { config }.boxed()
    }

    fn renew(&self, image: &Reference, _: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        self.renewed.lock().push(image.clone());
        async { Ok(()) }.boxed()
    }

    fn forget(&self, image: &str) {
        self.credentials.forget(&image.parse().unwrap());
    }
}

/// A call as containerd gets it.
struct Call {
    path: String,
    head: HeaderMap,
    body: Bytes,
    answer: oneshot::Sender<Response<Body>>,
    /// Closes when the call is answered or given up.
    given_up: mpsc::Receiver<()>,
}

/// Passes calls to the test.
#[derive(Clone)]
struct Containerd(mpsc::UnboundedSender<Call>);

impl Service<Request<Body>> for Containerd {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let calls = self.0.clone();
        async move {
            let (_lasts, given_up) = mpsc::channel(1);
            let (answer, answered) = oneshot::channel();
            let (head, body) = request.into_parts();
            let path = head.uri.path().to_owned();
            let body = whole(body, usize::MAX).await.unwrap().bytes;
            calls.send(Call { path, head: head.headers, body, answer, given_up }).unwrap();
            match answered.await {
                Ok(answer) => Ok(answer),
                Err(_) => pending().await,
            }
        }
        .boxed()
    }
}

/// A containerd with its connections. Dropping it ends them, as if it was killed.
struct Process {
    runtime: Option<tokio::runtime::Runtime>,
    _socket: Socket,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

struct World {
    folder: tempfile::TempDir,
    images: Arc<KnownImages>,
    snapshots: Arc<Snapshots>,
    calls: mpsc::UnboundedReceiver<Call>,
    containerd: Containerd,
    client: Arc<Upstream>,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images = Arc::new(KnownImages::default());
        let snapshots = Arc::new(Snapshots::open(&folder.path().join("root"), images.clone()).unwrap());
        let (calls, received) = mpsc::unbounded_channel();
        let (ours, theirs) = (folder.path().join("s"), folder.path().join("c"));
        let proxy = CriProxy::new(theirs, images.credentials.clone(), snapshots.clone());
        let services = Services { snapshots: Rpc(snapshots.clone()), images: Some(proxy) };
        Self::serve(&ours, services);
        let client = Arc::new(Upstream::new(ours));
        Self { folder, images, snapshots, calls: received, containerd: Containerd(calls), client }
    }

    /// Serves until the test ends.
    fn serve(address: &std::path::Path, services: Services) {
        let socket = Socket::make(address).unwrap();
        let listener = socket.listener().unwrap();
        tokio::spawn(async move {
            let _socket = socket;
            crate::answer(listener, services, pending()).await.unwrap();
        });
    }

    /// Starts containerd.
    fn start(&self) -> Process {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _context = runtime.enter();
        let socket = Socket::make(&self.folder.path().join("c")).unwrap();
        let incoming = stream::unfold(socket.listener().unwrap(), |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        runtime.spawn(Server::builder().serve_with_incoming(self.containerd.clone(), Box::pin(incoming)));
        Process { runtime: Some(runtime), _socket: socket }
    }

    /// Calls the proxy, in the background.
    fn call(&self, request: Request<Body>) -> tokio::task::JoinHandle<Answer> {
        let client = self.client.clone();
        tokio::spawn(async move {
            let answer = tokio::time::timeout(SOON, client.send(request)).await.unwrap().unwrap();
            let is_empty = answer.body().is_end_stream();
            let (head, body) = answer.into_parts();
            let WholeBody { bytes, trailers } = whole(body, usize::MAX).await.unwrap();
            Answer { head: head.headers, bytes, trailers, is_empty }
        })
    }

    async fn next(&mut self) -> Call {
        tokio::time::timeout(SOON, self.calls.recv()).await.unwrap().unwrap()
    }

    /// Pulls an image as containerd does: prepares its layer unless `prepare` is `None`, and returns the name of its config.
    async fn pull(&mut self, name: &str, credentials: (&str, &str), prepare: Option<&str>, config: &str) -> Code {
        let answer = self.call(request("PullImage", pull_message(name, credentials)));
        let call = self.next().await;
        if let Some(manifest) = prepare {
            self.prepare(name, manifest).await;
        }
        call.answer.send(image_ref(config)).unwrap();
        answer.await.unwrap().code()
    }

    /// The call with which containerd asks for the layer of an image.
    async fn prepare(&self, name: &str, manifest: &str) {
        let layer = Digest::of(format!("{name} {manifest}").as_bytes()).to_string();
        let labels = [
            (REF, layer.clone()),
            ("containerd.io/snapshot/cri.image-ref", name.to_owned()),
            ("containerd.io/snapshot/cri.manifest-digest", Digest::of(manifest.as_bytes()).to_string()),
            ("containerd.io/snapshot/cri.layer-digest", layer),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value)).into();
        let request = CreateRequest { key: "extract".to_owned(), labels, ..CreateRequest::default() };
        let answer = self.snapshots.create(Kind::Active, request).await;
        assert_eq!(answer.is_ok(), *self.images.is_unavailable.lock(), "it is to be unpacked");
    }

    fn kept(&self, name: &str, manifest: &str) -> Option<Credentials> {
        self.images.credentials.of_image(&pinned(name, manifest))
    }
}

/// The answer that a client gets.
struct Answer {
    head: HeaderMap,
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    /// Whether it has no body, not even an empty one: with a status in the head clients expect that.
    is_empty: bool,
}

impl Answer {
    fn status(&self) -> Status {
        let in_trailers = self.trailers.as_ref().and_then(Status::from_header_map);
        in_trailers.or_else(|| Status::from_header_map(&self.head)).unwrap()
    }

    fn code(&self) -> Code {
        self.status().code()
    }
}

fn pinned(name: &str, manifest: &str) -> Reference {
    name.parse::<Reference>().unwrap().pinned(Digest::of(manifest.as_bytes()))
}

fn credentials(user: &str, password: &str) -> Credentials {
    Credentials::from_pair(user, password)
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

fn request(method: &str, body: Vec<u8>) -> Request<Body> {
    let body = Body::new(StreamBody::new(stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(body)))])));
    let request = Request::post(format!("{SERVICE}{method}")).header("content-type", "application/grpc");
    request.header("te", "trailers").body(body).unwrap()
}

/// An answer of these parts, with an OK status and another trailer.
fn parts(parts: Vec<Vec<u8>>) -> Response<Body> {
    let trailers = HeaderMap::from_iter(
        [("grpc-status", "0"), ("x-trailer", "7")]
            .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value))),
    );
    let data = parts.into_iter().map(|part| Frame::data(Bytes::from(part)));
    let frames: Vec<_> = data.chain([Frame::trailers(trailers)]).map(Ok::<_, Infallible>).collect();
    let answer = Response::builder().header("content-type", "application/grpc").header("x-head", "8");
    answer.body(Body::new(StreamBody::new(stream::iter(frames)))).unwrap()
}

/// The answer to a pull.
fn image_ref(config: &str) -> Response<Body> {
    let config = Digest::of(config.as_bytes()).to_string();
    parts(vec![frame(&super::messages::PullImageResponse { image_ref: config }.encode_to_vec())])
}

/// A `PullImageRequest` by hand, with fields that the proxy does not know.
fn pull_message(name: &str, (user, password): (&str, &str)) -> Vec<u8> {
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    }
    let image = [field(1, name.as_bytes()), field(9, b"future")].concat();
    let auth = [field(1, user.as_bytes()), field(2, password.as_bytes())].concat();
    let auth = if user.is_empty() { Vec::new() } else { field(2, &auth) };
    frame(&[field(1, &image), auth, field(3, &field(1, b"a sandbox")), field(15, b"future")].concat())
}

const APP: &str = "registry.test/team/app:v1";
const ALICE: (&str, &str) = ("alice", "0pen-sesame");
const BOB: (&str, &str) = ("bob", "hunter2");
const NONE: (&str, &str) = ("", "");

#[tokio::test]
async fn any_call_passes_unchanged_with_its_metadata_and_its_trailers() {
    let mut world = World::new().await;
    let _containerd = world.start();
    // Several messages in both directions, one of them marked as compressed, one longer than gRPC's usual limit.
    let sent = [frame(b"one"), vec![1, 0, 0, 0, 2, 7, 7], frame(&vec![5; 2 * MESSAGE_BYTES])].concat();
    let answered = [frame(b"other"), frame(&vec![6; 2 * MESSAGE_BYTES])];
    for method in ["ListImages", "FutureMethod"] {
        let mut request = request(method, sent.clone());
        request.headers_mut().insert("x-tenant-bin", HeaderValue::from_static("AAEC"));
        request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("90S"));
        let answer = world.call(request);
        let call = world.next().await;
        assert_eq!((call.path.as_str(), call.body == sent), (&*format!("{SERVICE}{method}"), true));
        assert_eq!(
            (&call.head["x-tenant-bin"], &call.head["grpc-timeout"]),
            (&"AAEC".parse().unwrap(), &"90S".parse().unwrap())
        );
        call.answer.send(parts(answered.to_vec())).unwrap();
        let answer = answer.await.unwrap();
        assert!(answer.bytes == answered.concat(), "{} bytes", answer.bytes.len());
        assert_eq!(
            (&answer.head["x-head"], &answer.trailers.as_ref().unwrap()["x-trailer"]),
            (&"8".parse().unwrap(), &"7".parse().unwrap())
        );
        assert_eq!(answer.code(), Code::Ok);
    }
}

#[tokio::test]
async fn the_messages_of_a_pull_pass_unchanged() {
    let mut world = World::new().await;
    let _containerd = world.start();
    let sent = pull_message(APP, ALICE);
    let answer = world.call(request("PullImage", sent.clone()));
    let call = world.next().await;
    assert_eq!((call.path.as_str(), &call.body[..]), (&*format!("{SERVICE}PullImage"), &sent[..]));
    let answered = frame(b"\x0a\x03abc\x7a\x06future");
    call.answer.send(parts(vec![answered.clone()])).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!((&answer.bytes[..], answer.code()), (&answered[..], Code::Ok));
    assert_eq!(
        (&answer.head["x-head"], &answer.trailers.unwrap()["x-trailer"]),
        (&"8".parse().unwrap(), &"7".parse().unwrap())
    );
    // What is no request of a pull is for containerd to refuse.
    for wrong in [vec![], vec![1, 2], frame(b"\xff\xff"), vec![1, 0, 0, 0, 1, 9]] {
        let answer = world.call(request("PullImage", wrong.clone()));
        let call = world.next().await;
        assert_eq!(call.body, wrong);
        call.answer.send(Status::invalid_argument("no").into_http()).unwrap();
        assert_eq!(answer.await.unwrap().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn containerd_s_errors_pass_with_their_details() {
    let mut world = World::new().await;
    let _containerd = world.start();
    for method in ["ImageStatus", "PullImage"] {
        let answer = world.call(request(method, pull_message(APP, ALICE)));
        let refused = Status::with_details(Code::NotFound, "no such image: \"ä\"", Bytes::from_static(b"details"));
        world.next().await.answer.send(refused.into_http()).unwrap();
        let answer = answer.await.unwrap();
        let status = answer.status();
        assert_eq!(
            (status.code(), status.message(), status.details()),
            (Code::NotFound, "no such image: \"ä\"", &b"details"[..])
        );
        assert!(answer.is_empty, "clients in Go expect no body after a status in the head");
    }
    assert_eq!(world.kept(APP, "1"), None);
}

#[tokio::test]
async fn a_call_ends_at_the_client_s_deadline_and_when_the_client_gives_up() {
    let mut world = World::new().await;
    let _containerd = world.start();
    for method in ["ImageStatus", "PullImage"] {
        let mut with_deadline = request(method, pull_message(APP, ALICE));
        with_deadline.headers_mut().insert("grpc-timeout", HeaderValue::from_static("2S"));
        let answer = world.call(with_deadline);
        let mut call = world.next().await;
        let ended = answer.await.unwrap().code();
        // The gRPC server has the same deadline, and calls it otherwise.
        assert!(matches!(ended, Code::DeadlineExceeded | Code::Cancelled), "{ended:?}");
        assert_eq!(tokio::time::timeout(SOON, call.given_up.recv()).await, Ok(None), "containerd stops working on it");
        let answer = world.call(request(method, pull_message(APP, ALICE)));
        let mut call = world.next().await;
        answer.abort();
        assert_eq!(tokio::time::timeout(SOON, call.given_up.recv()).await, Ok(None));
    }
    assert_eq!(world.kept(APP, "1"), None);
}

#[tokio::test]
async fn calls_fail_while_containerd_is_down_and_succeed_when_it_is_back() {
    let mut world = World::new().await;
    let path = world.folder.path().join("c").display().to_string();
    for _ in 0..2 {
        for method in ["ImageFsInfo", "PullImage"] {
            let down = world.call(request(method, pull_message(APP, ALICE))).await.unwrap().status();
            assert_eq!(down.code(), Code::Unavailable);
            assert!(down.message().starts_with(&format!("containerd does not answer at {path}: ")), "{down:?}");
            assert!(!down.message().contains('\n'));
        }
        let containerd = world.start();
        let answer = world.call(request("ImageFsInfo", frame(b"")));
        world.next().await.answer.send(parts(vec![frame(b"")])).unwrap();
        assert_eq!(answer.await.unwrap().code(), Code::Ok);
        assert_eq!(world.pull(APP, ALICE, None, "config").await, Code::Ok);
        drop(containerd);
    }
}

#[tokio::test]
async fn an_answer_that_containerd_does_not_finish_ends_with_a_status() {
    let mut world = World::new().await;
    let _containerd = world.start();
    for method in ["StreamImages", "PullImage"] {
        let answer = world.call(request(method, pull_message(APP, ALICE)));
        let call = world.next().await;
        let first = stream::iter([Ok(Frame::data(Bytes::from(frame(b"first"))))]);
        let broken = stream::iter([Err(Status::internal("it crashed"))]);
        let body = Body::new(StreamBody::new(first.chain(broken)));
        call.answer.send(Response::new(body)).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.code(), Code::Unavailable, "{method}: {:?}", answer.status());
    }
}

#[tokio::test]
async fn a_pull_with_too_long_a_message_is_refused() {
    let world = World::new().await;
    let _containerd = world.start();
    let long = frame(&vec![0; MESSAGE_BYTES]);
    let refused = world.call(request("PullImage", long)).await.unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn pulls_that_hang_leave_room_for_other_calls() {
    let mut world = World::new().await;
    let _containerd = world.start();
    let mut hanging = Vec::new();
    for _ in 0..PULLS {
        let answer = world.call(request("PullImage", pull_message(APP, ALICE)));
        hanging.push((answer, world.next().await));
    }
    let refused = world.call(request("PullImage", pull_message(APP, ALICE))).await.unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let answer = world.call(request("ListImages", frame(b"")));
    world.next().await.answer.send(parts(vec![frame(b"")])).unwrap();
    assert_eq!(answer.await.unwrap().code(), Code::Ok);
    let (answer, call) = hanging.pop().unwrap();
    call.answer.send(image_ref("config")).unwrap();
    assert_eq!(answer.await.unwrap().code(), Code::Ok);
    assert_eq!(world.pull(APP, ALICE, None, "config").await, Code::Ok, "one has ended");
}

#[tokio::test]
async fn credentials_of_a_pull_are_there_when_containerd_asks_for_its_layers_and_are_those_of_its_image_only() {
    let mut world = World::new().await;
    let _containerd = world.start();
    const OTHER: &str = "registry.test/team/other:v1";
    const NEXT: &str = "registry.test/team/app:v2";
    assert_eq!(world.pull(APP, ALICE, Some("1"), "config 1").await, Code::Ok);
    assert_eq!(world.pull(OTHER, BOB, Some("2"), "config 2").await, Code::Ok);
    assert_eq!(world.pull(NEXT, NONE, Some("3"), "config 3").await, Code::Ok);
    let [alice, bob] = [ALICE, BOB].map(|(user, password)| credentials(user, password));
    let expected =
        [(pinned(APP, "1"), vec![alice.clone()]), (pinned(OTHER, "2"), vec![bob.clone()]), (pinned(NEXT, "3"), vec![])];
    assert_eq!(*world.images.prepared.lock(), expected);
    assert_eq!((world.kept(APP, "1"), world.kept(OTHER, "2"), world.kept(NEXT, "3")), (Some(alice), Some(bob), None));
    assert_eq!((world.kept(OTHER, "1"), world.kept(APP, "2"), world.kept(APP, "3")), (None, None, None));
    let mut grep = std::process::Command::new("grep");
    let found = grep.args(["-rE", "alice|bob|sesame|hunter"]).arg(world.folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "no file has them");
}

#[tokio::test]
async fn a_pull_that_fails_leaves_no_credentials() {
    let mut world = World::new().await;
    let _containerd = world.start();
    let answer = world.call(request("PullImage", pull_message(APP, ALICE)));
    let call = world.next().await;
    world.prepare(APP, "1").await;
    assert!(world.kept(APP, "1").is_some(), "while it is pulled");
    call.answer.send(Status::unknown("401 Unauthorized").into_http()).unwrap();
    assert_eq!(answer.await.unwrap().code(), Code::Unknown);
    assert_eq!(world.kept(APP, "1"), None);
}

#[tokio::test]
async fn a_later_pull_renews_the_credentials_of_the_same_image_by_any_of_its_tags_and_of_no_other() {
    let mut world = World::new().await;
    let _containerd = world.start();
    let config = |text: &str| Digest::of(text.as_bytes());
    let known = [(pinned(APP, "1"), config("config 1")), (pinned(APP, "2"), config("config 2"))];
    world.images.configs.lock().extend(known);
    assert_eq!(world.pull(APP, ALICE, Some("1"), "config 1").await, Code::Ok);
    // The tag moves.
    assert_eq!(world.pull(APP, BOB, Some("2"), "config 2").await, Code::Ok);
    let [alice, bob] = [ALICE, BOB].map(|(user, password)| credentials(user, password));
    assert_eq!((world.kept(APP, "1"), world.kept(APP, "2")), (Some(alice), Some(bob.clone())));
    world.images.renewed.lock().clear();
    // Containerd has the layers, and asks for none.
    assert_eq!(world.pull("registry.test/team/app:other", BOB, None, "config 1").await, Code::Ok);
    assert_eq!(world.kept(APP, "1"), Some(bob));
    assert_eq!(*world.images.renewed.lock(), [pinned(APP, "1")]);
    // Another repository has an image with the same config.
    assert_eq!(world.pull("registry.test/team/copy:v1", ("mallory", "x"), None, "config 2").await, Code::Ok);
    assert_ne!(world.kept(APP, "2"), Some(credentials("mallory", "x")));
    // Without credentials nothing changes.
    assert_eq!(world.pull(APP, NONE, None, "config 2").await, Code::Ok);
    assert!(world.kept(APP, "2").is_some());
}

#[tokio::test]
async fn no_credentials_are_kept_for_what_containerd_has_unpacked() {
    let mut world = World::new().await;
    let _containerd = world.start();
    *world.images.is_unavailable.lock() = true;
    assert_eq!(world.pull(APP, ALICE, Some("1"), "config 1").await, Code::Ok);
    assert_eq!(world.images.prepared.lock().len(), 1);
    assert_eq!(world.kept(APP, "1"), None);
}

#[tokio::test]
async fn credentials_are_forgotten_with_the_image() {
    let mut world = World::new().await;
    let _containerd = world.start();
    assert_eq!(world.pull(APP, ALICE, Some("1"), "config 1").await, Code::Ok);
    assert!(world.kept(APP, "1").is_some());
    let layer = Digest::of(format!("{APP} 1").as_bytes()).to_string();
    world.snapshots.remove(&layer).await.unwrap();
    assert_eq!(world.kept(APP, "1"), None);
}

#[tokio::test]
async fn a_snapshotter_without_the_proxy_names_its_option() {
    let mut world = World::new().await;
    let address = world.folder.path().join("plain");
    World::serve(&address, Services { snapshots: Rpc(world.snapshots.clone()), images: None });
    world.client = Arc::new(Upstream::new(address));
    let refused = world.call(request("ListImages", frame(b""))).await.unwrap().status();
    assert_eq!((refused.code(), refused.message().contains("--cri-proxy")), (Code::Unimplemented, true));
}
