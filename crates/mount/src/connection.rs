//! [`Connection`]: one FUSE connection, from `/dev/fuse` to its end.
//!
//! A [`ConnectionHolder`] may hold a duplicate of the descriptor beyond the death of this process, for a successor that adopts the
//! connection. Without one this process is the only holder: when it dies, the kernel ends the connection and every
//! waiting reader gets ENOTCONN at once. A holder without a clock would turn a crash into a hang
//! (docs/design/decisions.md).

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, INodeNo, InitFlags, Notifier, Session, SessionACL};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::MountAttrFlags;
use tarpon_fs::Operations;
use tarpon_oci::Digest;
use tokio::sync::watch;

use crate::adapter::{Adapter, Counters, InFlight, Opens, PageIn};
use crate::device;
use crate::fusectl;
use crate::fusermount;
use crate::holder::{ConnectionHolder, HeldConnection, InheritedConnection};
use crate::kernel::{Context, StepError, io_step};
use crate::table::{self, SUBTYPE};
use crate::takeover;

/// Maximum number of event threads. More cost latency at low load, and hits are answered in microseconds.
const MAX_EVENT_THREADS: usize = 4;

/// A served FUSE connection. It ends when the kernel no longer uses the file system (all its mounts and open files are
/// closed), when it is aborted, or when this process dies.
pub(crate) struct Connection {
    in_flight: InFlight,
    counters: Arc<Counters>,
    ended: watch::Receiver<bool>,
    number: Option<u32>,
    files: Arc<dyn Operations>,
    notifier: Notifier,
    page_in: Arc<PageIn>,
    /// Objects whose cached pages could not be dropped yet.
    unforgotten: Mutex<HashSet<Digest>>,
}

/// A session that is not served yet, and the number of its connection.
struct Unserved {
    session: Session<Adapter>,
    watched: Watched,
    number: Option<u32>,
}

/// State shared between the adapter and its connection.
struct Watched {
    in_flight: InFlight,
    counters: Arc<Counters>,
    files: Arc<dyn Operations>,
    opens: Option<Arc<Opens>>,
    offered: Arc<AtomicU64>,
    reads_ahead: bool,
    page_in: Arc<PageIn>,
}

impl Watched {
    fn of(adapter: &Adapter) -> Self {
        Self {
            in_flight: adapter.in_flight(),
            counters: adapter.counters(),
            files: adapter.files(),
            opens: adapter.opens(),
            offered: adapter.offered(),
            reads_ahead: adapter.reads_ahead(),
            page_in: adapter.page_in(),
        }
    }
}

impl Connection {
    /// Opens a connection with root privileges and makes a detached mount of it.
    pub(crate) fn open(
        adapter: Adapter,
        source: &OsStr,
        attributes: MountAttrFlags,
        holder: &Arc<dyn ConnectionHolder>,
    ) -> Result<(Self, OwnedFd), StepError> {
        let device = device::open()?;
        let context = Context::open("fuse")?;
        context
            .text("source", source)?
            .text("subtype", SUBTYPE)?
            // As a number: not every kernel takes a descriptor here.
            .text("fd", device.as_raw_fd().to_string())?
            .text("rootmode", "40555")?
            .text("user_id", "0")?
            .text("group_id", "0")?
            .flag("allow_other")?
            .flag("default_permissions")?;
        // On a read-only mount, the kernel refuses changes without a request to us.
        let mount = match adapter.forwards_changes() {
            true => context.mount(attributes)?,
            false => context.flag("ro")?.mount(attributes | MountAttrFlags::MOUNT_ATTR_RDONLY)?,
        };
        let watched = Watched::of(&adapter);
        let session = Session::from_fd(adapter, device.into(), SessionACL::All, session_config())
            .map_err(|error| io_step("start serving FUSE", &error))?;
        let unserved = Unserved { session, watched, number: device_minor(mount.as_fd()) };
        Ok((unserved.serve(holder)?, mount))
    }

