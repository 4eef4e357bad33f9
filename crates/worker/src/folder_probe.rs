//! Whether a folder of a shared file system answers: a system call on one whose server is away may never return.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

/// How long a folder may take to answer.
const LIMIT: Duration = Duration::from_secs(2);
/// Threads that wait for one folder. Those that never return are not joined by more.
const THREADS: usize = 4;
/// An absent folder is looked for at each of so many calls: every half minute, as a worker shows that it is alive every two seconds.
const CALLS: u32 = 15;

/// Threads that wait, by their folder.
static WAITING: LazyLock<Mutex<HashMap<PathBuf, usize>>> = LazyLock::new(Mutex::default);

/// Whether the folder exists and answers.
pub(crate) fn answers(folder: &Path) -> bool {
    responds(folder, Path::is_dir)
}

fn responds(folder: &Path, look: impl FnOnce(&Path) -> bool + Send + 'static) -> bool {
    {
        let mut waiting = WAITING.lock();
        let threads = waiting.entry(folder.to_owned()).or_default();
        if *threads >= THREADS {
            return false;
        }
        *threads += 1;
    }
    let (sender, receiver) = mpsc::channel();
    let place = folder.to_owned();
    let look = move || {
        let is_there = look(&place);
        end(&place);
        // Fails if nothing waits for it any more.
        let _sent = sender.send(is_there);
    };
    match thread::Builder::new().name("tarpon-tier".into()).spawn(look) {
        Ok(_) => receiver.recv_timeout(LIMIT).unwrap_or(false),
        Err(_) => {
            end(folder);
            false
        }
    }
}

/// A folder that did not answer when its worker was started. Looks again now and then, without waiting for it.
#[derive(Debug)]
pub(crate) struct AbsentFolder {
    folder: PathBuf,
    calls: u32,
    looking: Option<JoinHandle<bool>>,
}

impl AbsentFolder {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, calls: 0, looking: None }
    }

    /// Whether the folder answers now. Runs on a thread of a runtime.
    pub(crate) fn is_back(&mut self) -> bool {
        if let Some(answer) = self.looking.as_mut().and_then(|looking| looking.now_or_never()) {
            self.looking = None;
            return answer.unwrap_or(false);
        }
        self.calls += 1;
        if self.looking.is_none() && self.calls.is_multiple_of(CALLS) {
            let folder = self.folder.clone();
            self.looking = Some(tokio::task::spawn_blocking(move || answers(&folder)));
        }
        false
    }
}

fn end(folder: &Path) {
    let mut waiting = WAITING.lock();
    if let Some(threads) = waiting.get_mut(folder) {
        *threads -= 1;
        if *threads == 0 {
            waiting.remove(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_answers_and_what_is_none_does_not() {
        let folder = tempfile::tempdir().unwrap();
        assert!(answers(folder.path()));
        assert!(!answers(&folder.path().join("absent")));
        assert!(!WAITING.lock().contains_key(folder.path()));
    }

    #[tokio::test]
    async fn an_absent_folder_is_found_when_it_is_back() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("shared");
        let mut absent = AbsentFolder::new(place.clone());
        assert!((0..100).all(|_| !absent.is_back()));
        std::fs::create_dir(&place).unwrap();
        while !absent.is_back() {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_folder_that_hangs_costs_a_few_threads_and_is_not_waited_for_again() {
        let folder = Path::new("/hung");
        let (hold, held) = mpsc::channel::<()>();
        let held = std::sync::Arc::new(Mutex::new(held));
        let hang = || {
            let held = held.clone();
            move |_: &Path| held.lock().recv().is_ok()
        };
        let asked: Vec<_> = (0..THREADS).map(|_| (hang(), folder)).collect();
        let answers: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> = asked.into_iter().map(|(hang, at)| scope.spawn(move || responds(at, hang))).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert_eq!(answers, [false; THREADS]);
        assert!(!responds(folder, |_| true), "no further thread waits");
        drop(hold);
    }
}
