//! The client side of the store's server: sends requests, and starts a server if none runs.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags};
use tarpon_images::Access;
use tarpon_mount::Unmounted;
use tarpon_oci::Blob;
use tarpon_store::Store;

use crate::child::wait_until_ready;
use crate::protocol::{ANSWER_BYTES, Mended, MountAccount, MountRequest, MountStatus, Request, Response, ScrubStatus};
use crate::{Error, ErrorKind, Result, ResultExt, server_log, server_version, wire};

/// How often a server is started before giving up. The lock may still belong to a server that is just ending, or the new server may end before
/// the request reaches it.
const STARTS: u32 = 5;

/// Time limit for a server to start listening. That takes milliseconds, but first it mounts again what a dead server left, and after an
/// unclean shutdown of the machine it checks the objects of these images.
const STARTING: Duration = Duration::from_secs(300);

/// Time limit for a server that executes another program: ten seconds for requests, then as for a successor of the holder.
const UPGRADE: Duration = Duration::from_secs(60);

/// Poll interval for a server that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Argument of the server's command line that makes it take the place of a running server.
pub const REPLACE: &str = "--replace";

/// Settings of glibc's allocator for a server. A buffer of a FUSE session, 16 MiB of which one page is used, always comes from the kernel,
/// which provides memory only for touched pages. By default, the first freed buffer raises the threshold, the allocator then clears new
/// buffers, and each mount in mode `fuse` costs three of them. The other value is what the default would have reached.
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "8388608"), ("MALLOC_TRIM_THRESHOLD_", "33554432")];

/// A client of a store's server.
#[derive(Debug, Clone)]
pub struct Client {
    store: Store,
    start: Vec<OsString>,
}

/// Keeps a server without mounts from ending.
#[derive(Debug)]
pub struct Hold(UnixStream);

impl Hold {
    /// Whether the server still runs. It sends nothing on this connection, so readable means closed.
    pub(crate) fn lasts(&self) -> bool {
        !wire::is_readable(&self.0)
    }
}

