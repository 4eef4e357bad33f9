//! What the worker asks its user.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_registry::Credentials;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, timeout};

use crate::frames::{self, Reader, Tag};
use crate::message::{Answer, Question};
use crate::supervise::ALIVE;

/// Questions that wait to be sent. There is one per repository and token.
const WAITING: usize = 64;
/// How long an answer may take: a credential helper has ten seconds.
const ANSWER: Duration = Duration::from_secs(12);

/// Open questions.
pub(super) struct Questions {
    next: AtomicU64,
    send: mpsc::Sender<Question>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    queue: Mutex<Option<mpsc::Receiver<Question>>>,
}

impl Questions {
    /// `confined` is sent before all questions.
    pub(super) fn new(confined: Question) -> Self {
        let (send, queue) = mpsc::channel(WAITING);
        // There is room for the first one.
        let _sent = send.try_send(confined);
        Self { next: AtomicU64::new(0), send, waiting: Mutex::default(), queue: Mutex::new(Some(queue)) }
    }

    /// Sends questions and signs of life, and receives answers, until the channel is closed.
    pub(super) async fn run(self: Arc<Self>, channel: UnixStream) {
        let Some(queue) = self.queue.lock().take() else { return };
        let (mut from, to) = channel.into_split();
        let sender = tokio::spawn(send(queue, to));
        let mut reader = Reader::default();
        while let Ok(Some(answer)) = reader.message::<Answer>(&mut from).await {
            let (Answer::Credentials { id, .. } | Answer::MayHave { id, .. }) = &answer;
            if let Some(waiting) = self.waiting.lock().remove(id) {
                // A request that was cancelled needs no answer.
                let _ = waiting.send(answer);
            }
        }
        sender.abort();
    }

    pub(super) async fn credentials(&self, image: u64, endpoint: usize) -> Option<Credentials> {
        let endpoint = u32::try_from(endpoint).ok()?;
        match self.ask(|id| Question::Credentials { id, image, endpoint }).await {
            Some(Answer::Credentials { pair: Some((user, password)), .. }) => {
                Some(Credentials::from_pair(&user, &password))
            }
            _ => None,
        }
    }

    pub(super) async fn may_have(&self, image: u64, endpoint: usize, host: &str) -> bool {
        let (Ok(endpoint), host) = (u32::try_from(endpoint), host.to_owned()) else { return false };
        let answer = self.ask(|id| Question::MayHave { id, image, endpoint, host }).await;
        matches!(answer, Some(Answer::MayHave { may: true, .. }))
    }

    async fn ask(&self, question: impl FnOnce(u64) -> Question) -> Option<Answer> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answered, answer) = oneshot::channel();
        self.waiting.lock().insert(id, answered);
        let _open = Open { questions: self, id };
        self.send.send(question(id)).await.ok()?;
        timeout(ANSWER, answer).await.ok()?.ok()
    }
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Questions")
    }
}

/// A question that waits for its answer. Dropped, it does not wait any more.
struct Open<'a> {
    questions: &'a Questions,
    id: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.questions.waiting.lock().remove(&self.id);
    }
}

async fn send(mut queue: mpsc::Receiver<Question>, mut to: tokio::net::unix::OwnedWriteHalf) {
    let mut alive = interval(ALIVE);
    loop {
        let question = tokio::select! {
            // The first question is to come before the first sign of life, which is due at once.
            biased;
            question = queue.recv() => match question {
                Some(question) => question,
                None => return,
            },
            _ = alive.tick() => Question::Alive,
        };
        if frames::send_message(&mut to, Tag::Message, &question).await.is_err() {
            return;
        }
    }
}
