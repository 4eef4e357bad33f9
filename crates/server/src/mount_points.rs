//! The mount points of a server, each in one stage of its life, and the clients being served. They decide which operations on a path are
//! permitted, and when the server may end. All are under one lock.
//!
//! ```text
//!            reserve            settle           leave
//!   (free) ──────────► Reserved ──────► Mounted ───────► Leaving ──► (free)
//!     ▲                   │                ▲                │
//!     └── dropped ────────┘                └─── dropped ────┘
//! ```
//!
//! Between the stages the caller holds a guard: it writes and removes records and calls the kernel while the path is reserved for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::sync::{Condvar, Mutex};
use crate::{Error, ErrorKind, Result};

/// How long to wait for another request that mounts or unmounts at the same path. Both take milliseconds, an unmount as long as its disk
/// takes to sync.
const TIMEOUT: Duration = Duration::from_secs(30);

/// All mount points of the server.
pub(super) struct MountPoints<T> {
    state: Mutex<State<T>>,
    /// For threads that wait for a path, …
    moved: Condvar,
    /// … and for tasks that wait for a condition, such as idle.
    changes: watch::Sender<()>,
}

struct State<T> {
    stages: BTreeMap<PathBuf, Stage<T>>,
    /// Number of clients being served.
    clients: usize,
    /// Number of clients that keep the server running.
    holders: usize,
    /// Whether any request has arrived since the start.
    used: bool,
    /// Whether the server accepts nothing more.
    closed: bool,
}

enum Stage<T> {
    Reserved,
    Mounted(Arc<T>),
    Leaving(Arc<T>),
}

/// The right to mount at a path. The path is free again on drop.
pub(super) struct Reservation<'p, T> {
    places: &'p MountPoints<T>,
    /// `None` once it is mounted.
    path: Option<PathBuf>,
}

/// The right to unmount. The mount stays on drop.
pub(super) struct Leaving<'p, T> {
    places: &'p MountPoints<T>,
    mount: Arc<T>,
    path: PathBuf,
    gone: bool,
}

/// A client being served, as long as this lives.
pub(super) struct Client<T>(Arc<MountPoints<T>>);

/// Keeps the server from ending by itself as long as this lives.
pub(super) struct Holder<T>(Arc<MountPoints<T>>);

impl<T> Default for MountPoints<T> {
    fn default() -> Self {
        let state = State { stages: BTreeMap::new(), clients: 0, holders: 0, used: false, closed: false };
        Self { state: Mutex::new(state), moved: Condvar::new(), changes: watch::Sender::new(()) }
    }
}

