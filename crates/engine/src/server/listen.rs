//! The listening side of the server's socket.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::mounts::Mounts;
use super::wire;
use crate::protocol::Request;

/// Clients that are served at the same time; more wait in the socket's queue.
const CLIENTS: usize = 32;

/// Accepts clients until aborted.
pub(super) fn listen(listener: UnixListener, mounts: Arc<Mounts>) -> io::Result<tokio::task::JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CLIENTS));
    Ok(tokio::spawn(async move {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await.and_then(|(stream, _)| blocking(stream)) {
                Ok(stream) => {
                    // Before the task runs: from here on the server does not end before the client has its answer. One
                    // that is not let in sees the end of the connection, and asks the next server.
                    let Some(client) = mounts.enter() else { continue };
                    let mounts = mounts.clone();
                    tokio::spawn(async move {
                        let _until_answered = (place, client);
                        serve(stream, mounts).await;
                    });
                }
                Err(error) => tracing::warn!(%error, "a client was not accepted"),
            }
        }
    }))
}

fn blocking(stream: tokio::net::UnixStream) -> io::Result<UnixStream> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// One client, one request.
async fn serve(stream: UnixStream, mounts: Arc<Mounts>) {
    let received = tokio::task::spawn_blocking(move || {
        let request = wire::receive::<Request>(&stream);
        (stream, request)
    })
    .await;
    let (stream, request) = match received {
        Ok((stream, Ok(Some(request)))) => (stream, request),
        Ok((_, Ok(None))) => return,
        Ok((_, Err(error))) => return tracing::warn!(%error, "a client's request was not understood"),
        Err(error) => return tracing::warn!(%error, "a client was not served"),
    };
    let response = super::answer(&mounts, request).await;
    let sent = tokio::task::spawn_blocking(move || wire::send(&stream, &response)).await;
    if let Ok(Err(error)) = sent {
        tracing::debug!(%error, "a client did not wait for its answer");
    }
}
