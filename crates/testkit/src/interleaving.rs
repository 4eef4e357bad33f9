//! Runs threads in many orders ([`shuttle`]), and locks that take part in it. Outside of [`explore`] they are ordinary locks.
//!
//! The threads of a run are coroutines of one thread, which is why a lock must not be waited for as usual.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::MutexGuard;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

pub use shuttle::future::block_on;
pub use shuttle::rand;
pub use shuttle::thread;

/// Schedules of each kind.
const SCHEDULES: usize = 1_000;
/// Changes of the thread that has priority: most faults need one or two.
const CHANGES: usize = 3;
/// Steps of one run: a hundred times what any takes. A thread that waits in vain takes all of them.
const STEPS: usize = 50_000;

thread_local!(static EXPLORES: Cell<bool> = const { Cell::new(false) });

/// Runs `run` in a thousand random schedules, and in a thousand in which one thread runs as long as it can, but for a few changes.
pub fn explore(run: impl Fn() + Send + Sync + Clone + 'static) {
    let seed = crate::seeds::Seeds::from_environment(1).next().unwrap_or_default();
    explore_with(RandomScheduler::new_from_seed(seed, SCHEDULES), run.clone());
    explore_with(PctScheduler::new_from_seed(seed, CHANGES, SCHEDULES), run);
}

fn explore_with(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS);
    let _explores = Explores::begin();
    Runner::new(scheduler, config).run(run);
}

struct Explores;

impl Explores {
    fn begin() -> Self {
        EXPLORES.set(true);
        Self
    }
}

impl Drop for Explores {
    fn drop(&mut self) {
        EXPLORES.set(false);
    }
}

/// Another thread may run now.
pub fn point() {
    if EXPLORES.get() {
        let _any = shuttle::sync::atomic::AtomicBool::new(false).load(SeqCst);
    }
}

/// As [`parking_lot::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// As [`parking_lot::Mutex::new`].
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// As [`parking_lot::Mutex::lock`].
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if !EXPLORES.get() {
            return self.0.lock();
        }
        point();
        loop {
            match self.0.try_lock() {
                Some(guard) => return guard,
                None => thread::yield_now(),
            }
        }
    }
}

/// As [`parking_lot::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
    /// Number of notifications.
    notified: AtomicU64,
}

/// As [`parking_lot::WaitTimeoutResult`].
#[derive(Debug, Clone, Copy)]
pub struct Waited(bool);

impl Waited {
    /// Whether nothing was notified in time.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// As [`parking_lot::Condvar::new`].
    pub const fn new() -> Self {
        Self { inner: parking_lot::Condvar::new(), notified: AtomicU64::new(0) }
    }

    /// As [`parking_lot::Condvar::notify_all`].
    pub fn notify_all(&self) {
        point();
        self.notified.fetch_add(1, SeqCst);
        self.inner.notify_all();
    }

    /// As [`parking_lot::Condvar::wait_until`]. Time does not pass in [`explore`]: a thread that is never notified fails the run.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> Waited {
        if !EXPLORES.get() {
            return Waited(self.inner.wait_until(guard, until).timed_out());
        }
        let before = self.notified.load(SeqCst);
        // No other thread holds the lock when this one continues: none of them pauses while it does.
        MutexGuard::unlocked(guard, || {
            while self.notified.load(SeqCst) == before {
                thread::yield_now();
            }
        });
        Waited(false)
    }
}
