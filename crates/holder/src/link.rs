//! [`Link`]: a server's connection to its holder process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::command::{HeldDescriptor, HolderCommand};
use crate::message::{Message, Name, Operation, VERSION};

/// Limit of each message to or from the holder, which does nothing else.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a successor tries to attach: the holder may not have noticed yet that its predecessor has ended.
const ATTACH: Duration = Duration::from_secs(5);
/// Interval between tries.
const RETRY: Duration = Duration::from_millis(5);

/// A connection to a holder.
pub(crate) struct Link {
    channel: Channel,
    /// The process, if this one has started it.
    child: Option<Child>,
    /// Process id of the holder.
    pid: u32,
}

impl Link {
    /// Starts a holder process.
    pub(crate) fn start(command: &HolderCommand) -> io::Result<Self> {
        let (program, arguments) = command.program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let (channel, theirs) = Channel::pair()?;
        channel.limit(TIMEOUT)?;
        let child = Command::new(program)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { channel, pid: child.id(), child: Some(child) })
    }

    /// Connects to the holder that listens at `socket`, and takes what it holds. `None`: none listens.
    pub(crate) fn attach(socket: &Path) -> io::Result<Option<(Self, Vec<HeldDescriptor>)>> {
        let began = Instant::now();
        loop {
            let attached = match Channel::connect(socket, TIMEOUT) {
                Ok(channel) => take(channel),
                Err(error) => Err(error),
            };
            match attached {
                Ok(attached) => return Ok(Some(attached)),
                Err(error) if is_absent(&error) => return Ok(None),
                // It refuses a second server as long as it has a first one.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && began.elapsed() < ATTACH => {
                    std::thread::sleep(RETRY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.channel.send(&Message::named(Operation::Keep, Name::new(name)?), Some(descriptor))
    }

    pub(crate) fn release(&self, name: &str) -> io::Result<()> {
        self.channel.send(&Message::named(Operation::Release, Name::new(name)?), None)
    }

    /// Sends a message without content.
    pub(crate) fn send(&self, operation: Operation) -> io::Result<()> {
        self.channel.send(&Message::new(operation), None)
    }

    /// Waits until the holder has carried out everything that was sent.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.send(Operation::Flush)?;
        match self.channel.receive()? {
            Some((message, _)) if message.operation == Operation::Flushed => Ok(()),
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Ends the holder and waits for its end.
    pub(crate) fn dismiss(self) {
        // It closes the connection last.
        let ended = self.send(Operation::Dismiss).and_then(|()| self.channel.receive());
        if let Err(error) = ended {
            tracing::debug!(%error, "the holder has not ended by itself");
        }
        self.end();
    }

    /// Whether the holder has closed the connection. It sends nothing by itself.
    pub(crate) fn is_closed(&self) -> bool {
        !matches!(self.channel.receive_now(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether the holder runs the same program file as this process.
    pub(crate) fn runs_this_program(&self) -> bool {
        let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        program(&self.pid.to_string()) == program("self")
    }

    /// Kills the process, if it has not ended by itself, and reaps it.
    pub(crate) fn end(mut self) {
        if let Some(child) = &mut self.child {
            let _ended_already = child.kill();
            let _reaped = child.wait();
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Receives everything that the holder holds.
fn take(channel: Channel) -> io::Result<(Link, Vec<HeldDescriptor>)> {
    let hello = next(&channel)?.0;
    if (hello.operation, hello.version) != (Operation::Hello, VERSION) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a holder of another version"));
    }
    let mut held = Vec::new();
    loop {
        let (message, descriptor) = next(&channel)?;
        match (message.operation, descriptor) {
            (Operation::Held, Some(descriptor)) => {
                held.push(HeldDescriptor { name: message.name.as_str().to_owned(), descriptor });
            }
            (Operation::End, _) => return Ok((Link { channel, child: None, pid: hello.number }, held)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn next(channel: &Channel) -> io::Result<(Message, Option<OwnedFd>)> {
    channel.receive()?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
