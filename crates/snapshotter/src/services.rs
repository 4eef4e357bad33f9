//! [`Services`]: all gRPC services of the socket. The path of a call names its service.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use crate::cri::{self, CriProxy};
use crate::rpc::Rpc;

/// All services of the socket.
#[derive(Clone)]
pub(crate) struct Services {
    /// Containerd's snapshots.
    pub(crate) snapshots: Rpc,
    /// The images of CRI, if they are served.
    pub(crate) images: Option<CriProxy>,
}

impl Service<http::Request<Body>> for Services {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        async move {
            Ok(match (request.uri().path().starts_with(cri::SERVICE), &this.images) {
                (false, _) => this.snapshots.answer(request).await,
                (true, Some(images)) => images.answer(request).await,
                (true, None) => Status::unimplemented("start the snapshotter with --cri-proxy").into_http(),
            })
        }
        .boxed()
    }
}