impl<T> MountPoints<T> {
    /// Reserves a free path, after a running unmount of it.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if something is mounted there, [`ErrorKind::Store`] if the server is ending.
    pub(super) fn reserve(&self, path: &Path) -> Result<Reservation<'_, T>> {
        let mut state = self.state.lock();
        self.wait_until(&mut state, |state| {
            state.closed || !matches!(state.stages.get(path), Some(Stage::Reserved | Stage::Leaving(_)))
        })?;
        if state.closed {
            return Err(Error::new(ErrorKind::Store, "mount", "the server is just ending").hint("try again"));
        }
        if state.stages.contains_key(path) {
            return Err(Error::new(ErrorKind::CannotMount, "mount", "an image is mounted there already")
                .hint(format!("tarpon umount {}", path.display())));
        }
        state.stages.insert(path.to_owned(), Stage::Reserved);
        self.notify(state);
        Ok(Reservation { places: self, path: Some(path.to_owned()) })
    }

    /// Takes the mount at `path` to unmount it; `None` if there is none.
    pub(super) fn leave(&self, path: &Path) -> Result<Option<Leaving<'_, T>>> {
        let mut state = self.state.lock();
        self.wait_until(&mut state, |state| {
            !matches!(state.stages.get(path), Some(Stage::Reserved | Stage::Leaving(_)))
        })?;
        let Some(Stage::Mounted(mount)) = state.stages.get(path) else { return Ok(None) };
        let mount = mount.clone();
        Ok(Some(self.begin_to_leave(&mut state, path, mount)))
    }

    /// Takes a mount that was found unmounted. `None` if another thread handles it already.
    pub(super) fn leave_gone(&self, path: &Path, mount: &Arc<T>) -> Option<Leaving<'_, T>> {
        let mut state = self.state.lock();
        match state.stages.get(path) {
            Some(Stage::Mounted(there)) if Arc::ptr_eq(there, mount) => {
                Some(self.begin_to_leave(&mut state, path, mount.clone()))
            }
            _ => None,
        }
    }

    fn begin_to_leave(&self, state: &mut State<T>, path: &Path, mount: Arc<T>) -> Leaving<'_, T> {
        state.stages.insert(path.to_owned(), Stage::Leaving(mount.clone()));
        Leaving { places: self, mount, path: path.to_owned(), gone: false }
    }

    /// All mounts, ordered by path. They include mounts that are being unmounted.
    pub(super) fn mounted(&self) -> Vec<Arc<T>> {
        let state = self.state.lock();
        let mounts = state.stages.values().filter_map(|stage| match stage {
            Stage::Reserved => None,
            Stage::Mounted(mount) | Stage::Leaving(mount) => Some(mount.clone()),
        });
        mounts.collect()
    }

    /// The mount at `path`, as in [`MountPoints::mounted`].
    pub(super) fn mounted_at(&self, path: &Path) -> Option<Arc<T>> {
        match self.state.lock().stages.get(path)? {
            Stage::Reserved => None,
            Stage::Mounted(mount) | Stage::Leaving(mount) => Some(mount.clone()),
        }
    }

    /// Admits a client. `None` if the server is ending: the client must connect to the next one.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Client<T>> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.clients += 1;
        state.used = true;
        self.notify(state);
        Some(Client(self.clone()))
    }

    /// Stops accepting clients and mounts if there are none and nothing `else_needed`, which only clients can start to need. Returns
    /// whether it is closed.
    pub(super) fn close_if_idle(&self, else_needed: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        state.closed = state.closed || state.is_idle() && !else_needed();
        state.closed
    }

    /// Stops accepting clients and mounts.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.notify(state);
    }

    /// Resolves when there is neither a mount nor a client.
    pub(super) async fn idle(&self) {
        self.until(State::is_idle).await;
    }

    /// Resolves when there is a mount or a client.
    pub(super) async fn busy(&self) {
        self.until(|state| !state.is_idle()).await;
    }

    /// Resolves when the first request has arrived.
    pub(super) async fn used(&self) {
        self.until(|state| state.used).await;
    }

    /// Resolves when no client is being served and nothing is being mounted.
    pub(super) async fn settled(&self) {
        self.until(|state| state.clients == 0 && !state.stages.values().any(|stage| matches!(stage, Stage::Reserved)))
            .await;
    }

    async fn until(&self, condition: impl Fn(&State<T>) -> bool) {
        // Changes after this wake the wait below, so none is lost between the check and the wait.
        let mut changes = self.changes.subscribe();
        while !condition(&self.state.lock()) {
            // The sender lives in `self`.
            let _changed = changes.changed().await;
        }
    }

    fn wait_until(
        &self,
        state: &mut parking_lot::MutexGuard<'_, State<T>>,
        condition: impl Fn(&State<T>) -> bool,
    ) -> Result<()> {
        let until = Instant::now() + TIMEOUT;
        while !condition(state) {
            if self.moved.wait_until(state, until).timed_out() {
                let cause =
                    format!("another request has been mounting or unmounting there for {} s", TIMEOUT.as_secs());
                return Err(Error::new(ErrorKind::Store, "wait for the mount point", cause));
            }
        }
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut State<T>)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.notify(state);
    }

    fn notify(&self, state: parking_lot::MutexGuard<'_, State<T>>) {
        drop(state);
        self.moved.notify_all();
        self.changes.send_replace(());
    }
}

