//! The gRPC service: the path names the method, each method takes a message and returns one.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use prost::Message;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::error::Result;
use crate::messages::{
    CleanupRequest, Empty, InfoResponse, KeyRequest, ListRequest, ListResponse, MountsResponse, SERVICE, UsageResponse,
};
use crate::record::Kind;
use crate::snapshots::Snapshots;

/// Snapshots per message of a list; a message may have 4 MiB.
const LISTED: usize = 100;

/// Answers the methods of the service.
#[derive(Clone)]
pub(crate) struct Rpc(pub(crate) Arc<Snapshots>);

impl Rpc {
    /// Answers a call.
    pub(crate) async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        answer(self.0.clone(), request).await
    }
}

async fn answer(snapshots: Arc<Snapshots>, request: http::Request<Body>) -> http::Response<Body> {
    let method = request.uri().path().strip_prefix(SERVICE).unwrap_or_default().to_owned();
    let reply = |mounts| MountsResponse { mounts };
    match method.as_str() {
        "Prepare" => unary(request, async move |asked| snapshots.create(Kind::Active, asked).await.map(reply)).await,
        "View" => unary(request, async move |asked| snapshots.create(Kind::View, asked).await.map(reply)).await,
        "Mounts" => unary(request, async move |asked: KeyRequest| snapshots.mounts(&asked.key).await.map(reply)).await,
        "Commit" => unary(request, async move |asked| snapshots.commit(asked).await.map(|()| Empty {})).await,
        "Remove" => {
            unary(request, async move |asked: KeyRequest| snapshots.remove(&asked.key).await.map(|()| Empty {})).await
        }
        "Stat" => {
            let reply = |info| InfoResponse { info: Some(info) };
            unary(request, async move |asked: KeyRequest| snapshots.stat(&asked.key).map(reply)).await
        }
        "Update" => {
            let reply = |info| InfoResponse { info: Some(info) };
            unary(request, async move |asked| snapshots.update(asked).await.map(reply)).await
        }
        "Usage" => {
            let reply =
                |used: crate::record::Usage| UsageResponse { size: signed(used.size), inodes: signed(used.inodes) };
            unary(request, async move |asked: KeyRequest| snapshots.usage(&asked.key).await.map(reply)).await
        }
        "Cleanup" => unary(request, async move |_: CleanupRequest| snapshots.clean_up().await.map(|()| Empty {})).await,
        "List" => Grpc::new(ProstCodec::default()).server_streaming(List(snapshots), request).await,
        _ => Status::unimplemented(format!("{} is not known here", request.uri().path())).into_http(),
    }
}

/// Answers one message with one message.
async fn unary<M, R, F, D>(request: http::Request<Body>, method: F) -> http::Response<Body>
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
    F: FnOnce(M) -> D + Send + 'static,
    D: Future<Output = Result<R>> + Send + 'static,
{
    Grpc::new(ProstCodec::default()).unary(Unary(Some(method)), request).await
}

/// A method that is called once.
struct Unary<F>(Option<F>);

impl<M, R, F, D> UnaryService<M> for Unary<F>
where
    R: Send + 'static,
    F: FnOnce(M) -> D,
    D: Future<Output = Result<R>> + Send + 'static,
{
    type Response = R;
    type Future = BoxFuture<'static, std::result::Result<Response<R>, Status>>;

    fn call(&mut self, request: Request<M>) -> Self::Future {
        match self.0.take() {
            // The method runs to its end even if the client disconnects: otherwise a snapshot could stay half-created.
            Some(method) => tokio::spawn(method(request.into_inner()))
                .map(|done| match done {
                    Ok(done) => Ok(Response::new(done?)),
                    Err(broken) => Err(Status::internal(broken.to_string())),
                })
                .boxed(),
            None => async { Err(Status::internal("called twice")) }.boxed(),
        }
    }
}

/// The list of snapshots, in several messages.
struct List(Arc<Snapshots>);

impl ServerStreamingService<ListRequest> for List {
    type Response = ListResponse;
    type ResponseStream = BoxStream<'static, std::result::Result<ListResponse, Status>>;
    type Future = std::future::Ready<std::result::Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<ListRequest>) -> Self::Future {
        let listed = self.0.list(&request.into_inner().filters).map_err(Status::from);
        std::future::ready(listed.map(|all| {
            let pieces: Vec<_> = all.chunks(LISTED).map(|piece| Ok(ListResponse { info: piece.to_vec() })).collect();
            Response::new(stream::iter(pieces).boxed())
        }))
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
