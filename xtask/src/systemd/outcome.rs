//! What a case showed.

use serde_json::{Value, json};

use super::log::Operation;

/// One event. The times are seconds since 1970.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) start: f64,
    /// The command returned.
    pub(super) end: f64,
    /// The units were active again.
    pub(super) active: f64,
    /// Files of the image that were not local then.
    pub(super) absent: usize,
}

/// What a case showed.
#[derive(Debug)]
pub(super) struct Outcome {
    name: &'static str,
    pub(super) rounds: Vec<Round>,
    pub(super) faults: Vec<String>,
    pub(super) left_behind: Vec<String>,
    pub(super) seconds: f64,
    operations: usize,
    /// The first ones.
    errors: Vec<String>,
    error_count: usize,
    /// Operations that were under way when an event began.
    interrupted: usize,
    /// Seconds of the longest operation that ended after the first event began.
    longest: f64,
}

/// Errors that are shown.
const SHOWN: usize = 5;

impl Outcome {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            rounds: Vec::new(),
            faults: Vec::new(),
            left_behind: Vec::new(),
            seconds: 0.0,
            operations: 0,
            errors: Vec::new(),
            error_count: 0,
            interrupted: 0,
            longest: 0.0,
        }
    }

    /// Adds the operations of a container.
    pub(super) fn add(&mut self, container: &str, operations: &[Operation]) {
        self.operations += operations.len();
        let errors = operations.iter().filter(|operation| operation.is_error());
        self.error_count += errors.clone().count();
        let shown =
            errors.take(SHOWN).map(|error| format!("{container}: {} {}: {}", error.kind, error.path, error.result));
        self.errors.extend(shown);
        let is_interrupted = |operation: &&Operation| {
            self.rounds.iter().any(|round| operation.start < round.start && round.start < operation.end)
        };
        self.interrupted += operations.iter().filter(is_interrupted).count();
        // Before the first event the programs of the container themselves are fetched.
        let first = self.rounds.first().map_or(f64::INFINITY, |round| round.start);
        let since = operations.iter().filter(|operation| operation.end > first);
        self.longest = since.map(Operation::seconds).fold(self.longest, f64::max);
    }

    pub(super) fn is_good(&self) -> bool {
        self.error_count == 0 && self.faults.is_empty() && self.left_behind.is_empty()
    }

    /// The names of the columns of [`Outcome::row`].
    pub(super) fn heading() -> String {
        "| case | events | operations | errors | interrupted | longest operation | longest command | active after | left behind | result |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|---|"
            .to_owned()
    }

    pub(super) fn row(&self) -> String {
        format!(
            "| {} | {} | {} | {} | {} | {:.2} s | {:.2} s | {:.2} s | {} | {} |",
            self.name,
            self.rounds.len(),
            self.operations,
            self.error_count,
            self.interrupted,
            self.longest,
            self.longest_of(|round| round.end - round.start),
            self.longest_of(|round| round.active - round.start),
            self.left_behind.len(),
            if self.is_good() { "good" } else { "**failed**" },
        )
    }

    /// What is wrong, one line each.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let left = self.left_behind.iter().map(|left| format!("left behind: {left}"));
        let all = self.errors.iter().cloned().chain(self.faults.iter().cloned()).chain(left);
        all.map(|problem| format!("{}: {problem}", self.name))
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "case": self.name,
            "events": self.rounds.len(),
            "operations": self.operations,
            "errors": self.error_count,
            "interrupted": self.interrupted,
            "longest_operation_seconds": self.longest,
            "command_seconds": self.rounds.iter().map(|round| round.end - round.start).collect::<Vec<_>>(),
            "active_seconds": self.rounds.iter().map(|round| round.active - round.start).collect::<Vec<_>>(),
            "absent_files": self.rounds.iter().map(|round| round.absent).collect::<Vec<_>>(),
            "left_behind": self.left_behind,
            "problems": self.problems().collect::<Vec<_>>(),
            "seconds": self.seconds,
        })
    }

    fn longest_of(&self, seconds: impl Fn(&Round) -> f64) -> f64 {
        self.rounds.iter().map(seconds).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(start: f64, end: f64, result: &str) -> Operation {
        let (kind, path) = ("file".to_owned(), "/data/a".to_owned());
        Operation { reader: 0, number: 1, kind, start, end, result: result.to_owned(), path }
    }

    #[test]
    fn an_operation_across_the_start_of_an_event_was_interrupted() {
        let mut outcome = Outcome::new("restart");
        outcome.rounds.push(Round { start: 10.0, end: 12.0, active: 12.0, absent: 1 });
        outcome.add("podman", &[operation(9.0, 10.5, "ok"), operation(10.5, 10.75, "ok")]);
        assert_eq!((outcome.operations, outcome.interrupted, outcome.longest), (2, 1, 1.5));
        assert!(outcome.is_good());
    }

    #[test]
    fn an_error_or_a_remaining_process_fails_the_case_and_is_named() {
        let mut outcome = Outcome::new("restart");
        outcome.add("podman", &[operation(9.0, 10.5, "status-135-")]);
        outcome.left_behind.push("process tarpon serve".to_owned());
        assert!(!outcome.is_good());
        let problems: Vec<_> = outcome.problems().collect();
        assert_eq!(problems[0], "restart: podman: file /data/a: status-135-");
        assert_eq!(problems[1], "restart: left behind: process tarpon serve");
    }
}
