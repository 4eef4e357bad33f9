//! [`hold`]: the holder process. One thread, one loop; it allocates only to start a successor.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{PidfdFlags, Resource, Rlimit, Signal};

use crate::channel::{self, Channel};
use crate::dead_mounts;
use crate::deadline::{Failures, Limits};
use crate::message::{Message, Operation};
use crate::successor::Successors;
use crate::table::DescriptorTable;

/// How long a process that has connected may take to read what it gets, and how long the loop waits for it.
const SEND_LIMIT: Duration = Duration::from_secs(2);
/// The loop wakes at least so often, and notices if it was stopped itself.
const TICK: Duration = Duration::from_secs(1);
/// The kernel kills this process last when memory runs out: it has nearly none, and all depends on it.
const OOM_SCORE: &str = "-1000";
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// What a holder needs to know.
#[derive(Debug, Clone)]
pub struct HoldOptions {
    /// Path of its socket, at which successors connect.
    pub socket: PathBuf,
    /// The command line that starts a successor.
    pub successor: Vec<OsString>,
    /// Directories from which a dead mount is removed at the end.
    pub dead_mounts: Vec<PathBuf>,
}

/// Holds what the server at the other end of `control` sends, until that server dismisses it, or until no successor serves.
///
/// # Errors
/// The socket cannot be made, or the kernel refuses to wait.
pub fn hold(control: OwnedFd, options: HoldOptions) -> io::Result<()> {
    let _is_leader_already = rustix::process::setsid();
    let files = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: files.maximum, maximum: files.maximum };
    let _as_before = rustix::process::setrlimit(Resource::Nofile, raised);
    let score = std::fs::read_to_string(OOM_SCORE_FILE).ok();
    let _without_privilege = std::fs::write(OOM_SCORE_FILE, OOM_SCORE);
    hold_within(control, options, score, Limits::default())
}

/// As [`hold`], without changes of this process.
pub(crate) fn hold_within(
    control: OwnedFd,
    options: HoldOptions,
    score: Option<String>,
    limits: Limits,
) -> io::Result<()> {
    let HoldOptions { socket, successor, dead_mounts } = options;
    let listener = channel::listen(&socket)?;
    let identity = identity(&socket);
    let mut holder = HolderProcess {
        listener,
        state: State::Served(Attached::new(Channel::of(control))?),
        held: DescriptorTable::new(),
        successors: Successors::new(successor, score),
        failures: Failures::default(),
        limits,
        last_tick: Instant::now(),
        announced: false,
    };
    let outcome = holder.run();
    holder.held.clear();
    if let Ok(End::GivenUp(reason)) = outcome {
        tracing::error!("no server took the mounts over: {reason}; their readers get errors");
        dead_mounts.iter().for_each(|directory| dead_mounts::remove(directory));
    }
    // A later holder may have replaced it.
    if identity.is_some() && self::identity(&socket) == identity {
        let _gone_already = std::fs::remove_file(&socket);
    }
    // Last: a server that has dismissed it waits for the end of the connection.
    drop(holder);
    outcome.map(drop)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    path.symlink_metadata().ok().map(|file| (file.dev(), file.ino()))
}

struct HolderProcess {
    listener: OwnedFd,
    state: State,
    held: DescriptorTable,
    successors: Successors,
    failures: Failures,
    limits: Limits,
    last_tick: Instant,
    /// Whether the server has announced its end.
    announced: bool,
}

enum State {
    /// A server serves.
    Served(Attached),
    /// The server has died at this time; a process may have attached that does not serve yet.
    Orphaned { since: Instant, start_at: Option<Instant>, attached: Option<Attached> },
}

/// A server process.
struct Attached {
    channel: Channel,
    pidfd: Option<OwnedFd>,
    heard: Instant,
}

/// Why a holder ends.
enum End {
    Dismissed,
    GivenUp(&'static str),
}

impl Attached {
    fn new(channel: Channel) -> io::Result<Self> {
        channel.limit(SEND_LIMIT)?;
        let (pid, _) = channel.peer()?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        Ok(Self { channel, pidfd, heard: Instant::now() })
    }

