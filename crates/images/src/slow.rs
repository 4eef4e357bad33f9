//! A slow network, for tests whose clock stands still but for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use tarpon_registry::transport::{Request, Response, Transport, TransportError};
use tarpon_registry::{CredentialSource, Repository, open_with};
use tarpon_testkit::registry::FakeRegistry;
use tarpon_testkit::transport::ScriptedTransport;
use tokio::time::sleep;

/// A network with one registry.
pub(crate) struct Slow {
    network: ScriptedTransport,
    /// Until the head of a response, by the path of its request.
    head: fn(&str) -> Duration,
    /// The bytes of a piece of a blob, and the time that it takes.
    piece: (usize, Duration),
}

impl Slow {
    /// The repository in this registry, with a delay of each response by its path.
    pub(crate) fn repository(registry: FakeRegistry, head: fn(&str) -> Duration) -> Repository {
        Self::repository_in_pieces(registry, head, (usize::MAX, Duration::ZERO))
    }

    /// The same, with blobs that come in pieces of so many bytes, each after this time.
    pub(crate) fn repository_in_pieces(
        registry: FakeRegistry,
        head: fn(&str) -> Duration,
        piece: (usize, Duration),
    ) -> Repository {
        let slow = Self { network: ScriptedTransport::new(Arc::new(registry)), head, piece };
        let name = "registry.test/app:v1".parse().unwrap();
        open_with(&name, Arc::new(slow), CredentialSource::default(), true).unwrap()
    }

    async fn respond(&self, request: Request) -> Result<Response, TransportError> {
        let path = request.url.path().to_owned();
        sleep((self.head)(&path)).await;
        let response = self.network.send(request).await?;
        if !path.contains("/blobs/") {
            return Ok(response);
        }
        let (bytes, time) = self.piece;
        let cut = move |piece: Bytes| piece.chunks(bytes).map(Bytes::copy_from_slice).map(Ok).collect::<Vec<_>>();
        let pieces =
            response.body.flat_map(move |piece| stream::iter(piece.map_or_else(|error| vec![Err(error)], cut)));
        let body = pieces.then(move |piece| async move {
            sleep(time).await;
            piece
        });
        Ok(Response { body: body.boxed(), ..response })
    }
}

impl Transport for Slow {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        self.respond(request).boxed()
    }
}
