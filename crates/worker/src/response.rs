//! One request for a blob, and its response: through as many workers as it takes.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use tarpon_blob::{BlobStream, Fault, SourceError};
use tokio::time::sleep;

use crate::blob_channel::{BlobChannel, Reply};
use crate::frames::invalid;
use crate::image_state::ImageState;
use crate::message::{BlobRequest, Failure, Totals};
use crate::process::Process;
use crate::slot::Tries;

/// A response that received so much gets its attempts back: one that makes no progress should end.
const PROGRESS_BYTES: usize = 64 << 10;

/// The response to a request. If its worker ends, the rest of the range is requested from the next one.
pub(crate) struct Response {
    image: Arc<ImageState>,
    /// Its range is what has not been received.
    request: BlobRequest,
    tries: Tries,
    /// Bytes received since the attempts were counted from the beginning.
    progress: usize,
    /// Between a head and the end.
    receiving: Option<Receiving>,
}

struct Receiving {
    process: Arc<Process>,
    channel: BlobChannel,
    /// Whether the last part were totals, behind which bytes follow.
    has_reported: bool,
}

/// What a part of a response means for the rest of its range.
pub(crate) enum Progress {
    /// What was transferred so far.
    Totals(Totals),
    /// The next bytes of the range.
    Bytes(Bytes),
    /// The range is complete.
    End(Totals),
    /// The source has failed.
    Failed(Failure),
}

impl Progress {
    /// Checks a part of a response, after its head, against the `left` bytes of the range that are to come.
    pub(crate) fn of(part: Reply, left: u64) -> io::Result<Self> {
        match part {
            Reply::Body(bytes) if bytes.len() as u64 <= left => Ok(Self::Bytes(bytes)),
            Reply::Totals(totals) if left > 0 => Ok(Self::Totals(totals)),
            Reply::End(totals) if left == 0 => Ok(Self::End(totals)),
            Reply::Failure(failure) => Ok(Self::Failed(failure)),
            _ => Err(invalid("bytes outside of the range")),
        }
    }
}

/// A failed attempt.
enum Failed {
    /// The source has failed: final.
    Source(SourceError),
    /// The worker has failed.
    Worker(Option<Arc<Process>>, io::Error),
}

impl Response {
    /// Sends the request, and waits for the head of its response.
    pub(crate) async fn request(image: Arc<ImageState>, request: BlobRequest) -> Result<BlobStream, SourceError> {
        let mut response = Self { image, request, tries: Tries::default(), progress: 0, receiving: None };
        response.begin().await?;
        Ok(stream::unfold(Some(response), |response| async {
            let mut response = response?;
            match response.next().await {
                Ok(bytes) => Some((Ok(bytes?), Some(response))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed())
    }

    async fn begin(&mut self) -> Result<(), SourceError> {
        loop {
            match self.attempt().await {
                Ok(receiving) => {
                    self.receiving = Some(receiving);
                    return Ok(());
                }
                Err(failed) => self.after(failed).await?,
            }
        }
    }

    async fn attempt(&self) -> Result<Receiving, Failed> {
        let process = self.image.slot.process().map_err(|error| Failed::Worker(None, error))?;
        let failed = |error| Failed::Worker(Some(process.clone()), error);
        let mut channel = process.blob_channel().map_err(failed)?;
        channel.send(&self.request).await.map_err(failed)?;
        self.image.requested();
        match channel.receive().await.map_err(failed)? {
            Reply::Head(totals) => {
                self.image.count(process.generation, totals);
                Ok(Receiving { process, channel, has_reported: false })
            }
            Reply::Failure(failure) => {
                self.image.count(process.generation, failure.totals.clone());
                process.keep_blob_channel(channel);
                Err(Failed::Source(failure.into_error()))
            }
            Reply::Totals(_) | Reply::Body(_) | Reply::End(_) => Err(failed(invalid("a response without a head"))),
        }
    }

    /// The next bytes; `None` at the end of the range.
    async fn next(&mut self) -> Result<Option<Bytes>, SourceError> {
        loop {
            let Some(mut receiving) = self.receiving.take() else {
                self.begin().await?;
                continue;
            };
            let failed = match self.receive(&mut receiving).await {
                Ok(Some(bytes)) => {
                    self.receiving = Some(receiving);
                    self.progress += bytes.len();
                    if self.progress >= PROGRESS_BYTES {
                        (self.progress, self.tries) = Default::default();
                    }
                    return Ok(Some(bytes));
                }
                Ok(None) => {
                    receiving.process.keep_blob_channel(receiving.channel);
                    return Ok(None);
                }
                // All bytes are here, and their end adds nothing.
                Err(_) if self.left() == 0 => return Ok(None),
                Err(failed) => failed,
            };
            self.after(failed).await?;
        }
    }

    /// The next bytes of a response; `None` at its end.
    async fn receive(&mut self, receiving: &mut Receiving) -> Result<Option<Bytes>, Failed> {
        let Receiving { process, channel, has_reported } = receiving;
        let failed = |error| Failed::Worker(Some(process.clone()), error);
        loop {
            let part = channel.receive().await.map_err(failed)?;
            match Progress::of(part, self.left()).map_err(failed)? {
                // A worker that only reports makes no progress.
                Progress::Totals(_) if *has_reported => return Err(failed(invalid("totals without bytes"))),
                Progress::Totals(totals) => {
                    *has_reported = true;
                    self.image.count(process.generation, totals);
                }
                Progress::Bytes(bytes) => {
                    *has_reported = false;
                    self.request.range.start += bytes.len() as u64;
                    self.image.received(bytes.len());
                    return Ok(Some(bytes));
                }
                Progress::End(totals) => {
                    self.image.count(process.generation, totals);
                    return Ok(None);
                }
                Progress::Failed(failure) => {
                    self.image.count(process.generation, failure.totals.clone());
                    return Err(Failed::Source(failure.into_error()));
                }
            }
        }
    }

    /// Pauses before the next attempt, if there is one.
    async fn after(&mut self, failed: Failed) -> Result<(), SourceError> {
        let (process, error) = match failed {
            Failed::Source(error) => return Err(error),
            Failed::Worker(process, error) => (process, error),
        };
        let pause = self.tries.failed(process.as_deref(), &error);
        sleep(pause.map_err(|problem| SourceError::new(Fault::Unavailable, problem))?).await;
        Ok(())
    }

    fn left(&self) -> u64 {
        self.request.range.end - self.request.range.start
    }
}
