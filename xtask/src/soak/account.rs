//! What happened: containers, failures, outages, kills.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

/// How a container failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file had other bytes.
    WrongBytes,
    /// A file could not be read.
    Read,
    /// It did not end in time.
    Hung,
    /// It did not start.
    Start,
    /// It ended early.
    Ended,
}

/// A failed container. Times are since the beginning of the run.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) container: String,
    pub(super) image: String,
    pub(super) began: Duration,
    pub(super) ended: Duration,
    pub(super) text: String,
}

/// A disturbance: from when to when the registry or the server was gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disturbance {
    pub(super) from: Duration,
    pub(super) to: Duration,
}

/// Written by all threads.
#[derive(Default)]
pub(super) struct Account {
    containers: AtomicU32,
    failures: Mutex<Vec<Failure>>,
    outages: Mutex<Vec<Disturbance>>,
    kills: Mutex<Vec<Disturbance>>,
}

impl Account {
    pub(super) fn finished(&self) {
        self.containers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fail(&self, failure: Failure) {
        let Failure { kind, container, image, began, ended, text } = &failure;
        println!("{kind:?} {container} of {image}, {} to {} s: {}", began.as_secs(), ended.as_secs(), text.trim_end());
        lock(&self.failures).push(failure);
    }

    pub(super) fn outage(&self, outage: Disturbance) {
        lock(&self.outages).push(outage);
    }

    pub(super) fn kill(&self, kill: Disturbance) {
        lock(&self.kills).push(kill);
    }

    pub(super) fn sum(&self) -> Sum {
        let (failures, outages) = (lock(&self.failures).clone(), lock(&self.outages).clone());
        // A container of an image that was evicted needs the registry to start, and may fail without it.
        let is_excused = |failure: &&Failure| {
            failure.kind == Kind::Start
                && outages.iter().any(|outage| outage.from < failure.ended && failure.began < outage.to)
        };
        let (excused, failures) = failures.iter().cloned().partition(|failure| is_excused(&failure));
        Sum {
            containers: self.containers.load(Ordering::Relaxed),
            failures,
            starts_without_registry: excused,
            outages: outages.len(),
            kills: lock(&self.kills).len(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The account of a run.
pub(super) struct Sum {
    pub(super) containers: u32,
    /// Failures that nothing excuses.
    pub(super) failures: Vec<Failure>,
    /// Containers that did not start while the registry was gone.
    pub(super) starts_without_registry: Vec<Failure>,
    pub(super) outages: usize,
    pub(super) kills: usize,
}

impl Sum {
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.failures.iter().filter(|failure| failure.kind == kind).count()
    }

    pub(super) fn json(&self) -> Value {
        let failure = |failure: &Failure| {
            json!({
                "kind": format!("{:?}", failure.kind),
                "container": failure.container,
                "image": failure.image,
                "began": failure.began.as_secs_f64(),
                "ended": failure.ended.as_secs_f64(),
                "text": failure.text,
            })
        };
        json!({
            "containers": self.containers,
            "wrong_bytes": self.count(Kind::WrongBytes),
            "failures": self.failures.iter().map(failure).collect::<Vec<_>>(),
            "starts_without_registry": self.starts_without_registry.iter().map(failure).collect::<Vec<_>>(),
            "outages": self.outages,
            "kills": self.kills,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: Kind, began: u64, ended: u64) -> Failure {
        let [began, ended] = [began, ended].map(Duration::from_secs);
        Failure { kind, container: "a".into(), image: "b".into(), began, ended, text: String::new() }
    }

    #[test]
    fn only_a_start_during_an_outage_is_excused() {
        let account = Account::default();
        account.outage(Disturbance { from: Duration::from_secs(10), to: Duration::from_secs(15) });
        for failure in [
            failure(Kind::Start, 12, 13),
            failure(Kind::Start, 9, 11),
            failure(Kind::Start, 16, 17),
            failure(Kind::Read, 12, 13),
        ] {
            account.fail(failure);
        }
        let sum = account.sum();
        assert_eq!((sum.starts_without_registry.len(), sum.failures.len()), (2, 2));
        assert_eq!((sum.count(Kind::Read), sum.count(Kind::Start)), (1, 1));
    }
}
