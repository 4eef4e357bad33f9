//! [`Process`]: one worker process, and the channels to it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::net::UnixStream;

use crate::frames::Reader;
use crate::message::{Control, Setup, encode};
use crate::packets;

/// Idle channels of one kind that are kept: as many as a start of a container uses at once.
const IDLE_CHANNELS: usize = 16;

/// A worker that has not decoded a chunk after this has failed. The largest takes a tenth of a second on an idle machine.
const DECODE: Duration = Duration::from_secs(15);

/// A worker process. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Process {
    control: OwnedFd,
    child: Mutex<Child>,
    /// Different for each process of this program.
    pub(crate) generation: u64,
    is_retired: AtomicBool,
    blobs: Mutex<Vec<BlobChannel>>,
    chunks: Mutex<Vec<BlockingStream>>,
}

/// A channel for requests of blobs, and what was read of it and not used.
#[derive(Debug)]
pub(crate) struct BlobChannel {
    pub(crate) stream: UnixStream,
    pub(crate) reader: Reader,
}

impl Process {
    /// Starts `command` with a control socket as its standard input, and sends the setup.
    pub(crate) fn start(command: &[OsString], setup: &Setup, generation: u64) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let (control, theirs) = packets::pair()?;
        let child = Command::new(program)
            // The name in lists of processes, also where the path is /proc/self/exe.
            .arg0("tarpon")
            .args(arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // A signal from the terminal is for its user, which may still need it.
            .process_group(0)
            .spawn()?;
        let process = Self {
            control,
            child: Mutex::new(child),
            generation,
            is_retired: AtomicBool::new(false),
            blobs: Mutex::default(),
            chunks: Mutex::default(),
        };
        let setup = encode(setup).map_err(io::Error::other)?;
        packets::send(process.control.as_fd(), &setup, None)?;
        Ok(process)
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

    fn send(&self, control: Control, descriptor: Option<OwnedFd>) -> io::Result<()> {
        let packet = encode(&control).map_err(io::Error::other)?;
        packets::send(self.control.as_fd(), &packet, descriptor.as_ref().map(|fd| fd.as_fd()))
    }

    /// A channel for requests of blobs, idle or new.
    pub(crate) fn blob_channel(&self) -> io::Result<BlobChannel> {
        if let Some(idle) = self.blobs.lock().pop() {
            return Ok(idle);
        }
        Ok(BlobChannel { stream: async_stream(self.open(Control::Blobs)?)?, reader: Reader::default() })
    }

    /// Keeps a channel whose response was read to its end.
    pub(crate) fn keep_blob_channel(&self, channel: BlobChannel) {
        let mut idle = self.blobs.lock();
        if channel.reader.is_empty() && idle.len() < IDLE_CHANNELS {
            idle.push(channel);
        }
    }

    /// A channel for chunks to be decoded, idle or new.
    pub(crate) fn chunk_channel(&self) -> io::Result<BlockingStream> {
        if let Some(idle) = self.chunks.lock().pop() {
            return Ok(idle);
        }
        let channel = BlockingStream::from(self.open(Control::Chunks)?);
        channel.set_read_timeout(Some(DECODE))?;
        channel.set_write_timeout(Some(DECODE))?;
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

    /// Ends the process, which broke the protocol, stopped answering, or has ended by itself. Its channels close.
    pub(crate) fn end(&self) -> Ended {
        self.retire();
        let mut child = self.child.lock();
        // It may have ended by itself.
        let ended = match child.try_wait() {
            Ok(None) => child.kill().and_then(|()| child.wait()).map(Some),
            other => other,
        };
        let status = ended.as_ref().ok().copied().flatten();
        let was_killed = status.and_then(|status| status.signal()) == Some(Signal::KILL.as_raw());
        let how = match ended {
            Ok(Some(status)) => format!("it ended ({status})"),
            Ok(None) => "it was ended".to_owned(),
            Err(error) => error.to_string(),
        };
        Ended { how, was_killed }
    }
}

/// How a process ended.
#[derive(Debug)]
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

/// A socket for the async runtime.
pub(crate) fn async_stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let stream = BlockingStream::from(socket);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
