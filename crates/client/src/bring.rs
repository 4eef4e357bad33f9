//! A running server fetches what the start of an image needs.
//!
//! It shares what it fetches with the mounts of the server, and gives way to their readers. Without a server, the caller fetches by itself.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use tokio::sync::watch;

use crate::client::{Client, Health, is_end, unexpected};
use crate::protocol::{ANSWER_BYTES, BroughtStart, Request, Response, StartRequest};
use crate::wire::{self, Messages};
use crate::{ErrorKind, Result, ResultExt};

const STEP: &str = "have the server fetch what a start needs";

/// The connection to a server that fetches.
struct Bringing {
    client: Client,
    request: Request,
    stream: UnixStream,
}

/// Makes the server stop when it is dropped.
struct Stop(UnixStream);

impl Drop for Stop {
    fn drop(&mut self) {
        // It may be closed already.
        let _closed = self.0.shutdown(Shutdown::Both);
    }
}

impl Client {
    /// Has the running server fetch what the start of an image needs. `progress` gets the bytes requested, of those that were missing.
    /// Dropping the future makes the server stop. `None`: no server runs, or it ended meanwhile, or is of a version that cannot do this.
    ///
    /// # Errors
    /// The server cannot fetch, or does not answer.
    pub async fn bring_start(
        &self,
        request: StartRequest,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<Option<BroughtStart>> {
        let client = self.clone();
        let connected = tokio::task::spawn_blocking(move || client.connect());
        let Some(stream) = connected.await.context(ErrorKind::Other, STEP)?? else { return Ok(None) };
        let _stop = Stop(stream.try_clone().context(ErrorKind::Store, STEP)?);
        let request = Request::BringStart(Box::new(request));
        let bringing = Bringing { client: self.clone(), request, stream };
        let (reported, mut seen) = watch::channel((0, 0));
        let waiting = tokio::task::spawn_blocking(move || {
            bringing.wait(&|requested, missing| {
                reported.send_replace((requested, missing));
            })
        });
        while seen.changed().await.is_ok() {
            let (requested, missing) = *seen.borrow_and_update();
            progress(requested, missing);
        }
        waiting.await.context(ErrorKind::Other, STEP)?
    }
}

impl Bringing {
    /// Waits for the server. Blocks.
    fn wait(self, progress: &dyn Fn(u64, u64)) -> Result<Option<BroughtStart>> {
        let mut health = Health::of(&self.stream);
        let patience = self.request.patience();
        let mut receive = || -> std::io::Result<Option<Response>> {
            wire::send(&self.stream, &self.request)?;
            let mut messages = Messages::new(&self.stream, ANSWER_BYTES)?;
            loop {
                match messages.next_within(patience, || health.check())? {
                    Some(Response::Bringing { requested, missing }) => progress(requested, missing),
                    other => return Ok(other),
                }
            }
        };
        match receive() {
            Ok(Some(Response::Brought(brought))) => Ok(Some(brought)),
            Ok(Some(Response::Failed(error))) => Err(error),
            Ok(Some(other)) => Err(unexpected(other)),
            Ok(None) => Ok(None),
            Err(error) if is_end(&error) => Ok(None),
            Err(error) => Err(self.client.unanswered(&error, health.stopped, patience)),
        }
    }
}