    /// Opens a connection without privileges, mounted at `mountpoint` by the `fusermount3` helper.
    pub(crate) fn open_unprivileged(
        adapter: Adapter,
        source: &OsStr,
        mountpoint: &Path,
        holder: &Arc<dyn ConnectionHolder>,
    ) -> Result<Self, StepError> {
        let device = fusermount::mount(source, mountpoint)?;
        let watched = Watched::of(&adapter);
        let session = Session::from_fd(adapter, device, SessionACL::All, session_config())
            .map_err(|error| io_step("start serving FUSE", &error))?;
        let entry = table::mount_at(mountpoint).map_err(|error| io_step("read the table of mounts", &error))?;
        Unserved { session, watched, number: entry.map(|entry| entry.device.1) }.serve(holder)
    }

    /// Serves a connection of a dead server. The kernel sends what that server did not answer again, or has failed it.
    pub(crate) fn adopt(adapter: Adapter, inherited: InheritedConnection) -> Result<Self, StepError> {
        let watched = Watched::of(&adapter);
        let InheritedConnection { number, device, offered, opens: _, held, end } = inherited;
        let (device, held) = match device::for_server(device.as_fd(), offered) {
            Ok(own) => (own, Some(held)),
            Err(error) => {
                warn_not_held(number, &error);
                drop(held);
                (device, None)
            }
        };
        if let Some(opens) = &watched.opens {
            match device.try_clone() {
                Ok(own) => opens.close_through(own),
                Err(error) => tracing::debug!(%error, "backing files of the dead server stay open"),
            }
        }
        let session = takeover::session(adapter, device.as_fd(), offered, session_config())?;
        if device::repeats(offered) {
            // Before the first request is read: what this process has read is not repeated.
            takeover::resend(device.as_fd()).map_err(|error| io_step("have unanswered requests repeated", &error))?;
        } else {
            tracing::warn!(
                number,
                "this kernel does not repeat requests: those that the dead server had read have failed"
            );
        }
        let connection = Unserved { session, watched, number: Some(number) }.serve_held(held)?;
        end.cancel();
        Ok(connection)
    }

    /// Its number, by which the kernel lists it.
    pub(crate) fn number(&self) -> Option<u32> {
        self.number
    }

    /// Requests that wait for an answer.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Counters of the served requests.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Becomes true when the kernel has ended the connection.
    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Disables the kernel's read-ahead on this file system, and puts what is local into its page cache instead. Where that fails, the kernel
    /// fetches more than needed, never less.
    pub(crate) fn stop_read_ahead(&self) {
        let stopped = self
            .number
            .map_or_else(no_number, |number| std::fs::write(format!("/sys/class/bdi/0:{number}/read_ahead_kb"), "0"));
        if let Err(error) = stopped {
            tracing::debug!(%error, "cannot disable the kernel's read-ahead");
        }
        self.start_page_in();
    }

    fn start_page_in(&self) {
        if let Err(error) = self.page_in.start() {
            tracing::debug!(%error, "cannot put pages into the kernel's page cache");
        }
    }

    /// Drops the kernel's cached pages of files that hold one of these objects or one that is left of an earlier call, including open
    /// files. `false`: the kernel was still taking pages at `until`, and all of it is left to the next call.
    pub(crate) fn forget_pages(&self, objects: &HashSet<Digest>, until: Instant) -> bool {
        if *self.ended.borrow() {
            return true;
        }
        let mut due = std::mem::take(&mut *self.unforgotten.lock());
        due.extend(objects);
        if due.is_empty() {
            return true;
        }
        // What was read before and is not there yet would stay.
        if !self.page_in.settle_until(until) {
            tracing::warn!(number = self.number, "the kernel is still taking pages: its cached ones are dropped later");
            self.unforgotten.lock().extend(due);
            return false;
        }
        for node in self.files.nodes_of(&due) {
            if let Err(error) = self.notifier.inval_inode(INodeNo(node.0), 0, 0) {
                tracing::debug!(%error, "the kernel keeps pages of a file");
            }
        }
        true
    }

    /// Puts nothing into the kernel's page cache any more, and waits until the kernel has what is being put there. `false`: not before `until`.
    pub(crate) fn stop_page_in(&self, until: Instant) -> bool {
        self.page_in.stop_until(until)
    }

    /// Aborts the connection: every waiting request fails at once.
    pub(crate) fn abort(&self) -> io::Result<()> {
        self.number.map_or_else(no_number, fusectl::abort)
    }

