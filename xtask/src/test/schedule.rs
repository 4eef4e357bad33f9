//! Runs several tasks at once, but never two whose claims conflict.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use super::claims::Claim;

/// Waiting and running tasks.
struct State<T> {
    waiting: VecDeque<(Claim, T)>,
    running: Vec<Claim>,
}

impl<T> State<T> {
    /// The first task whose claim conflicts with no running one.
    fn next(&mut self) -> Option<(Claim, T)> {
        let is_free = |(claim, _): &(Claim, T)| self.running.iter().all(|other| !claim.conflicts_with(*other));
        let position = self.waiting.iter().position(is_free)?;
        let (claim, task) = self.waiting.remove(position)?;
        self.running.push(claim);
        Some((claim, task))
    }

    fn ended(&mut self, claim: Claim) {
        if let Some(position) = self.running.iter().position(|other| *other == claim) {
            self.running.swap_remove(position);
        }
    }
}

/// A task under way. Dropping it, also when the task panics, unblocks the tasks that wait for it.
struct Running<'a, T> {
    state: &'a Mutex<State<T>>,
    changed: &'a Condvar,
    claim: Claim,
}

impl<T> Drop for Running<'_, T> {
    fn drop(&mut self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended(self.claim);
        self.changed.notify_all();
    }
}

/// Does `work` with every task, at most `slots` at once, in order.
pub(super) fn run_all<T: Send>(tasks: Vec<(Claim, T)>, slots: usize, work: impl Fn(T) + Sync) {
    let state = Mutex::new(State { waiting: tasks.into(), running: Vec::new() });
    let changed = Condvar::new();
    let worker = || {
        let mut locked = state.lock().unwrap_or_else(PoisonError::into_inner);
        while !locked.waiting.is_empty() {
            let Some((claim, task)) = locked.next() else {
                locked = changed.wait(locked).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(locked);
            let running = Running { state: &state, changed: &changed, claim };
            work(task);
            drop(running);
            locked = state.lock().unwrap_or_else(PoisonError::into_inner);
        }
    };
    thread::scope(|scope| (0..slots.max(1)).for_each(|_| drop(scope.spawn(worker))));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs tasks and returns the claims that ran concurrently, at each start of a task.
    fn moments(claims: &[Claim], slots: usize) -> Vec<Vec<Claim>> {
        let (running, moments) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let tasks = claims.iter().map(|claim| (*claim, *claim)).collect();
        run_all(tasks, slots, |claim| {
            {
                let mut running = running.lock().unwrap();
                running.push(claim);
                moments.lock().unwrap().push(running.clone());
            }
            thread::yield_now();
            let mut running = running.lock().unwrap();
            let position = running.iter().position(|other| *other == claim).unwrap();
            running.remove(position);
        });
        moments.into_inner().unwrap()
    }

    #[test]
    fn every_task_runs_once_and_no_more_than_there_are_slots_run_at_once() {
        let moments = moments(&[Claim::Nothing; 40], 3);
        assert_eq!(moments.len(), 40);
        assert!(moments.iter().all(|running| running.len() <= 3));
    }

    #[test]
    fn tasks_with_the_same_claim_run_one_after_another() {
        let claims = [Claim::Podman, Claim::Nothing, Claim::Podman].repeat(8);
        let moments = moments(&claims, 4);
        assert_eq!(moments.len(), claims.len());
        for running in moments {
            assert!(running.iter().filter(|claim| **claim == Claim::Podman).count() <= 1, "{running:?}");
        }
    }

    #[test]
    fn two_tasks_that_wait_for_each_other_run_side_by_side() {
        let both = std::sync::Barrier::new(2);
        run_all(vec![(Claim::Podman, ()), (Claim::Nothing, ())], 2, |()| {
            both.wait();
        });
    }
}
