//! The user's side of a worker's questions: looks up credentials, and ends a worker that shows no sign of life.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex as SharedMutex;
use tarpon_blob::LogLimit;
use tarpon_images::access::Settled;
use tarpon_oci::Reference;
use tarpon_registry::{CredentialSource, Endpoint};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::Mutex;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::frames::{self, Reader, Tag};
use crate::log;
use crate::message::{Answer, Control, Question, encode, one_line};
use crate::policy::Watched;
use crate::process::{Process, async_stream, is_gone};

/// A worker shows that it is alive this often.
pub(crate) const ALIVE: Duration = Duration::from_secs(2);
/// A worker without a sign of life for this long is ended. On a machine with a load of 60, signs came up to four seconds late.
const SILENCE: Duration = Duration::from_secs(12);
/// The limit of lines about workers that end.
static ENDS: LogLimit = LogLimit::new();

/// Questions that are answered at the same time. A worker asks one per repository and token.
const QUESTIONS: usize = 64;
/// Longest name of a host in a question.
const NAME_BYTES: usize = 1 << 10;

/// The hosts that serve an image, by their number, and the credentials for each. None for a layout or an archive.
#[derive(Debug, Clone)]
pub(crate) struct Credentials(Arc<[OfHost]>);

#[derive(Debug)]
struct OfHost {
    /// The name of the image there.
    name: Reference,
    source: CredentialSource,
}

impl Credentials {
    pub(crate) fn of(image: &Settled) -> Self {
        let of_host = |(number, endpoint): (usize, &Endpoint)| OfHost {
            name: endpoint.reference.clone(),
            source: image.credentials_at(number),
        };
        Self(image.endpoints.iter().enumerate().map(of_host).collect())
    }

    fn at(&self, endpoint: u32) -> Option<&OfHost> {
        self.0.get(usize::try_from(endpoint).ok()?)
    }

    async fn find(&self, endpoint: u32) -> Option<tarpon_registry::Credentials> {
        let OfHost { name, source } = self.at(endpoint)?;
        source.find(name.registry(), name.repository()).await
    }

    async fn may_have(&self, endpoint: u32, host: &str) -> bool {
        match self.at(endpoint) {
            Some(OfHost { name, source }) if host.len() <= NAME_BYTES => source.may_have(name.registry(), host).await,
            _ => false,
        }
    }
}

/// The images of a worker, by their number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Images(Arc<SharedMutex<HashMap<u64, Credentials>>>);

impl Images {
    /// One image.
    pub(crate) fn of(number: u64, credentials: Credentials) -> Self {
        let images = Self::default();
        images.add(number, credentials);
        images
    }

    pub(crate) fn add(&self, number: u64, credentials: Credentials) {
        self.0.lock().insert(number, credentials);
    }

    pub(crate) fn remove(&self, number: u64) {
        self.0.lock().remove(&number);
    }

    fn get(&self, number: u64) -> Option<Credentials> {
        self.0.lock().get(&number).cloned()
    }
}

/// Starts a task that answers the worker's questions until it ends. Runs on a thread of a runtime.
pub(crate) fn begin(process: &Arc<Process>, images: Images, watched: Watched) -> io::Result<()> {
    if let Some(log) = process.take_log() {
        log::copy(log);
    }
    let questions = match process.open(Control::Questions) {
        // It asks nothing.
        Err(error) if is_gone(&error) => return Ok(()),
        opened => async_stream(opened?)?,
    };
    tokio::spawn(run(images, Arc::downgrade(process), questions, watched));
    Ok(())
}

async fn run(images: Images, process: Weak<Process>, questions: UnixStream, mut watched: Watched) {
    let (mut from, to) = questions.into_split();
    let (to, turns) = (Arc::new(Mutex::new(to)), Arc::new(tokio::sync::Semaphore::new(QUESTIONS)));
    let mut reader = Reader::default();
    loop {
        let question = timeout(SILENCE, reader.message::<Question>(&mut from)).await;
        let Some(process) = process.upgrade() else { return };
        match question {
            Ok(Ok(Some(Question::Confined { how, .. }))) => tracing::debug!("a worker has {}", one_line(&how)),
            Ok(Ok(Some(Question::Alive))) => {
                if process.is_usable() && watched.has_changed() {
                    tracing::info!(
                        "files that a worker reads were replaced: another worker is started for further requests"
                    );
                    process.retire();
                }
            }
            Ok(Ok(Some(question))) => {
                let Ok(turn) = turns.clone().acquire_owned().await else { return };
                let (images, to) = (images.clone(), to.clone());
                tokio::spawn(async move {
                    answer(&images, &to, question).await;
                    drop(turn);
                });
            }
            Ok(Ok(None) | Err(_)) => {
                let ended = process.end();
                if let Some(left_out) = ENDS.admit() {
                    tracing::warn!("a worker process has ended: {}{left_out}", ended.how);
                }
                return;
            }
            Err(_elapsed) => {
                process.end();
                return tracing::warn!(
                    "a worker process showed no sign of life for {} s and was ended",
                    SILENCE.as_secs()
                );
            }
        }
    }
}

/// How the kernel confines a worker that was just started: in a line, and whether it limits paths.
pub(crate) async fn trial(process: &Process) -> io::Result<(String, bool)> {
    let mut questions = async_stream(process.open(Control::Questions)?)?;
    let mut reader = Reader::default();
    let question = timeout(SILENCE, reader.message::<Question>(&mut questions)).await;
    match question.map_err(io::Error::from)?? {
        Some(Question::Confined { how, limits_paths }) => Ok((one_line(&how), limits_paths)),
        Some(_) => Err(io::Error::other("the worker did not report how it is confined")),
        None => Err(io::Error::other(format!("the worker cannot be confined: {}", process.end().how))),
    }
}

async fn answer(images: &Images, to: &Mutex<OwnedWriteHalf>, question: Question) {
    let Some(answer) = answer_to(images, question).await else { return };
    let Ok(encoded) = encode(&answer).map(Zeroizing::new) else { return };
    // A worker that is gone needs no answer.
    let _sent = frames::send(&mut *to.lock().await, Tag::Message, &encoded).await;
}

/// The answer to a question, if it needs one.
pub(crate) async fn answer_to(images: &Images, question: Question) -> Option<Answer> {
    let credentials = |image| images.get(image);
    match question {
        Question::Alive | Question::Confined { .. } => None,
        Question::Credentials { id, image, endpoint } => {
            let pair = match credentials(image) {
                Some(known) => known.find(endpoint).await,
                None => None,
            };
            let pair = pair.as_ref().map(|found| found.pair());
            let secret = |text: &str| Zeroizing::new(text.to_owned());
            Some(Answer::Credentials { id, pair: pair.map(|(user, password)| (secret(user), secret(password))) })
        }
        Question::MayHave { id, image, endpoint, host } => {
            let may = match credentials(image) {
                Some(known) => known.may_have(endpoint, &host).await,
                None => false,
            };
            Some(Answer::MayHave { id, may })
        }
    }
}
