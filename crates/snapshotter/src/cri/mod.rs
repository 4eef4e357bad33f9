//! [`CriProxy`]: containerd's CRI image service, seen through the snapshotter.
//!
//! ```text
//! kubelet ──ImageService──► CriProxy ──the same bytes──► containerd
//!                              └── PullImage only: the credentials, until the pull succeeds ──► PullCredentials
//! ```
//!
//! Calls are passed on as HTTP, so methods and fields that are not known here pass unchanged, and no message is held in memory: only
//! that of a pull is read.

mod auth;
mod messages;
mod passing;
#[cfg(test)]
mod tests;
mod upstream;

use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use prost::Message as _;
use tarpon_oci::{Digest, Reference};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use self::auth::Unusable;
pub(crate) use self::messages::SERVICE;
use self::messages::{PullImageRequest, PullImageResponse};
use self::passing::{Deadline, WholeBody};
use self::upstream::Upstream;
use crate::pull_credentials::{PullCredentials, PullInProgress, name_of};
use crate::snapshots::Snapshots;

/// Calls in progress at once. The kubelet has a few.
const CALLS: usize = 128;

/// Pulls in progress at once: fewer than calls of one connection, so that pulls that hang leave room for other calls.
pub(crate) const PULLS: usize = 48;

/// How long containerd may take for a call, or for the next part of its answer, if the client states no limit. The kubelet states two
/// minutes.
const CALL: Duration = Duration::from_secs(10 * 60);

/// How long a pull may take if the client states no limit, as the kubelet does. Containerd ends pulls without progress itself, after
/// five minutes by default; this bounds one that it has lost.
const PULL: Duration = Duration::from_secs(6 * 60 * 60);

/// How long a client may take to send the message of a pull.
const MESSAGE: Duration = Duration::from_secs(30);

/// Longest message of a pull: the default limit of gRPC. It has the annotations of the pod, which Kubernetes limits to 256 KiB.
const MESSAGE_BYTES: usize = 4 << 20;

/// Longest answer to a pull, which is the name of the image.
const ANSWER_BYTES: usize = 1 << 20;

/// How long an answer to a pull waits for the store's server to get new credentials of an image that is mounted already.
const RENEWAL: Duration = Duration::from_secs(10);

/// The proxy. Clones share everything.
#[derive(Clone)]
pub(crate) struct CriProxy(Arc<Shared>);

struct Shared {
    upstream: Upstream,
    credentials: Arc<PullCredentials>,
    snapshots: Arc<Snapshots>,
    calls: Arc<Semaphore>,
    pulls: Arc<Semaphore>,
}

impl CriProxy {
    /// A proxy of containerd's socket, which need not exist yet.
    pub(crate) fn new(upstream: PathBuf, credentials: Arc<PullCredentials>, snapshots: Arc<Snapshots>) -> Self {
        let (calls, pulls) = (Arc::new(Semaphore::new(CALLS)), Arc::new(Semaphore::new(PULLS)));
        Self(Arc::new(Shared { upstream: Upstream::new(upstream), credentials, snapshots, calls, pulls }))
    }

    /// Answers a call.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let is_pull = request.uri().path().strip_prefix(SERVICE) == Some("PullImage");
        let answer = if is_pull { self.0.pull(request).await } else { self.0.pass(request).await };
        answer.unwrap_or_else(Status::into_http)
    }
}

impl Shared {
    async fn pass(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let permit = permit(&self.calls, "calls")?;
        let deadline = Deadline::of(&request);
        let answer = deadline.within(CALL, self.upstream.send(request)).await??;
        Ok(passing::streamed(answer, deadline, CALL, permit))
    }

    async fn pull(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let _permit = permit(&self.pulls, "pulls")?;
        let deadline = Deadline::of(&request);
        let (head, body) = request.into_parts();
        let message = deadline.within(MESSAGE, passing::whole(body, MESSAGE_BYTES)).await??;
        // Before containerd gets the call: it asks for snapshots while it pulls.
        let pull = self.begin(&message.bytes);
        let request = Request::from_parts(head, message.into());
        let answer = deadline.within(PULL, self.upstream.send(request)).await??;
        let (head, body) = answer.into_parts();
        let answer = deadline.within(CALL, passing::whole(body, ANSWER_BYTES)).await??;
        if let Some(pull) = pull.filter(|_| has_succeeded(&head.headers, &answer)) {
            self.succeeded(pull, &answer).await;
        }
        Ok(Response::from_parts(head, answer.into()))
    }

    /// Reads the credentials of a pull, if it has any.
    fn begin(&self, body: &[u8]) -> Option<PullInProgress> {
        // What cannot be read here, containerd refuses.
        let request = PullImageRequest::decode(passing::message(body)?).ok()?;
        let auth = request.auth.as_ref()?;
        let name: Reference = request.image.as_ref()?.image.parse().ok()?;
        match auth::credentials(auth, &name) {
            Ok(None) => None,
            Ok(Some(credentials)) => Some(self.credentials.begin(name_of(name), credentials)),
            Err(why) => {
                log(&name, why);
                None
            }
        }
    }

    /// Keeps the credentials of a pull that containerd has finished, and renews those of mounts of the image.
    async fn succeeded(&self, pull: PullInProgress, answer: &WholeBody) {
        let read = passing::message(&answer.bytes).and_then(|message| PullImageResponse::decode(message).ok());
        let config: Option<Digest> = read.and_then(|answer| answer.image_ref.parse().ok());
        let (snapshots, name) = (self.snapshots.clone(), pull.name().clone());
        // It goes on if the client stops waiting.
        let renewed = tokio::spawn(async move { snapshots.pulled(pull, config).await });
        if tokio::time::timeout(RENEWAL, renewed).await.is_err() {
            tracing::warn!(image = %name, "mounts of the image get its new credentials later: the store's server is slow");
        }
    }
}

fn permit(all: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Status> {
    all.clone().try_acquire_owned().map_err(|_| Status::resource_exhausted(format!("too many {what} are in progress")))
}

/// Whether the status of an answer is OK. It is in the trailers, or in the head of an answer without a message.
fn has_succeeded(head: &HeaderMap, answer: &WholeBody) -> bool {
    let status = answer.trailers.as_ref().and_then(|trailers| trailers.get(Status::GRPC_STATUS));
    status.or_else(|| head.get(Status::GRPC_STATUS)).is_some_and(|status| status == "0")
}

/// Writes the first case of each kind to the log.
fn log(name: &Reference, why: Unusable) {
    static TOKENS: Once = Once::new();
    static OTHERS: Once = Once::new();
    let kind = if why == Unusable::RegistryToken { &TOKENS } else { &OTHERS };
    kind.call_once(|| tracing::warn!(image = %name, "credentials of a pull are not used: {why}"));
}
