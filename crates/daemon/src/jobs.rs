//! Work that continues after its request was answered: images that are pulled, starts that are recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::api::Failure;
use crate::feed::{Feed, What};
use crate::flag;

/// Jobs that are kept, including finished ones. A trace has at most a few megabytes.
const JOBS: usize = 64;

/// A job.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Job {
    /// What it is called.
    pub(crate) id: String,
    /// What it does.
    pub(crate) kind: Kind,
    /// With which image, as it was asked for.
    pub(crate) image: String,
    /// Where it stands.
    pub(crate) state: Standing,
    /// When it began, in seconds since 1970.
    pub(crate) began: u64,
    /// When it ended.
    pub(crate) ended: Option<u64>,
    /// Why it failed.
    pub(crate) failure: Option<Failure>,
    /// What came of it, if it is done.
    pub(crate) outcome: Option<Outcome>,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = JobKind)]
pub(crate) enum Kind {
    /// It brings an image whole.
    Prefetch,
    /// It notes what a start of an image touches.
    Recording,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = JobState)]
pub(crate) enum Standing {
    /// It goes on, or waits for its turn.
    Running,
    /// It has done what it should.
    Done,
    /// It has not, and ended.
    Failed,
}

impl Standing {
    /// Its name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// What came of a job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = JobOutcome)]
pub(crate) struct Outcome {
    /// Digest of the image's manifest.
    pub(crate) manifest: String,
    /// Of an image that was pulled: bytes that came over the wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fetched_bytes: Option<u64>,
    /// Of a recorded start: contents that were touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) touches: Option<usize>,
    /// Of a recorded start: the exit code, if the container ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
}

/// All jobs.
#[derive(Default)]
pub(crate) struct Jobs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    jobs: BTreeMap<u64, Arc<Entry>>,
}

/// A job and the means to end it.
pub(crate) struct Entry {
    number: u64,
    job: watch::Sender<Job>,
    cancelled: watch::Sender<bool>,
    /// Set when a recording is to end.
    pub(crate) enough: Arc<AtomicBool>,
    trace: Mutex<Option<Bytes>>,
}

impl Jobs {
    /// Adds a job. If the list is full, the oldest finished one is removed.
    pub(crate) fn begin(&self, kind: Kind, image: String) -> Result<Arc<Entry>, Failure> {
        let mut state = self.state.lock();
        if state.jobs.len() >= JOBS {
            let over = state.jobs.iter().find(|(_, entry)| !entry.is_running()).map(|(number, _)| *number);
            let over = over.ok_or_else(|| Failure::busy(&format!("{JOBS} jobs are running already")))?;
            state.jobs.remove(&over);
        }
        state.next += 1;
        let number = state.next;
        let job = Job {
            id: format!("{number}"),
            kind,
            image,
            state: Standing::Running,
            began: now(),
            ended: None,
            failure: None,
            outcome: None,
        };
        let entry = Arc::new(Entry {
            number,
            job: watch::Sender::new(job),
            cancelled: watch::Sender::new(false),
            enough: Arc::default(),
            trace: Mutex::default(),
        });
        state.jobs.insert(number, entry.clone());
        Ok(entry)
    }

    /// All jobs, oldest first.
    pub(crate) fn list(&self) -> Vec<Job> {
        self.state.lock().jobs.values().map(|entry| entry.job()).collect()
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<Entry>, Failure> {
        let found = id.parse().ok().and_then(|number: u64| self.state.lock().jobs.get(&number).cloned());
        found.ok_or_else(|| Failure::not_found("find the job", format!("there is no job {id}")))
    }

    /// Cancels the job if it runs, and removes it from the list.
    pub(crate) fn forget(&self, entry: &Entry) {
        entry.cancel();
        self.state.lock().jobs.remove(&entry.number);
    }

    /// Cancels all jobs and waits for them, when the daemon ends.
    pub(crate) async fn cancel_all(&self) {
        let entries: Vec<_> = self.state.lock().jobs.values().cloned().collect();
        entries.iter().for_each(|entry| entry.cancel());
        for entry in entries {
            entry.ended().await;
        }
    }
}

impl Entry {
    pub(crate) fn job(&self) -> Job {
        self.job.borrow().clone()
    }

    fn is_running(&self) -> bool {
        self.job.borrow().state == Standing::Running
    }

    fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Resolves when the job is cancelled.
    pub(crate) async fn cancelled(&self) {
        flag::set(&mut self.cancelled.subscribe()).await;
    }