impl<T> State<T> {
    fn is_idle(&self) -> bool {
        self.stages.is_empty() && self.clients == 0 && self.holders == 0
    }
}

impl<T> Client<T> {
    /// Ends the request of this client, and keeps the server running for it.
    pub(super) fn hold(self) -> Holder<T> {
        self.0.change(|state| state.holders += 1);
        Holder(self.0.clone())
    }
}

impl<T> Drop for Holder<T> {
    fn drop(&mut self) {
        self.0.change(|state| state.holders -= 1);
    }
}

impl<T> Reservation<'_, T> {
    /// Marks the path as mounted.
    pub(super) fn settle(mut self, mount: Arc<T>) {
        let path = self.path.take();
        self.places.change(|state| {
            state.used = true;
            state.stages.extend(path.map(|path| (path, Stage::Mounted(mount))));
        });
    }
}

impl<T> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            self.places.change(|state| drop(state.stages.remove(path)));
        }
    }
}

impl<T> Leaving<'_, T> {
    /// The mount that is being unmounted.
    pub(super) fn mount(&self) -> &T {
        &self.mount
    }

    /// Frees the path after the unmount.
    pub(super) fn free(mut self) {
        self.gone = true;
    }
}

impl<T> Drop for Leaving<'_, T> {
    fn drop(&mut self) {
        self.places.change(|state| {
            state.stages.remove(&self.path);
            if !self.gone {
                state.stages.insert(std::mem::take(&mut self.path), Stage::Mounted(self.mount.clone()));
            }
        });
    }
}

