//! [`Runtime`]: runs the tasks of a fetcher.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Where tasks run, and work that blocks on the disk or the processor.
#[derive(Clone)]
pub(crate) struct Runtime {
    handle: Handle,
    /// As [`crate::Config::blocking_threads`].
    blocking_threads: bool,
}

impl Runtime {
    pub(crate) fn new(handle: Handle, blocking_threads: bool) -> Self {
        Self { handle, blocking_threads }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    pub(crate) fn spawn_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        match self.blocking_threads {
            true => self.handle.spawn_blocking(work),
            false => self.handle.spawn(async move { work() }),
        }
    }
}