    /// Ends a recording.
    pub(crate) fn stop(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Resolves when the job has ended.
    pub(crate) async fn ended(&self) {
        let mut job = self.job.subscribe();
        // The sender lives in `self`.
        let _ended = job.wait_for(|job| job.state != Standing::Running).await;
    }

    /// Marks the job as ended.
    pub(crate) fn end(&self, outcome: Result<Outcome, Failure>) -> Standing {
        let state = if outcome.is_ok() { Standing::Done } else { Standing::Failed };
        self.job.send_modify(|job| {
            (job.state, job.ended) = (state, Some(now()));
            match outcome {
                Ok(outcome) => job.outcome = Some(outcome),
                Err(failure) => job.failure = Some(failure),
            }
        });
        state
    }

    /// Keeps the trace of a recording.
    pub(crate) fn keep_trace(&self, trace: Vec<u8>) {
        *self.trace.lock() = Some(trace.into());
    }

    /// The trace of a recording, if there is one.
    pub(crate) fn trace(&self) -> Option<Bytes> {
        self.trace.lock().clone()
    }
}

/// A job in progress. Dropping it ends the job for any reason, so that no caller waits for a task that panicked.
pub(crate) struct UnderWay {
    feed: Arc<Feed>,
    entry: Arc<Entry>,
}

impl UnderWay {
    pub(crate) fn new(feed: Arc<Feed>, entry: Arc<Entry>) -> Self {
        Self { feed, entry }
    }

    /// Ends the job and sends the event.
    pub(crate) fn end(self, outcome: Result<Outcome, Failure>) {
        self.note(outcome);
    }

    fn note(&self, outcome: Result<Outcome, Failure>) {
        let state = self.entry.end(outcome);
        self.feed.tell(What::JobEnded { id: self.entry.job().id, state });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.entry.is_running() {
            self.note(Err(Failure::of_us("do what the job is for", "its task ended without a word; the log says why")));
        }
    }
}

/// The time in seconds since 1970.
fn now() -> u64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        Outcome { manifest: "sha256:…".to_owned(), fetched_bytes: Some(7), touches: None, exit_code: None }
    }

    #[tokio::test]
    async fn a_job_ends_once_and_says_how() {
        let jobs = Jobs::default();
        let entry = jobs.begin(Kind::Prefetch, "app".to_owned()).unwrap();
        assert_eq!(entry.job().state, Standing::Running);
        entry.end(Ok(outcome()));
        entry.ended().await;
        let job = jobs.find(&entry.job().id).unwrap().job();
        assert_eq!((job.state, job.outcome.unwrap().fetched_bytes), (Standing::Done, Some(7)));
        jobs.forget(&entry);
        assert!(jobs.find(&job.id).is_err() && jobs.find("../1").is_err());
    }

    #[test]
    fn the_oldest_that_is_over_makes_room_and_one_that_runs_does_not() {
        let jobs = Jobs::default();
        let entries: Vec<_> = (0..JOBS).map(|_| jobs.begin(Kind::Prefetch, "app".to_owned()).unwrap()).collect();
        assert!(jobs.begin(Kind::Prefetch, "app".to_owned()).is_err());
        entries[3].end(Ok(outcome()));
        let new = jobs.begin(Kind::Recording, "app".to_owned()).unwrap();
        let ids: Vec<_> = jobs.list().into_iter().map(|job| job.id).collect();
        assert!(!ids.contains(&entries[3].job().id) && ids.contains(&new.job().id));
        assert_eq!(ids.len(), JOBS);
    }

    #[tokio::test]
    async fn one_whose_task_panics_has_failed() {
        let jobs = Jobs::default();
        let entry = jobs.begin(Kind::Prefetch, "app".to_owned()).unwrap();
        let work = UnderWay::new(Arc::default(), entry.clone());
        let task = tokio::spawn(async move {
            let _work = work;
            panic!("on purpose");
        });
        assert!(task.await.is_err());
        assert_eq!(entry.job().state, Standing::Failed);
        let entry = jobs.begin(Kind::Prefetch, "app".to_owned()).unwrap();
        UnderWay::new(Arc::default(), entry.clone()).end(Ok(outcome()));
        assert_eq!(entry.job().state, Standing::Done);
    }

    #[tokio::test]
    async fn all_are_ended_with_the_daemon() {
        let jobs = Jobs::default();
        let entry = jobs.begin(Kind::Prefetch, "app".to_owned()).unwrap();
        let work = async {
            entry.cancelled().await;
            entry.end(Err(Failure::busy("it was cancelled")));
        };
        futures::join!(work, jobs.cancel_all());
        assert_eq!(entry.job().state, Standing::Failed);
    }
}