impl<T> Drop for Client<T> {
    fn drop(&mut self) {
        self.0.change(|state| state.clients -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use futures::FutureExt as _;
    use tarpon_testkit::interleaving::{block_on, explore, point, thread};

    use super::*;

    const PATH: &str = "/mnt";

    fn places() -> Arc<MountPoints<u32>> {
        Arc::default()
    }

    fn mounted(places: &MountPoints<u32>, mount: u32) -> Arc<u32> {
        let mount = Arc::new(mount);
        places.reserve(Path::new(PATH)).unwrap().settle(mount.clone());
        mount
    }

    #[test]
    fn a_path_is_reserved_before_it_is_mounted_and_free_after() {
        let places = places();
        mounted(&places, 1);
        let error = places.reserve(Path::new(PATH)).err().unwrap();
        assert_eq!(
            (error.kind, error.cause().to_string().as_str()),
            (ErrorKind::CannotMount, "an image is mounted there already")
        );
        assert!(places.reserve(Path::new("/other")).is_ok());
        let leaving = places.leave(Path::new(PATH)).unwrap().unwrap();
        assert_eq!(*leaving.mount(), 1);
        leaving.free();
        assert!(places.leave(Path::new(PATH)).unwrap().is_none());
        assert!(places.reserve(Path::new(PATH)).is_ok());
    }

    #[test]
    fn of_many_who_mount_at_one_path_one_does_and_a_failed_one_makes_room() {
        let places = places();
        let first = places.reserve(Path::new(PATH)).unwrap();
        let others: Vec<_> = (0..4_u32)
            .map(|number| {
                let places = places.clone();
                std::thread::spawn(move || match places.reserve(Path::new(PATH)) {
                    Ok(place) => {
                        place.settle(Arc::new(number));
                        true
                    }
                    Err(_) => false,
                })
            })
            .collect();
        drop(first);
        let won = others.into_iter().map(|other| other.join().unwrap()).filter(|won| *won).count();
        assert_eq!((won, places.mounted().len()), (1, 1));
    }

    /// Threads that mount and unmount at one path, in many interleavings: one at a time has it, and none waits for ever.
    #[test]
    fn threads_that_mount_and_unmount_at_one_path_take_turns_and_all_end() {
        explore(|| {
            let (places, holders) = (places(), Arc::new(AtomicUsize::new(0)));
            let threads: Vec<_> = (0..4_u32)
                .map(|number| {
                    let (places, holders) = (places.clone(), holders.clone());
                    thread::spawn(move || {
                        let alone = || {
                            assert_eq!(holders.fetch_add(1, SeqCst), 0, "two have the path");
                            point();
                            holders.fetch_sub(1, SeqCst);
                        };
                        if number % 2 == 0 {
                            let Ok(place) = places.reserve(Path::new(PATH)) else { return };
                            alone();
                            place.settle(Arc::new(number));
                        }
                        let Some(leaving) = places.leave(Path::new(PATH)).unwrap() else { return };
                        alone();
                        // One of them fails to unmount.
                        if number != 3 {
                            leaving.free();
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let left = places.leave(Path::new(PATH)).unwrap();
            left.into_iter().for_each(Leaving::free);
            assert!(places.close_if_idle(|| false), "nothing is left");
        });
    }

    /// A server that ends when it is idle admits no client from then on, and an admitted one keeps it running.
    #[test]
    fn a_client_that_arrives_while_the_server_ends_is_served_or_refused() {
        explore(|| {
            let places = places();
            let closer = places.clone();
            let ending = thread::spawn(move || {
                block_on(closer.idle());
                closer.close_if_idle(|| false)
            });
            let client = places.enter();
            let is_served = client.is_some();
            point();
            if is_served {
                assert!(!places.close_if_idle(|| false), "a client is being served");
                let holder = client.unwrap().hold();
                point();
                drop(holder);
            }
            assert!(ending.join().unwrap() || is_served);
        });
    }

    #[test]
    fn an_unmount_that_fails_leaves_the_mount_where_it_was() {
        let places = places();
        mounted(&places, 1);
        drop(places.leave(Path::new(PATH)).unwrap());
        assert_eq!(places.mounted(), [Arc::new(1)]);
    }

    #[test]
    fn what_was_found_gone_is_removed_once_and_never_its_successor() {
        let places = places();
        let first = mounted(&places, 1);
        let leaving = places.leave_gone(Path::new(PATH), &first).unwrap();
        assert!(places.leave_gone(Path::new(PATH), &first).is_none(), "somebody sees to it");
        leaving.free();
        mounted(&places, 1);
        assert!(places.leave_gone(Path::new(PATH), &first).is_none(), "another mount, however equal");
        assert_eq!(places.mounted().len(), 1);
    }

    #[test]
    fn it_closes_only_while_it_is_unused_and_then_permanently() {
        let places = places();
        let client = places.enter().unwrap();
        assert!(!places.close_if_idle(|| false));
        drop(client);
        let place = places.reserve(Path::new(PATH)).unwrap();
        assert!(!places.close_if_idle(|| false));
        drop(place);
        assert!(!places.close_if_idle(|| true), "what a client made just now and has no place here");
        assert!(places.close_if_idle(|| false));
        assert!(places.enter().is_none());
        assert_eq!(places.reserve(Path::new(PATH)).err().unwrap().kind, ErrorKind::Store);
    }

    #[test]
    fn a_holder_keeps_it_from_ending_by_itself_but_does_not_delay_a_requested_end() {
        let places = places();
        let holder = places.enter().unwrap().hold();
        assert!(places.idle().now_or_never().is_none() && !places.close_if_idle(|| false));
        assert!(places.settled().now_or_never().is_some());
        drop(holder);
        assert!(places.idle().now_or_never().is_some() && places.close_if_idle(|| false));
    }

    #[test]
    fn waiting_ends_with_the_last_client_and_mount() {
        let places = places();
        assert!(places.used().now_or_never().is_none());
        let client = places.enter().unwrap();
        assert!(places.used().now_or_never().is_some());
        let mut idle = Box::pin(places.idle());
        assert!(idle.as_mut().now_or_never().is_none());
        let mount = mounted(&places, 1);
        drop(client);
        assert!(idle.as_mut().now_or_never().is_none());
        places.leave_gone(Path::new(PATH), &mount).unwrap().free();
        assert!(idle.now_or_never().is_some());
    }
}