    /// Whether any request has waited for longer than `timeout`.
    pub(crate) fn is_wedged(&self, timeout: Duration) -> bool {
        !*self.ended.borrow() && self.in_flight.oldest().is_some_and(|since| since.elapsed() > timeout)
    }
}

impl Unserved {
    /// Has the connection held, if there is a holder, and serves it.
    fn serve(self, holder: &Arc<dyn ConnectionHolder>) -> Result<Connection, StepError> {
        let held = match self.number {
            Some(number) if holder.keeps() => self.held(number, holder)?,
            _ => None,
        };
        self.serve_held(held)
    }

    /// Has the connection held. `None`: it must not be, because the requests that this process had read would never end.
    fn held(&self, number: u32, holder: &Arc<dyn ConnectionHolder>) -> Result<Option<HeldConnection>, StepError> {
        let offered = InitFlags::from_bits_retain(self.watched.offered.load(Ordering::Relaxed));
        let device = match self.leave_device(offered) {
            Ok(device) => device,
            Err(error) => {
                warn_not_held(number, &error);
                return Ok(None);
            }
        };
        let record = self.watched.opens.as_ref().map(|opens| opens.record()).transpose();
        let record = record.map_err(|error| io_step("record open files", &error))?;
        let record = record.as_ref().map(AsFd::as_fd);
        Ok(Some(HeldConnection::new(holder.clone(), number, offered, device.as_fd(), record)))
    }

    /// Leaves the device for the holder: the session reads from the one of a server. Nothing has been read since INIT.
    fn leave_device(&self, offered: InitFlags) -> io::Result<OwnedFd> {
        let device = self.session.as_fd().try_clone_to_owned()?;
        let own = device::for_server(device.as_fd(), offered)?;
        device::replace(self.session.as_fd(), own.as_fd())?;
        Ok(device)
    }

    fn serve_held(self, held: Option<HeldConnection>) -> Result<Connection, StepError> {
        let Self { session, watched, number } = self;
        // Where the connection cannot be ended, a thread that waits for the kernel could keep it alive for ever.
        if held.is_some() && number.is_some_and(fusectl::can_abort) {
            match device::clone(session.as_fd()) {
                Ok(device) => watched.page_in.allow(device),
                Err(error) => tracing::debug!(%error, "no device for the kernel's page cache"),
            }
        }
        let (end, ended) = watch::channel(false);
        let Watched { in_flight, counters, files, opens: _, offered: _, reads_ahead, page_in } = watched;
        let (notifier, ending) = (session.notifier(), page_in.clone());
        thread::Builder::new()
            .name("fuse-session".to_owned())
            .spawn(move || {
                let is_failed = match session.run() {
                    Ok(()) => false,
                    Err(error) => {
                        tracing::warn!(%error, "a FUSE session ended with an error");
                        true
                    }
                };
                // Its thread may wait for a request that is not answered any more.
                if ending.stop()
                    && is_failed
                    && let Some(number) = number
                {
                    let _is_ended = fusectl::abort(number);
                }
                // Before the end is reported: as long as a connection without a server is held, its readers wait.
                drop(held);
                end.send_replace(true);
            })
            .map_err(|error| io_step("start a thread for FUSE", &error))?;
        let unforgotten = Mutex::default();
        let connection = Connection { in_flight, counters, ended, number, files, notifier, page_in, unforgotten };
        if !reads_ahead {
            connection.start_page_in();
        }
        Ok(connection)
    }
}

fn warn_not_held(number: u32, error: &io::Error) {
    tracing::warn!(%error, number, "no device of its own for a connection: it ends with this process, and its mounts with it");
}

fn no_number() -> io::Result<()> {
    Err(io::Error::other("the connection's number is not known"))
}

fn session_config() -> Config {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let mut config = Config::default();
    config.n_threads = Some(cores.min(MAX_EVENT_THREADS));
    config
}

/// Number of a FUSE file system in the kernel's list of connections. Queries the kernel only, not the server.
fn device_minor(mount: BorrowedFd<'_>) -> Option<u32> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(mount, "", flags, StatxFlags::INO).ok().map(|stat| stat.stx_dev_minor)
}
