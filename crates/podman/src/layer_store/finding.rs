//! [`Finding`]: the running searches for images and their results.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tarpon_oci::Reference;
use tokio::sync::Semaphore;

/// Maximum number of concurrent searches. Each is a process.
const AT_A_TIME: usize = 4;
/// How long the result for an image name stays valid, because a pull looks up each layer.
const FRESH: Duration = Duration::from_secs(10);
/// Number of names whose last results are kept.
const REMEMBERED: usize = 64;

/// The running searches and their results.
pub(super) struct Finding {
    pub(super) under_way: Mutex<HashMap<Reference, Shared<BoxFuture<'static, ()>>>>,
    pub(super) turns: Arc<Semaphore>,
    /// The most recent last.
    outcomes: Mutex<VecDeque<Outcome>>,
}

struct Outcome {
    reference: Reference,
    at: Instant,
    /// Why Podman must pull the image, or some of it.
    problem: Option<String>,
}

impl Default for Finding {
    fn default() -> Self {
        Self { under_way: Mutex::default(), turns: Arc::new(Semaphore::new(AT_A_TIME)), outcomes: Mutex::default() }
    }
}

impl Finding {
    /// Why Podman recently had to pull images.
    pub(super) fn problems(&self) -> Vec<String> {
        let outcomes = self.outcomes.lock();
        outcomes
            .iter()
            .filter_map(|outcome| Some(format!("{}: {}", outcome.reference, outcome.problem.as_ref()?)))
            .collect()
    }

    /// Drops the result for an image name, so that the next lookup searches again.
    pub(super) fn forget(&self, reference: &Reference) {
        self.outcomes.lock().retain(|outcome| outcome.reference != *reference);
    }

    pub(super) fn is_fresh(&self, reference: &Reference) -> bool {
        let outcomes = self.outcomes.lock();
        outcomes.iter().any(|outcome| outcome.reference == *reference && outcome.at.elapsed() < FRESH)
    }

    pub(super) fn note(&self, reference: &Reference, problem: Option<String>) {
        if let Some(problem) = &problem {
            tracing::warn!(image = %reference, "Podman pulls it, not lazily: {problem}");
        }
        let mut outcomes = self.outcomes.lock();
        outcomes.retain(|outcome| outcome.reference != *reference);
        outcomes.push_back(Outcome { reference: reference.clone(), at: Instant::now(), problem });
        let surplus = outcomes.len().saturating_sub(REMEMBERED);
        outcomes.drain(..surplus);
    }

    pub(super) fn has_problem(&self, reference: &Reference) -> bool {
        let outcomes = self.outcomes.lock();
        outcomes.iter().any(|outcome| outcome.reference == *reference && outcome.problem.is_some())
    }
}
