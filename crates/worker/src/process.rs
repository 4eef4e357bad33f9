//! [`Process`]: one worker process, and the channels to it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::net::UnixStream;

use crate::blob_channel::BlobChannel;
use crate::message::{Control, ImageName, Setup, encode};
use crate::packets;

/// Idle channels of one kind that are kept: as many as a start of a container uses at once.
const IDLE_CHANNELS: usize = 16;

/// A worker that neither takes nor returns bytes of a chunk for this long has failed. Small chunks are decoded on threads that serve other
/// requests too, so a stopped worker must be noticed soon.
const DECODE_STALL: Duration = Duration::from_secs(3);

/// How long a killed process is waited for.
const KILL: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// A worker process. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Process {
    control: OwnedFd,
    /// What it logs.
    log: Mutex<Option<ChildStderr>>,
    child: Mutex<State>,
    /// Different for each process of this program.
    pub(crate) generation: u64,
    is_retired: AtomicBool,
    blobs: Mutex<Vec<BlobChannel>>,
    chunks: Mutex<Vec<BlockingStream>>,
}

impl Process {
    /// Starts `command` with a control socket as its standard input, and sends the setup. Succeeds also if the process has ended by then.
    pub(crate) fn start(command: &[OsString], setup: &Setup, generation: u64) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let (control, theirs) = packets::pair()?;
        let mut child = Command::new(program)
            // The name in lists of processes, also where the path is /proc/self/exe.
            .arg0("tarpon")
            .args(arguments)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(passes)))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A signal from the terminal is for its user, which may still need it.
            .process_group(0)
            .spawn()?;
        let process = Self {
            control,
            log: Mutex::new(child.stderr.take()),
            child: Mutex::new(State::Running(child)),
            generation,
            is_retired: AtomicBool::new(false),
            blobs: Mutex::default(),
            chunks: Mutex::default(),
        };
        let setup = encode(setup).map_err(io::Error::other)?;
        match packets::send(process.control.as_fd(), &setup, None) {
            // The first request fails, ends the process and reports how it ended.
            Err(error) if is_gone(&error) => Ok(process),
            sent => sent.map(|()| process),
        }
    }

    /// Opens a channel.
    pub(crate) fn open(&self, control: Control) -> io::Result<OwnedFd> {
        let (ours, theirs) = packets::channel()?;
        self.send(control, Some(theirs))?;
        Ok(ours)
    }

    /// The image with this number is not read any more.
    pub(crate) fn forget(&self, image: u64) -> io::Result<()> {
        self.send(Control::Forget(image), None)
    }

    /// The image will be read.
    pub(crate) fn get_ready(&self, image: &ImageName) -> io::Result<()> {
        self.send(Control::GetReady(image.clone()), None)
    }

    fn send(&self, control: Control, descriptor: Option<OwnedFd>) -> io::Result<()> {
        let packet = encode(&control).map_err(io::Error::other)?;
        packets::send(self.control.as_fd(), &packet, descriptor.as_ref().map(|fd| fd.as_fd()))
    }

    /// A channel for requests of blobs, idle or new.
    pub(crate) fn blob_channel(&self) -> io::Result<BlobChannel> {
        if let Some(idle) = self.blobs.lock().pop() {
            return Ok(idle);
        }
        Ok(BlobChannel::new(async_stream(self.open(Control::Blobs)?)?))
    }

    /// Keeps a channel whose response was read to its end.
    pub(crate) fn keep_blob_channel(&self, channel: BlobChannel) {
        let mut idle = self.blobs.lock();
        if channel.is_between_responses() && idle.len() < IDLE_CHANNELS {
            idle.push(channel);
        }
    }

    /// A channel for chunks to be decoded, idle or new.
    pub(crate) fn chunk_channel(&self) -> io::Result<BlockingStream> {
        if let Some(idle) = self.chunks.lock().pop() {
            return Ok(idle);
        }
        let channel = BlockingStream::from(self.open(Control::Chunks)?);
        channel.set_read_timeout(Some(DECODE_STALL))?;
        channel.set_write_timeout(Some(DECODE_STALL))?;
        Ok(channel)
    }

    /// Keeps a channel whose response was read to its end.
    pub(crate) fn keep_chunk_channel(&self, channel: BlockingStream) {
        let mut idle = self.chunks.lock();
        if idle.len() < IDLE_CHANNELS {
            idle.push(channel);
        }
    }

    /// Whether it may still answer.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_retired.load(Ordering::Relaxed)
    }

    /// Requests from now on use another process. This one ends with its last request.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// The pipe of its log, once.
    pub(crate) fn take_log(&self) -> Option<ChildStderr> {
        self.log.lock().take()
    }

    /// Ends the process, which broke the protocol, stopped answering, or has ended by itself. Its channels close.
    pub(crate) fn end(&self) -> Ended {
        self.retire();
        let mut state = self.child.lock();
        let ended = match &mut *state {
            State::Ended(ended) => return ended.clone(),
            State::Running(child) => end(child),
        };
        if let State::Running(child) = std::mem::replace(&mut *state, State::Ended(ended.clone())) {
            reap(child);
        }
        ended
    }
}

/// Kills the process, and waits until it has ended: a millisecond, but for one that waits for a disk.
fn end(child: &mut Child) -> Ended {
    // It may have ended by itself.
    let mut status = child.try_wait();
    if matches!(status, Ok(None)) {
        let _has_ended = child.kill();
        let until = Instant::now() + KILL;
        status = child.try_wait();
        while matches!(status, Ok(None)) && Instant::now() < until {
            std::thread::sleep(POLL_INTERVAL);
            status = child.try_wait();
        }
    }
    match status {
        Ok(Some(status)) => {
            Ended { how: format!("it ended ({status})"), was_killed: status.signal() == Some(Signal::KILL.as_raw()) }
        }
        Ok(None) => Ended { how: "it was killed and has not ended".to_owned(), was_killed: false },
        Err(error) => Ended { how: error.to_string(), was_killed: false },
    }
}

/// Leaves no zombie of a process that was killed and has not ended yet.
fn reap(mut child: Child) {
    if matches!(child.try_wait(), Ok(None)) {
        // Nothing depends on it any more.
        let _reaped = std::thread::Builder::new().name("tarpon-reap".into()).spawn(move || child.wait());
    }
}

/// Whether a worker gets this variable of its user's environment: it connects through proxies, checks certificates, resolves names and logs.
/// Others may hold secrets.
fn passes(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "RUST_LOG",
        "RUST_BACKTRACE",
        "RES_OPTIONS",
        "LOCALDOMAIN",
        "HOSTALIASES",
        "LANG",
        "TZ",
        "HOME",
        "XDG_CONFIG_HOME",
        "TARPON_TOKEN_SERVICES",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        "LD_LIBRARY_PATH",
    ];
    NAMES.contains(&name) || name.to_ascii_lowercase().ends_with("_proxy")
}

/// The state of the child.
#[derive(Debug)]
enum State {
    Running(Child),
    Ended(Ended),
}

/// How a process ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    /// For a message.
    pub(crate) how: String,
    /// Whether it got SIGKILL, from another process or from this one.
    pub(crate) was_killed: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a send failed because the process has ended.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

/// A socket for the async runtime.
pub(crate) fn async_stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let stream = BlockingStream::from(socket);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
