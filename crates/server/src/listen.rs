//! The listening side of the server's socket.

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tarpon_blob::LogLimit;
use tarpon_client::protocol::{LINE_BYTES, Request, Response, StartRequest};
use tarpon_client::wire;
use tokio::sync::Semaphore;

use super::answer::answer;
use super::bring;
use super::mount_table::MountTable;

/// Maximum number of clients served concurrently. More wait in the socket's queue.
const CLIENTS: usize = 32;

/// How long to wait after a failed accept. Most likely another client must finish first.
const BACKOFF: Duration = Duration::from_millis(100);

/// A reserve descriptor for the case that no other is left. With it, clients are still served one at a time, and one of them may unmount
/// something.
struct Spare(Option<File>);

impl Spare {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Opens a new one after the last was given up.
    fn refill(&mut self) {
        if self.0.is_none() {
            *self = Self::new();
        }
    }

    /// Gives it up if the error is a lack of descriptors. Returns whether it did.
    fn give_up_for(&mut self, error: &io::Error) -> bool {
        let is_want = matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE));
        is_want && self.0.take().is_some()
    }
}

/// Accepts clients until aborted.
pub(super) fn listen(listener: UnixListener, mounts: Arc<MountTable>) -> io::Result<tokio::task::JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CLIENTS));
    Ok(tokio::spawn(async move {
        let (mut spare, log) = (Spare::new(), LogLimit::new());
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await.and_then(|(stream, _)| blocking(stream)) {
                Ok(stream) => {
                    spare.refill();
                    // Before the task runs: from here on the server does not end before the client has its response. A client that is not
                    // admitted sees the connection closed, and connects to the next server.
                    let Some(client) = mounts.enter() else { continue };
                    let mounts = mounts.clone();
                    tokio::spawn(async move {
                        let held = serve(stream, mounts.clone()).await;
                        drop(place);
                        match held {
                            Some(Lasting::Held(stream)) => {
                                let _holder = client.hold();
                                ended(stream).await;
                            }
                            Some(Lasting::Bringing(stream, request)) => {
                                let _holder = client.hold();
                                bring::serve(stream, mounts, *request).await;
                            }
                            None => drop(client),
                        }
                    });
                }
                Err(error) => {
                    if let Some(left_out) = log.admit() {
                        tracing::warn!(%error, "a client was not accepted{left_out}");
                    }
                    if !spare.give_up_for(&error) {
                        tokio::time::sleep(BACKOFF).await;
                    }
                }
            }
        }
    }))
}

fn blocking(stream: tokio::net::UnixStream) -> io::Result<UnixStream> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A client that the server must keep running for.
enum Lasting {
    /// As long as the connection is open.
    Held(UnixStream),
    /// As long as this takes.
    Bringing(UnixStream, Box<StartRequest>),
}

/// Serves one request of one client. Returns the client if more is to be done for it.
async fn serve(stream: UnixStream, mounts: Arc<MountTable>) -> Option<Lasting> {
    let received = tokio::task::spawn_blocking(move || {
        let request = wire::receive::<Request>(&stream, LINE_BYTES);
        (stream, request)
    })
    .await;
    let (stream, request) = match received {
        Ok((stream, Ok(Some(request)))) => (stream, request),
        Ok((_, Ok(None))) => return None,
        Ok((_, Err(error))) => {
            static ODD: LogLimit = LogLimit::new();
            if let Some(left_out) = ODD.admit() {
                tracing::warn!(%error, "a client's request was not understood{left_out}");
            }
            return None;
        }
        Err(error) => {
            tracing::warn!(%error, "a client was not served");
            return None;
        }
    };
    if wire::is_closed(&stream) {
        tracing::debug!("a client gave up before its request was carried out");
        return None;
    }
    let holds = matches!(request, Request::Hold | Request::Upgrade);
    let request = match request {
        Request::BringStart(request) => return Some(Lasting::Bringing(stream, request)),
        // As this process sees its number, in its namespace.
        Request::HandOver { .. } => Request::HandOver { successor: successor(&stream) },
        other => other,
    };
    let response = answer(&mounts, request).await;
    let is_upgrading = matches!(response, Response::Upgrading);
    let sent = tokio::task::spawn_blocking(move || wire::send(&stream, &response).map(|()| stream)).await;
    match sent {
        Ok(Ok(stream)) => {
            if is_upgrading {
                // Not before: the client of a server that ends without an answer would start another one.
                mounts.succession.request();
            }
            holds.then_some(Lasting::Held(stream))
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client did not wait for its answer");
            None
        }
        Err(_) => None,
    }
}

fn successor(stream: &UnixStream) -> Option<u32> {
    wire::peer(stream).and_then(|peer| u32::try_from(peer.as_raw_nonzero().get()).ok())
}

/// Returns when the client has closed the connection, or sent unexpected data.
async fn ended(stream: UnixStream) {
    let stream = stream.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(stream));
    if let Ok(stream) = stream {
        let _end = stream.readable().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_descriptor_is_given_up_once_and_for_want_of_descriptors_alone() {
        let mut spare = Spare::new();
        assert!(!spare.give_up_for(&io::ErrorKind::ConnectionAborted.into()));
        let want = || io::Error::from(Errno::MFILE);
        assert!(spare.give_up_for(&want()));
        assert!(!spare.give_up_for(&want()), "then one waits");
        spare.refill();
        assert!(spare.give_up_for(&Errno::NFILE.into()));
    }
}