impl Client {
    /// `start`: the command line that starts a server of this store.
    pub fn new(store: Store, start: Vec<OsString>) -> Self {
        Self { store, start }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The command line that starts a server of this store.
    pub fn server_command(&self) -> &[OsString] {
        &self.start
    }

    /// Mounts, and returns when the mount is usable. Starts a server if none runs.
    pub fn mount(&self, request: MountRequest) -> Result<MountStatus> {
        match self.ask_or_start(&Request::mount(request))? {
            Response::Mounted(status) => Ok(*status),
            other => Err(unexpected(other)),
        }
    }

    /// Has the server connect to the registry of an image that is about to be mounted. If none runs, `start` starts one.
    pub(crate) fn get_ready(&self, image: String, access: Access, attempt: u64, start: bool) -> Result<()> {
        let request = Request::GetReady { image, access, attempt };
        match if start { Some(self.ask_or_start(&request)?) } else { self.ask(&request)? } {
            None | Some(Response::PrefetchStarted) => Ok(()),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Has the server, if one runs, forget an image of [`Client::get_ready`].
    pub(crate) fn not_ready(&self, image: String, access: Access) -> Result<()> {
        match self.ask(&Request::NotReady { image, access })? {
            None | Some(Response::PrefetchStarted) => Ok(()),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Starts to fetch the boot pack of an image that is about to be mounted. Starts a server if none runs.
    pub(crate) fn prefetch_pack(&self, image: String, access: Access, pack: Blob, place: Option<String>) -> Result<()> {
        match self.ask_or_start(&Request::PrefetchPack { image, access, pack, place })? {
            Response::PrefetchStarted => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Uses the credentials of `access` for the image at `mountpoint` from now on. `false`: no server runs, or one of a version that
    /// cannot do this.
    pub fn renew_credentials(&self, mountpoint: &Path, access: Access) -> Result<bool> {
        match self.ask(&Request::RenewCredentials { mountpoint: mountpoint.to_owned(), access })? {
            None => Ok(false),
            Some(Response::Renewed) => Ok(true),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Unmounts, lazily if it is in use. `None`: no server runs, so it has nothing mounted.
    pub fn unmount(&self, mountpoint: &Path) -> Result<Option<Unmounted>> {
        self.unmount_if(mountpoint, false)
    }

    /// Unmounts if the mount is not in use.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if it is in use.
    pub fn unmount_unused(&self, mountpoint: &Path) -> Result<Option<Unmounted>> {
        self.unmount_if(mountpoint, true)
    }

    fn unmount_if(&self, mountpoint: &Path, only_unused: bool) -> Result<Option<Unmounted>> {
        match self.ask(&Request::Unmount { mountpoint: mountpoint.to_owned(), only_unused })? {
            None => Ok(None),
            Some(Response::Unmounted { how }) => Ok(Some(how)),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Unmounts what a dead server left: starts a server, which tries to mount it again, then unmounts it.
    pub fn unmount_left(&self, mountpoint: &Path) -> Result<Unmounted> {
        let request = Request::Unmount { mountpoint: mountpoint.to_owned(), only_unused: false };
        match self.ask_or_start(&request)? {
            Response::Unmounted { how } => Ok(how),
            other => Err(unexpected(other)),
        }
    }

    /// Keeps a server without mounts running until the returned value is dropped. Starts one if none runs.
    pub fn hold(&self) -> Result<Hold> {
        match self.ask_or_start_with(&Request::Hold)? {
            (Response::Held, stream) => Ok(Hold(stream)),
            (other, _) => Err(unexpected(other)),
        }
    }

    /// As [`Client::mount`], unless the same image is mounted there already by a live server.
    pub fn ensure_mounted(&self, request: MountRequest) -> Result<MountStatus> {
        match self.recovered(&request.mountpoint)? {
            Some(mount) if mount.manifest == request.manifest && mount.alive && mount.problem.is_none() => Ok(mount),
            Some(other) => {
                self.release(&other.mountpoint)?;
                self.mount(request)
            }
            None => self.mount(request),
        }
    }

    /// The mount at `mountpoint`, after recovery of what a dead server left there.
    fn recovered(&self, mountpoint: &Path) -> Result<Option<MountStatus>> {
        let mounts = match self.ask(&Request::StatusOf { mountpoint: mountpoint.to_owned() })? {
            Some(Response::Status { mounts }) => mounts,
            Some(other) => return Err(unexpected(other)),
            // No server runs, or one of a version that does not know this request and closes the connection.
            None => self.recover()?,
        };
        Ok(mounts.into_iter().find(|mount| mount.mountpoint == mountpoint))
    }

    /// Unmounts, whichever server it belongs to. It may be unmounted already.
    pub fn release(&self, mountpoint: &Path) -> Result<()> {
        let asked = match self.unmount(mountpoint) {
            // Its server is dead. The next one cleans up what it left.
            Ok(None) if tarpon_mount::is_mounted(mountpoint) => self.unmount_left(mountpoint).map(Some),
            Ok(None) => self.forget(mountpoint),
            other => other,
        };
        settled(asked, mountpoint)
    }

    /// Removes the record of a mount that no server serves and that is not mounted. Otherwise the next server would mount it again.
    fn forget(&self, mountpoint: &Path) -> Result<Option<Unmounted>> {
        let step = "forget a mount";
        if !self
            .store
            .mounts()
            .context(ErrorKind::Store, step)?
            .iter()
            .any(|mount| mount.record.mountpoint == mountpoint)
        {
            return Ok(None);
        }
        // With the lock held, no server can read the record meanwhile and mount it.
        if let Ok(_lock) = self.store.server_lock()
            && !tarpon_mount::is_mounted(mountpoint)
        {
            return self.store.forget_mount(mountpoint).map(|()| None).context(ErrorKind::Store, step);
        }
        self.unmount_left(mountpoint).map(Some)
    }

    /// All mounts of the running server. `None`: no server runs.
    pub fn status(&self) -> Result<Option<Vec<MountStatus>>> {
        match self.ask(&Request::Status)? {
            None => Ok(None),
            Some(Response::Status { mounts }) => Ok(Some(mounts)),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Makes the running server end without unmounting: this process becomes the server. Returns the process that ends. `None`: none runs.
    ///
    /// # Errors
    /// Among others: its mounts would end with it.
    pub fn hand_over(&self) -> Result<Option<Pid>> {
        match self.connect()? {
            None => Ok(None),
            // It may end before its answer arrives.
            Some(server) => match self.ask(&Request::HandOver { successor: None })? {
                None | Some(Response::HandingOver) => Ok(wire::peer(&server)),
                Some(other) => Err(unexpected(other)),
            },
        }
    }

    /// Replaces the running server by one of this program, which adopts its mounts. `false`: none runs.
    ///
    /// # Errors
    /// The new server does not start, or the old one does not hand over: that one goes on then.
    pub fn upgrade(&self) -> Result<bool> {
        match self.ask_with(&Request::Upgrade)? {
            Some((Response::Upgrading, stream)) => self.wait_for_successor(&stream).map(|()| true),
            Some((Response::Replaceable, _)) => self.start_with(&[REPLACE]).map(|()| true),
            Some((other, _)) => Err(unexpected(other)),
            // One of a version that does not know this request closes the connection.
            None if self.connect()?.is_some() => self.start_with(&[REPLACE]).map(|()| true),
            None => Ok(false),
        }
    }

    /// Waits until the server at the other end has executed another program, which answers in the same process.
    fn wait_for_successor(&self, stream: &UnixStream) -> Result<()> {
        let step = "wait for the new server";
        let process = wire::peer(stream);
        let ended = process.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        let began = Instant::now();
        match wire::receive_within::<Response>(stream, ANSWER_BYTES, UPGRADE, || Ok(())) {
            Ok(None) => {}
            Ok(Some(other)) => return Err(unexpected(other)),
            Err(error) if is_end(&error) => {}
            Err(error) => return Err(Error::new(ErrorKind::Store, step, error.to_string())),
        }
        let failed = |cause: String| {
            Err(Error::new(ErrorKind::Store, step, cause).hint(format!("see its log, or {}", self.log().display())))
        };
        loop {
            if let (Ok(Some(server)), Ok(Some(_))) = (self.connect(), self.status()) {
                let other = wire::peer(&server).filter(|other| process.is_some_and(|process| process != *other));
                return other
                    .map_or(Ok(()), |other| failed(format!("it has ended, and process {other} serves the mounts")));
            }
            if ended.as_ref().is_some_and(wire::is_readable) {
                return failed("it has ended".to_owned());
            }
            if began.elapsed() > UPGRADE {
                return failed("it does not answer".to_owned());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The stalls of a mount. `None`: no server runs.
    pub fn why(&self, mountpoint: &Path) -> Result<Option<MountAccount>> {
        match self.ask(&Request::Why { mountpoint: mountpoint.to_owned() })? {
            None => Ok(None),
            Some(Response::Why(account)) => Ok(Some(*account)),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Repairs damaged objects under mounts. `None`: no server runs, so it has nothing mounted, or one of a version without repair.
    pub fn mend(&self) -> Result<Option<Mended>> {
        match self.ask(&Request::Mend)? {
            None => Ok(None),
            Some(Response::Mended(mended)) => Ok(Some(mended)),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// The scrub of the store: as its server reports it, or as it was left. `None`: there never was any.
    pub fn scrub_status(&self) -> Result<Option<ScrubStatus>> {
        let status = self.scrub()?.unwrap_or_else(|| ScrubStatus::of_store(&self.store));
        Ok(Some(status).filter(ScrubStatus::is_known))
    }

    /// The status of the server's scrub. `None`: no server runs, or one of a version without scrub.
    fn scrub(&self) -> Result<Option<ScrubStatus>> {
        match self.ask(&Request::Scrub)? {
            None => Ok(None),
            Some(Response::Scrub(status)) => Ok(Some(status)),
            Some(other) => Err(unexpected(other)),
        }
    }

    /// Fails if Podman uses any image or layer shown to it.
    pub fn podman_unused(&self) -> Result<()> {
        match self.ask_or_start(&Request::PodmanUnused)? {
            Response::Unused => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Stops showing an image to Podman.
    pub fn podman_remove(&self, mountpoint: &Path, name: Option<&str>, force: bool) -> Result<()> {
        let request = Request::PodmanRemove { mountpoint: mountpoint.to_owned(), name: name.map(str::to_owned), force };
        match self.ask_or_start(&request)? {
            Response::Unmounted { .. } => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// The file with the trace of a recorded mount.
    pub fn trace(&self, mountpoint: &Path) -> Result<PathBuf> {
        match self.ask_or_start(&Request::Trace { mountpoint: mountpoint.to_owned() })? {
            Response::Trace { file } => Ok(file),
            other => Err(unexpected(other)),
        }
    }

    /// Starts a server, which mounts again what a dead one left, unless one runs already. Returns all mounts.
    pub fn recover(&self) -> Result<Vec<MountStatus>> {
        match self.ask_or_start(&Request::Status)? {
            Response::Status { mounts } => Ok(mounts),
            other => Err(unexpected(other)),
        }
    }

    fn ask_or_start(&self, request: &Request) -> Result<Response> {
        self.ask_or_start_with(request).map(|(response, _)| response)
    }

    fn ask_or_start_with(&self, request: &Request) -> Result<(Response, UnixStream)> {
        self.replace_older();
        for _ in 0..STARTS {
            if let Some(answer) = self.ask_with(request)? {
                return Ok(answer);
            }
            self.start()?;
        }
        Err(Error::new(ErrorKind::Store, "start the server", "it ends as soon as it is started")
            .hint(format!("see {}", self.log().display())))
    }

    /// Replaces a server in the background of an older version, which an update of the program left. Its mounts continue. If that fails,
    /// it serves on.
    fn replace_older(&self) {
        if !self.start.is_empty()
            && server_version::is_older(&self.store)
            && let Err(error) = self.start_with(&[REPLACE])
        {
            tracing::warn!(%error, "the server of an older version is not replaced");
        }
    }

    /// Sends one request. `None`: nothing listens, or the server ended before it replied. The next server finds on record what it had
    /// begun.
    fn ask(&self, request: &Request) -> Result<Option<Response>> {
        Ok(self.ask_with(request)?.map(|(response, _)| response))
    }

    /// Sends one request, and returns the connection with the response.
    fn ask_with(&self, request: &Request) -> Result<Option<(Response, UnixStream)>> {
        let Some(stream) = self.connect()? else { return Ok(None) };
        let mut health = Health::of(&stream);
        let answer = wire::send(&stream, request)
            .and_then(|()| wire::receive_within(&stream, ANSWER_BYTES, request.patience(), || health.check()));
        match answer {
            Ok(Some(Response::Failed(error))) => Err(error),
            Ok(answer) => Ok(answer.map(|answer| (answer, stream))),
            Err(error) if is_end(&error) => Ok(None),
            Err(error) => Err(self.unanswered(&error, health.stopped, request.patience())),
        }
    }

    /// The error for a server that does not reply. `stopped`: its process, if that was found stopped.
    pub(crate) fn unanswered(&self, error: &io::Error, stopped: Option<Pid>, patience: Duration) -> Error {
        let step = "ask the server";
        if let Some(pid) = stopped {
            let pid = pid.as_raw_nonzero();
            return Error::new(
                ErrorKind::Store,
                step,
                format!("process {pid} is stopped, by SIGSTOP or a debugger, and does not answer"),
            )
            .hint(format!("`kill -CONT {pid}` lets it go on"));
        }
        if !wire::is_late(error) {
            return Error::new(ErrorKind::Store, step, error.to_string());
        }
        let who = match self.store.server() {
            Some(server) => format!("process {}", server.pid),
            None => "its process is not known".to_owned(),
        };
        Error::new(ErrorKind::Store, step, format!("no answer within {} s ({who})", patience.as_secs()))
            .hint(format!("see {}; if it hangs, end it with kill and run `tarpon recover`", self.log().display()))
    }

    /// Connects. `None`: nothing listens.
    ///
    /// # Errors
    /// It is unknown whether a server listens, or the one that does has no room for another client.
    pub(crate) fn connect(&self) -> Result<Option<UnixStream>> {
        match wire::connect(&self.store.server_folder()) {
            Ok(stream) => Ok(Some(stream)),
            // The queue is full, so a server exists.
            Err(error) if wire::is_late(&error) => {
                let pid = self.store.server().and_then(|server| Pid::from_raw(server.pid.cast_signed()));
                Err(self.unanswered(&error, pid.filter(|pid| is_stopped(*pid)), wire::QUEUE))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    /// The error for a socket that a server may have, and that this process cannot connect to.
    fn unreachable(&self, error: &io::Error) -> Error {
        let socket = self.store.server_folder().join(wire::SOCKET);
        let unreachable =
            Error::new(ErrorKind::Store, "connect to the server", format!("{}: {error}", socket.display()));
        match error.kind() {
            io::ErrorKind::PermissionDenied => unreachable.hint("run this as the user whose server it is"),
            _ => unreachable,
        }
    }

    fn log(&self) -> PathBuf {
        server_log::path(&self.store)
    }

    /// Starts a server and waits until it listens or reports why it cannot.
    fn start(&self) -> Result<()> {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[&str]) -> Result<()> {
        let step = "start the server";
        let (program, arguments) = self
            .start
            .split_first()
            .ok_or_else(|| Error::new(ErrorKind::Store, step, "this program cannot start one"))?;
        let log = server_log::open(&self.log()).context(ErrorKind::Store, step)?;
        let mut child = Command::new(program)
            .args(arguments)
            .args(more)
            .current_dir("/")
            .envs(ALLOCATOR)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context(ErrorKind::Store, step)?;
        let ready = wait_until_ready(&mut child, STARTING).context(ErrorKind::Store, step);
        // If this process outlives the server, it reaps it, so that no zombie remains.
        let _unnoticed = std::thread::Builder::new().spawn(move || child.wait());
        ready
    }
}

/// Unmounts in the kernel if the server has unmounted it or does not know it.
pub fn settled<T>(asked: Result<T>, mountpoint: &Path) -> Result<()> {
    match asked {
        Err(error) if error.kind != ErrorKind::NotFound => Err(error),
        _ => tarpon_mount::clear(mountpoint).map(drop).context(ErrorKind::CannotMount, "unmount"),
    }
}

/// Checks if the server is stopped while its response is awaited.
pub(crate) struct Health {
    server: Option<Pid>,
    looks: u32,
    /// Set after enough consecutive checks found it stopped that it will not continue by itself.
    pub(crate) stopped: Option<Pid>,
}

/// Number of consecutive checks. A process that a debugger inspects for a moment continues before that.
const STOPPED_LOOKS: u32 = 4;

impl Health {
    pub(crate) fn of(stream: &UnixStream) -> Self {
        let server = wire::peer(stream);
        Self { server, looks: 0, stopped: None }
    }

    pub(crate) fn check(&mut self) -> io::Result<()> {
        let stopped = self.server.filter(|pid| is_stopped(*pid));
        self.looks = if stopped.is_some() { self.looks + 1 } else { 0 };
        if self.looks < STOPPED_LOOKS {
            return Ok(());
        }
        self.stopped = stopped;
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Whether a process is stopped until it gets SIGCONT.
fn is_stopped(process: Pid) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    // The name is in parentheses and may contain any characters, parentheses included.
    line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Whether the error means that the server closed the connection or ended before it accepted it.
pub(crate) fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected)
}

/// The error for a response of another kind than the request's.
pub fn unexpected(response: Response) -> Error {
    Error::new(ErrorKind::Other, "ask the server", format!("an answer to another question: {response:?}"))
        .hint("the server may be of another version: unmount everything and try again")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::event::{PollFd, PollFlags};

    use super::*;

    fn client(folder: &Path, start: &[&str]) -> Client {
        let store = Store::open(folder, tarpon_store::StoreConfig::default()).unwrap();
        Client::new(store, start.iter().map(OsString::from).collect())
    }

    #[test]
    fn a_server_that_ends_with_clients_in_its_queue_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path(), &[]);
        let listener: UnixListener = wire::listen(&folder.path().join("run")).unwrap();
        std::thread::scope(|scope| {
            // The client connects, and the connection is reset when the listener is closed, before or after the request is sent.
            let asked = scope.spawn(|| client.status());
            let mut listening = [PollFd::new(&listener, PollFlags::IN)];
            rustix::event::poll(&mut listening, None).unwrap();
            drop(listener);
            assert!(asked.join().unwrap().unwrap().is_none());
        });
        assert!(client.status().unwrap().is_none(), "and then nobody listens");
    }

    #[test]
    fn what_a_stopped_server_remembers_is_forgotten_when_it_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path(), &[]);
        let places = ["a", "b"].map(|name| folder.path().join(name));
        for place in &places {
            client.store.record_mount(place, &tarpon_oci::Digest::of(b"m"), "image", "{}").unwrap();
        }
        client.release(&places[0]).unwrap();
        client.release(&folder.path().join("never mounted")).unwrap();
        let left: Vec<_> = client.store.mounts().unwrap().into_iter().map(|mount| mount.record.mountpoint).collect();
        assert_eq!(left, places[1..]);
        let lock = client.store.server_lock().unwrap();
        let error = client.release(&places[1]).unwrap_err();
        assert_eq!(error.step, "start the server", "one is just coming, and may be mounting it: {error}");
        drop(lock);
        client.release(&places[1]).unwrap();
        assert!(client.store.mounts().unwrap().is_empty());
    }

    #[test]
    fn a_server_that_knows_no_question_about_one_mount_is_asked_about_all_however_many() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path(), &[]);
        let record = client.store.record_mount("/mnt".as_ref(), &tarpon_oci::Digest::of(b"m"), "image", "{}").unwrap();
        let status =
            MountStatus { fallbacks: vec!["x".repeat(1000)], ..crate::mount_record::dead(&client.store, &record) };
        let at = |number: u32| PathBuf::from(format!("/mnt/{number}"));
        let mounts = (0..10_000).map(|number| MountStatus { mountpoint: at(number), ..status.clone() }).collect();
        let listener: UnixListener = wire::listen(&folder.path().join("run")).unwrap();
        let asked = || {
            let stream = listener.accept().unwrap().0;
            let request: serde_json::Value = wire::receive(&stream, crate::protocol::LINE_BYTES).unwrap().unwrap();
            (request["ask"].as_str().unwrap().to_owned(), stream)
        };
        std::thread::scope(|scope| {
            let found = scope.spawn(|| client.recovered(&at(9_999)).unwrap().unwrap());
            let (question, stream) = asked();
            assert_eq!(question, "status-of");
            drop(stream);
            let (question, stream) = asked();
            assert_eq!(question, "status");
            wire::send(&stream, &Response::Status { mounts }).unwrap();
            assert_eq!(found.join().unwrap().mountpoint, at(9_999));
        });
    }

    #[test]
    fn a_server_that_is_stopped_is_named_before_the_time_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path(), &[]);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        let mut health = Health { server: Some(pid), looks: 0, stopped: None };
        let late = (0..STOPPED_LOOKS).find_map(|_| health.check().err()).unwrap();
        let error = client.unanswered(&late, health.stopped, Duration::from_secs(60));
        assert!(error.cause().to_string().contains(&format!("process {} is stopped", child.id())), "{error}");
        assert!(error.hint.unwrap().contains("kill -CONT"));
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        while is_stopped(pid) {
            std::thread::yield_now();
        }
        health.stopped = None;
        health.check().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_wait_for_a_server_that_accepts_no_connection_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path(), &[]);
        let listener: UnixListener = wire::listen(&folder.path().join("run")).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut queue = Vec::new();
        let late = loop {
            match wire::connect_within(&folder.path().join("run"), Duration::from_millis(1)) {
                Ok(stream) => queue.push(stream),
                Err(error) => break error,
            }
        };
        assert!(wire::is_late(&late), "{late}");
        assert!(client.unanswered(&late, None, Duration::from_secs(10)).to_string().contains("no answer within 10 s"));
    }

    #[test]
    fn a_socket_of_another_type_is_not_taken_for_one_without_a_listener() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path(), &[]);
        let socket = client.store.server_folder().join(wire::SOCKET);
        assert!(client.status().unwrap().is_none(), "there is no socket");
        // One of another type.
        let datagrams = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
        let error = client.status().unwrap_err();
        assert_eq!(error.step, "connect to the server");
        assert!(error.cause().to_string().contains(&format!("{}: ", socket.display())), "{error}");
        drop(datagrams);
        std::fs::remove_file(&socket).unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        assert!(client.status().unwrap().is_none(), "a dead server has left its socket");
    }

    #[test]
    fn a_server_that_does_not_answer_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path(), &[]);
        let _lock = client.store.server_lock().unwrap();
        let error = client.unanswered(&io::ErrorKind::WouldBlock.into(), None, Duration::from_secs(60));
        assert!(
            error.cause().to_string().contains(&format!("no answer within 60 s (process {})", std::process::id())),
            "{error}"
        );
    }
}
