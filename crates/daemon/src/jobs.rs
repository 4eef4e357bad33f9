//! Work that continues after its request was answered: images that are pulled, starts that are recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tarpon_engine::oci::Digest;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::failure::Failure;
use crate::flag;

/// Jobs that are kept, including finished ones. A trace has at most a few megabytes.
const JOBS: usize = 64;

/// A job.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Job {
    /// ID of the job.
    pub(crate) id: String,
    /// The kind of the job.
    pub(crate) kind: JobKind,
    /// The image, as named in the request.
    pub(crate) image: String,
    /// Its state.
    pub(crate) state: JobState,
    /// Start time, in seconds since 1970.
    pub(crate) began: u64,
    /// End time, in seconds since 1970.
    pub(crate) ended: Option<u64>,
    /// The failure, if it failed.
    pub(crate) failure: Option<Failure>,
    /// Its result, if it is done.
    pub(crate) outcome: Option<JobOutcome>,
}

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum JobKind {
    /// Fetches an image before it is used.
    Prefetch,
    /// Records the accesses of a start of an image.
    Recording,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum JobState {
    /// It runs, or waits in a queue.
    Running,
    /// It has succeeded.
    Done,
    /// It has failed.
    Failed,
}

impl JobState {
    /// Its name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// Result of a job.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct JobOutcome {
    /// Digest of the image's manifest.
    pub(crate) manifest: String,
    /// Of a prefetch: bytes fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fetched_bytes: Option<u64>,
    /// Of a prefetch of what a start needs: how that is known: `boot-pack`, `learned-trace`, `landmarks`, or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<&'static str>,
    /// Of the same: its encoded bytes, whether they were in the store or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_bytes: Option<u64>,
    /// Of a recording: number of accessed contents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) touches: Option<usize>,
    /// Of a recording: the exit code, if the container exited by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
}

impl JobOutcome {
    /// Of an image with this manifest.
    pub(crate) fn of(manifest: &Digest) -> Self {
        Self {
            manifest: manifest.to_string(),
            fetched_bytes: None,
            content: None,
            content_bytes: None,
            touches: None,
            exit_code: None,
        }
    }
}

/// All jobs.
#[derive(Default)]
pub(crate) struct Jobs {
    state: Mutex<JobList>,
}

#[derive(Default)]
struct JobList {
    next: u64,
    jobs: BTreeMap<u64, Arc<JobEntry>>,
}

/// A job and the means to end it.
pub(crate) struct JobEntry {
    number: u64,
    job: watch::Sender<Job>,
    cancelled: watch::Sender<bool>,
    /// Set when a recording is to end.
    pub(crate) enough: Arc<AtomicBool>,
    trace: Mutex<Option<Bytes>>,
}

impl Jobs {
    /// Adds a job. If the list is full, the oldest finished one is removed.
    pub(crate) fn begin(&self, kind: JobKind, image: String) -> Result<Arc<JobEntry>, Failure> {
        let mut state = self.state.lock();
        if state.jobs.len() >= JOBS {
            let ended = state.jobs.iter().find(|(_, entry)| !entry.is_running()).map(|(number, _)| *number);
            let ended = ended.ok_or_else(|| Failure::busy(&format!("{JOBS} jobs are running already")))?;
            state.jobs.remove(&ended);
        }
        state.next += 1;
        let number = state.next;
        let job = Job {
            id: format!("{number}"),
            kind,
            image,
            state: JobState::Running,
            began: now(),
            ended: None,
            failure: None,
            outcome: None,
        };
        let entry = Arc::new(JobEntry {
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

    pub(crate) fn find(&self, id: &str) -> Result<Arc<JobEntry>, Failure> {
        let found = id.parse().ok().and_then(|number: u64| self.state.lock().jobs.get(&number).cloned());
        found.ok_or_else(|| Failure::not_found("find the job", format!("there is no job {id}")))
    }

    /// Cancels the job if it runs, and removes it from the list.
    pub(crate) fn forget(&self, entry: &JobEntry) {
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

impl JobEntry {
    pub(crate) fn job(&self) -> Job {
        self.job.borrow().clone()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.job.borrow().state == JobState::Running
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
        let _ended = job.wait_for(|job| job.state != JobState::Running).await;
    }

    /// Marks the job as ended.
    pub(crate) fn end(&self, outcome: Result<JobOutcome, Failure>) -> JobState {
        let state = if outcome.is_ok() { JobState::Done } else { JobState::Failed };
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

/// The time in seconds since 1970.
fn now() -> u64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> JobOutcome {
        JobOutcome { fetched_bytes: Some(7), ..JobOutcome::of(&Digest::of(b"manifest")) }
    }

    #[tokio::test]
    async fn a_job_ends_with_its_outcome() {
        let jobs = Jobs::default();
        let entry = jobs.begin(JobKind::Prefetch, "app".to_owned()).unwrap();
        assert_eq!(entry.job().state, JobState::Running);
        entry.end(Ok(outcome()));
        entry.ended().await;
        let job = jobs.find(&entry.job().id).unwrap().job();
        assert_eq!((job.state, job.outcome.unwrap().fetched_bytes), (JobState::Done, Some(7)));
        jobs.forget(&entry);
        assert!(jobs.find(&job.id).is_err() && jobs.find("../1").is_err());
    }

    #[test]
    fn a_full_list_drops_the_oldest_job_that_has_ended_but_none_that_runs() {
        let jobs = Jobs::default();
        let entries: Vec<_> = (0..JOBS).map(|_| jobs.begin(JobKind::Prefetch, "app".to_owned()).unwrap()).collect();
        assert!(jobs.begin(JobKind::Prefetch, "app".to_owned()).is_err());
        entries[3].end(Ok(outcome()));
        let new = jobs.begin(JobKind::Recording, "app".to_owned()).unwrap();
        let ids: Vec<_> = jobs.list().into_iter().map(|job| job.id).collect();
        assert!(!ids.contains(&entries[3].job().id) && ids.contains(&new.job().id));
        assert_eq!(ids.len(), JOBS);
    }

    #[tokio::test]
    async fn all_jobs_are_cancelled_when_the_daemon_stops() {
        let jobs = Jobs::default();
        let entry = jobs.begin(JobKind::Prefetch, "app".to_owned()).unwrap();
        let work = async {
            entry.cancelled().await;
            entry.end(Err(Failure::busy("it was cancelled")));
        };
        futures::join!(work, jobs.cancel_all());
        assert_eq!(entry.job().state, JobState::Failed);
    }
}
