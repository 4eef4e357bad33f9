//! [`Link`]: a server's connection to a holder.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::message::{Message, OLDEST_VERSION, VERSION};
use crate::socket::{self, Received, Sent};

/// Time for one exchange with a holder, which does nothing but that: it is dead or stopped otherwise.
pub(crate) const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);
/// How long a new server waits for its predecessor's connection to end. The kernel closes the files of a dead process one by one, and the
/// lock of the store may come first.
const BUSY_LIMIT: Duration = Duration::from_secs(2);
/// Pause between attempts to attach, and to send where the kernel has no room.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// How a server finds or starts its holder.
#[derive(Debug, Clone)]
pub struct HolderCommand {
    /// Program and arguments that call [`hold`](crate::hold) with their standard input.
    pub program: Vec<OsString>,
    /// The socket of the store's holder. The program must use the same.
    pub socket: PathBuf,
}

/// A descriptor of a dead server.
#[derive(Debug)]
pub struct HeldDescriptor {
    /// The name under which it was kept.
    pub name: String,
    /// A duplicate of it.
    pub descriptor: OwnedFd,
}

/// A connection to a holder that answered `Hello`.
pub(crate) struct Link {
    socket: OwnedFd,
    /// The holder's pidfd; `None` if the kernel has none.
    process: Option<OwnedFd>,
    pid: Pid,
    version: u32,
    /// If this process started it.
    child: Option<Child>,
    /// When it last answered.
    pub(crate) heard: Instant,
}

/// Why a holder does not take this server.
enum Refusal {
    /// It has ended.
    Ended,
    /// Another server is attached.
    Busy,
    /// It does not answer.
    Silent,
    Failed(io::Error),
}