    fn kill(&self) {
        if let Some(pidfd) = &self.pidfd {
            let _ended_already = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

impl State {
    fn attached(&self) -> Option<&Attached> {
        match self {
            Self::Served(attached) => Some(attached),
            Self::Orphaned { attached, .. } => attached.as_ref(),
        }
    }
}

impl HolderProcess {
    fn run(&mut self) -> io::Result<End> {
        loop {
            self.wait()?;
            // First the hang-up of the old server, then a new one.
            if let Some(end) = self.hear() {
                return Ok(end);
            }
            if let Some(end) = self.watch_successor() {
                return Ok(end);
            }
            self.admit();
            if let Some(end) = self.watch_clock() {
                return Ok(end);
            }
            self.successors.reap();
        }
    }

    /// Waits for an event, at most for a tick.
    fn wait(&self) -> io::Result<()> {
        let until = match &self.state {
            State::Orphaned { start_at: Some(at), .. } => at.saturating_duration_since(Instant::now()).min(TICK),
            _ => TICK,
        };
        let timeout = Timespec::try_from(until).map_err(io::Error::other)?;
        let listener = PollFd::new(&self.listener, PollFlags::IN);
        let idle = || PollFd::new(&self.listener, PollFlags::empty());
        let server = self.state.attached().map_or_else(idle, |it| PollFd::new(&it.channel, PollFlags::IN));
        let end = self.successors.end();
        let child = end.as_ref().map_or_else(idle, |end| PollFd::new(end, PollFlags::IN));
        match rustix::event::poll(&mut [listener, server, child], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Carries out all messages of the attached server.
    fn hear(&mut self) -> Option<End> {
        while let Some(attached) = self.state.attached() {
            match attached.channel.receive_now() {
                Ok(Some((message, descriptor))) => {
                    if let Some(end) = self.carry_out(&message, descriptor) {
                        return Some(end);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // A process that sends anything else is no server of this version.
                Ok(None) | Err(_) => {
                    if let Some(end) = self.server_ended() {
                        return Some(end);
                    }
                }
            }
        }
        None
    }

    fn carry_out(&mut self, message: &Message, descriptor: Option<OwnedFd>) -> Option<End> {
        match (message.operation, descriptor) {
            (Operation::Keep, Some(descriptor)) => self.held.keep(message.name, descriptor),
            (Operation::Release, _) => self.held.release(&message.name),
            (Operation::Dismiss, _) => return Some(End::Dismissed),
            (Operation::HandOver, _) => self.announced = true,
            (Operation::Serving, _) => self.serving(),
            (Operation::Flush, _) => {
                if let Some(attached) = self.state.attached() {
                    let _noticed_as_its_end = attached.channel.send(&Message::new(Operation::Flushed), None);
                }
            }
            _ => {}
        }
        if let State::Served(attached) | State::Orphaned { attached: Some(attached), .. } = &mut self.state {
            attached.heard = Instant::now();
        }
        None
    }

    /// The attached server answers requests.
    fn serving(&mut self) {
        if let State::Orphaned { attached, .. } = &mut self.state
            && let Some(attached) = attached.take()
        {
            self.state = State::Served(attached);
            self.failures.clear();
        }
    }

    /// The attached server has died.
    fn server_ended(&mut self) -> Option<End> {
        let now = Instant::now();
        let announced = std::mem::take(&mut self.announced);
        match &mut self.state {
            State::Served(_) => {
                let pause = if announced { self.limits.hand_over } else { Duration::ZERO };
                self.state = State::Orphaned { since: now, start_at: Some(now + pause), attached: None };
                None
            }
            State::Orphaned { attached, start_at, .. } => {
                *attached = None;
                *start_at = Some(now);
                self.failed(now)
            }
        }
    }

    fn failed(&mut self, now: Instant) -> Option<End> {
        let too_many = self.failures.count(now, self.limits.failures_within);
        too_many.then_some(End::GivenUp("three successors died"))
    }

    /// Notes the end of a successor that has not attached.
    fn watch_successor(&mut self) -> Option<End> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let end = self.successors.end()?;
        if rustix::event::poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&at_once)) != Ok(1) {
            return None;
        }
        if !self.successors.has_failed() {
            return None;
        }
        let State::Orphaned { attached: None, start_at, .. } = &mut self.state else { return None };
        let now = Instant::now();
        *start_at = Some(now);
        self.failed(now)
    }

    /// Lets a successor attach.
    fn admit(&mut self) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::event::poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&at_once)) != Ok(1) {
            return;
        }
        let Ok(channel) = channel::accept(&self.listener) else { return };
        let State::Orphaned { attached: vacancy @ None, start_at, .. } = &mut self.state else { return };
        let Some((pid, _)) = channel.peer().ok().filter(|(_, uid)| is_trusted(*uid)) else { return };
        let Ok(successor) = Attached::new(channel) else { return };
        if hand_over(&successor.channel, &self.held).is_ok() {
            (*vacancy, *start_at) = (Some(successor), None);
            self.successors.attached(pid);
        }
    }

    /// Starts a successor that is due, and ends waits that took too long.
    fn watch_clock(&mut self) -> Option<End> {
        let now = Instant::now();
        let overslept = now.duration_since(std::mem::replace(&mut self.last_tick, now)) > 3 * TICK;
        match &mut self.state {
            // This process was stopped, or the whole machine: the server may have been as well.
            State::Served(attached) if overslept => attached.heard = now,
            State::Served(attached) if now.duration_since(attached.heard) > self.limits.silence => {
                tracing::error!("the server is silent: killing it");
                attached.kill();
                attached.heard = now;
            }
            State::Served(_) => {}
            State::Orphaned { since, .. } if overslept => *since = now,
            State::Orphaned { since, attached, .. } if now.duration_since(*since) > self.limits.successor => {
                attached.iter().for_each(Attached::kill);
                return Some(End::GivenUp("none served in time"));
            }
            State::Orphaned { start_at, attached: None, .. } if start_at.is_some_and(|at| now >= at) => {
                *start_at = None;
                if let Err(error) = self.successors.start() {
                    tracing::error!(%error, "a successor of the server is not started");
                    *start_at = Some(now + TICK);
                    return self.failed(now);
                }
            }
            State::Orphaned { .. } => {}
        }
        None
    }
}

/// Sends everything that is held.
fn hand_over(channel: &Channel, held: &DescriptorTable) -> io::Result<()> {
    channel.send(&Message { number: std::process::id(), ..Message::new(Operation::Hello) }, None)?;
    for (name, descriptor) in held.iter() {
        channel.send(&Message::named(Operation::Held, *name), Some(descriptor.as_fd()))?;
    }
    channel.send(&Message::new(Operation::End), None)
}

/// Whether a process of this user may have the descriptors.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