impl Link {
    /// Starts a holder.
    pub(crate) fn start(command: &HolderCommand) -> io::Result<Self> {
        let Some((program, arguments)) = command.program.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command of a holder"));
        };
        let (ours, theirs) = socket::pair()?;
        let mut starter = Command::new(program);
        starter.args(arguments).current_dir("/").stdin(theirs).stdout(Stdio::null());
        let mut child = starter.spawn()?;
        // It has the other end of the socket open, whose closing marks the holder's end.
        drop(starter);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from(Errno::SRCH))?;
        match shake_hands(ours, pid, Instant::now() + EXCHANGE_LIMIT) {
            Ok((link, _)) => Ok(Self { child: Some(child), ..link }),
            Err(refusal) => {
                let _has_ended = child.kill();
                child.wait()?;
                Err(refusal.into())
            }
        }
    }

    /// Attaches to the holder that listens here, and takes what it has. `None` if there is none.
    pub(crate) fn connect(path: &Path) -> io::Result<Option<(Self, Vec<HeldDescriptor>)>> {
        let until = Instant::now() + BUSY_LIMIT;
        let mut is_continued = false;
        loop {
            let Some((socket, pid)) = connect(path)? else { return Ok(None) };
            match shake_hands(socket, pid, Instant::now() + EXCHANGE_LIMIT) {
                Ok(attached) => return Ok(Some(attached)),
                // The next attempt finds its socket gone, or another server dead.
                Err(Refusal::Ended | Refusal::Busy) if Instant::now() < until => std::thread::sleep(RETRY_PAUSE),
                Err(Refusal::Silent) if !is_continued => {
                    tracing::warn!(%pid, "the holder of the store does not answer, and is continued if it was stopped");
                    signal(pid, Signal::CONT);
                    is_continued = true;
                }
                // It has no clock in this state: without an end of it, readers would wait forever.
                Err(Refusal::Silent) => {
                    tracing::warn!(%pid, "the holder of the store does not answer, and is killed");
                    signal(pid, Signal::KILL);
                    return Ok(None);
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether this program has another version of the holder.
    pub(crate) fn is_outdated(&self) -> bool {
        let file = |process: &str| fs::metadata(format!("/proc/{process}/exe")).map(|file| (file.dev(), file.ino()));
        let pid = self.pid.to_string();
        self.version != VERSION || file(&pid).is_ok_and(|theirs| file("self").is_ok_and(|ours| ours != theirs))
    }

    /// Sends a message, within [`EXCHANGE_LIMIT`].
    pub(crate) fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send_within(self.socket(), message, descriptor, Instant::now() + EXCHANGE_LIMIT)
    }

    /// The next answer; `None` if there is none at the moment.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Message>> {
        match socket::receive(self.socket()) {
            Received::Message(message, _) => {
                self.heard = Instant::now();
                Ok(Some(message))
            }
            Received::Blocked => Ok(None),
            Received::Closed => Err(io::ErrorKind::UnexpectedEof.into()),
            Received::Invalid => Err(no_message()),
        }
    }

    /// Waits until the holder has everything that was sent.
    pub(crate) fn confirm(&mut self, number: u32) -> io::Result<()> {
        self.send(&Message::Confirm(number), None)?;
        let until = Instant::now() + EXCHANGE_LIMIT;
        loop {
            match self.receive()? {
                Some(Message::Confirmed(confirmed)) if confirmed == number => return Ok(()),
                Some(_) => {}
                None if socket::wait(&self.socket, PollFlags::IN, until) => {}
                None => return Err(Errno::TIMEDOUT.into()),
            }
        }
    }

    /// Ends the holder, within [`EXCHANGE_LIMIT`]. A holder that stayed would let readers wait for this server.
    pub(crate) fn dismiss(self) -> Option<Child> {
        let until = Instant::now() + EXCHANGE_LIMIT;
        let is_sent = send_within(self.socket(), &Message::Dismiss, None, until).is_ok();
        // It closes the connection after everything else.
        if !is_sent || !socket::wait_for_hang_up(self.socket(), until) {
            self.kill();
        }
        if let (Some(_), Some(process)) = (&self.child, &self.process) {
            socket::wait(process, PollFlags::IN, until);
        }
        self.into_child()
    }

    pub(crate) fn kill(&self) {
        if let Some(process) = &self.process {
            let _has_ended = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// The process to wait for, if it is a child of this one.
    pub(crate) fn into_child(self) -> Option<Child> {
        self.child
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Ended => Self::new(io::ErrorKind::UnexpectedEof, "the holder of the store ends"),
            Refusal::Busy => Self::new(io::ErrorKind::ResourceBusy, "the holder of the store has another server"),
            Refusal::Silent => Self::new(io::ErrorKind::TimedOut, "the holder of the store does not answer"),
            Refusal::Failed(error) => error,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => Self::Ended,
            io::ErrorKind::TimedOut => Self::Silent,
            _ => Self::Failed(error),
        }
    }
}

/// Connects; `None` if no process listens there.
fn connect(path: &Path) -> io::Result<Option<(OwnedFd, Pid)>> {
    let socket = socket::new()?;
    // A bound for a full queue.
    set_socket_timeout(&socket, Timeout::Send, Some(EXCHANGE_LIMIT))?;
    match socket::with_address(path, |address| Ok(rustix::net::connect(&socket, address)?)) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    let credentials = socket_peercred(&socket)?;
    Ok(Some((socket, credentials.pid)))
}

/// The first exchange, and what the holder has.
fn shake_hands(socket: OwnedFd, pid: Pid, until: Instant) -> Result<(Link, Vec<HeldDescriptor>), Refusal> {
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    // A holder that has another server may have closed the connection by now. Its answer is still there.
    let sent = send_within(socket.as_fd(), &Message::Attach { version: VERSION }, None, until);
    let version = match receive_within(socket.as_fd(), until) {
        Ok((Message::Hello { version, .. }, _)) => version,
        Ok((Message::Busy, _)) => return Err(Refusal::Busy),
        Ok(_) => return Err(Refusal::Failed(no_message())),
        Err(error) => return Err(sent.err().unwrap_or(error).into()),
    };
    if !(OLDEST_VERSION..=VERSION).contains(&version) {
        let text = format!(
            "the holder of the store (process {pid}) speaks version {version} of the protocol, and this program \
             versions {OLDEST_VERSION} to {VERSION}"
        );
        return Err(Refusal::Failed(io::Error::new(io::ErrorKind::Unsupported, text)));
    }
    let mut held = Vec::new();
    loop {
        match receive_within(socket.as_fd(), until)? {
            (Message::Retained(name), Some(descriptor)) => {
                held.push(HeldDescriptor { name: name.as_str().to_owned(), descriptor });
            }
            (Message::End, _) => break,
            _ => return Err(Refusal::Failed(no_message())),
        }
    }
    Ok((Link { socket, process, pid, version, child: None, heard: Instant::now() }, held))
}

fn send_within(
    socket: BorrowedFd<'_>,
    message: &Message,
    descriptor: Option<BorrowedFd<'_>>,
    until: Instant,
) -> io::Result<()> {
    loop {
        match socket::send(socket, message, descriptor) {
            Sent::Whole => return Ok(()),
            Sent::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
            Sent::Blocked if !socket::wait(socket, PollFlags::OUT, until) => return Err(Errno::TIMEDOUT.into()),
            // The socket may have room where the user's descriptors under way have not.
            Sent::Blocked if Instant::now() < until => std::thread::sleep(RETRY_PAUSE),
            Sent::Blocked => return Err(Errno::TIMEDOUT.into()),
        }
    }
}

fn receive_within(socket: BorrowedFd<'_>, until: Instant) -> io::Result<(Message, Option<OwnedFd>)> {
    loop {
        match socket::receive(socket) {
            Received::Message(message, descriptor) => return Ok((message, descriptor)),
            Received::Blocked if socket::wait(socket, PollFlags::IN, until) => {}
            Received::Blocked => return Err(Errno::TIMEDOUT.into()),
            Received::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            Received::Invalid => return Err(no_message()),
        }
    }
}

fn no_message() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the holder of the store sent no valid message")
}

fn signal(pid: Pid, signal: Signal) {
    let _has_ended = rustix::process::kill_process(pid, signal);
}
