//! [`Holder`]: the server's side. One thread of its own talks to the holder process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::command::{HeldDescriptor, HolderCommand};
use crate::link::Link;
use crate::message::Operation;

/// Interval of the messages by which the holder knows that the server lives.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Pause after a holder could not be started, or died at once; it doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long [`Holder::dismiss`] waits for the thread.
const DISMISSAL: Duration = Duration::from_secs(10);

/// The holder of this server's descriptors. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Holder(Option<Arc<Commands>>);

#[derive(Debug)]
struct Commands {
    sender: Sender<Command>,
    /// Wakes the thread.
    bell: OwnedFd,
}

enum Command {
    Keep(String, OwnedFd),
    Release(String),
    Serving(Sender<()>),
    HandOver(Sender<()>),
    Dismiss(Sender<()>),
}

impl Holder {
    /// A holder that holds nothing, for servers whose descriptors end with them.
    pub fn none() -> Self {
        Self(None)
    }

    /// Attaches to the holder process, if one runs, and takes what it holds. Otherwise one is started for the first
    /// descriptor. Blocks for milliseconds, at most for some seconds.
    ///
    /// # Errors
    /// A holder runs and does not answer as it should.
    pub fn attach(command: HolderCommand) -> io::Result<(Self, Vec<HeldDescriptor>)> {
        let (link, held) =
            Link::attach(&command.socket)?.map_or_else(Default::default, |(link, held)| (Some(link), held));
        let mut kept = BTreeMap::new();
        for HeldDescriptor { name, descriptor } in &held {
            kept.insert(name.clone(), descriptor.try_clone()?);
        }
        let (sender, commands) = mpsc::channel();
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let rung = bell.try_clone()?;
        let attendant = Attendant {
            command,
            commands,
            bell: rung,
            link,
            kept,
            pause: FIRST_PAUSE,
            start_at: None,
            beat: Instant::now(),
        };
        std::thread::Builder::new().name("holder".to_owned()).spawn(move || attendant.run())?;
        Ok((Self(Some(Arc::new(Commands { sender, bell }))), held))
    }

    /// Has a duplicate of the descriptor held beyond the death of this process, in place of an earlier one of this name.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) {
        match descriptor.try_clone_to_owned() {
            Ok(descriptor) => self.tell(Command::Keep(name.to_owned(), descriptor)),
            Err(error) => tracing::warn!(%error, name, "a descriptor is not held: it ends with this process"),
        }
    }

    /// Closes the duplicate of this name.
    pub fn release(&self, name: &str) {
        self.tell(Command::Release(name.to_owned()));
    }

    /// This server answers requests: the holder stops its clock. Returns when the holder knows.
    pub fn serving(&self) {
        self.tell_and_wait(Command::Serving);
    }

    /// Announces that this process ends and that its successor is running already. Returns when the holder knows.
    pub fn hand_over(&self) {
        self.tell_and_wait(Command::HandOver);
    }

    /// Ends the holder process, which closes its duplicates. Returns when it has ended.
    pub fn dismiss(&self) {
        self.tell_and_wait(Command::Dismiss);
    }

    fn tell_and_wait(&self, command: impl FnOnce(Sender<()>) -> Command) {
        let (done, wait) = mpsc::channel();
        self.tell(command(done));
        if self.0.is_some() {
            let _ended_or_late = wait.recv_timeout(DISMISSAL);
        }
    }

    fn tell(&self, command: Command) {
        let Some(commands) = &self.0 else { return };
        // The thread ends at a dismissal: nothing is to be held any more.
        if commands.sender.send(command).is_ok() {
            let _full_is_rung = rustix::io::write(&commands.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// The thread.
struct Attendant {
    command: HolderCommand,
    commands: Receiver<Command>,
    bell: OwnedFd,
    link: Option<Link>,
    /// Duplicates of everything that is held, for another holder.
    kept: BTreeMap<String, OwnedFd>,
    pause: Duration,
    /// When the next holder is started, after one has failed.
    start_at: Option<Instant>,
    beat: Instant,
}

impl Attendant {
    fn run(mut self) {
        loop {
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Dismiss(done)) => return self.dismiss(&done),
                    Ok(command) => self.carry_out(command),
                    Err(mpsc::TryRecvError::Empty) => break,
                    // The last handle is gone: there is nothing to hold any more.
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            self.look_after();
            self.wait();
        }
    }

    fn wait(&self) {
        let now = Instant::now();
        let until = self.start_at.into_iter().chain([self.beat + HEARTBEAT]).min().unwrap_or(now);
        let Ok(timeout) = Timespec::try_from(until.saturating_duration_since(now)) else { return };
        let bell = PollFd::new(&self.bell, PollFlags::IN);
        let link = match &self.link {
            Some(link) => PollFd::new(link, PollFlags::IN),
            None => PollFd::new(&self.bell, PollFlags::IN),
        };
        let _woken = rustix::event::poll(&mut [bell, link], Some(&timeout));
        let _silenced = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Keep(name, descriptor) => {
                let sent = self.link.as_ref().map(|link| link.keep(&name, descriptor.as_fd()));
                self.kept.insert(name, descriptor);
                self.note(sent);
            }
            Command::Release(name) => {
                self.kept.remove(&name);
                let sent = self.link.as_ref().map(|link| link.release(&name));
                self.note(sent);
            }
            Command::Serving(done) => {
                let sent = self.link.as_ref().map(|link| link.send(Operation::Serving));
                self.note(sent);
                let _the_caller_has_left = done.send(());
                self.replace_other_program();
            }
            Command::HandOver(done) => {
                let sent = self.link.as_ref().map(|link| link.send(Operation::HandOver).and_then(|()| link.flush()));
                self.note(sent);
                let _the_caller_has_left = done.send(());
            }
            Command::Dismiss(done) => {
                let _the_caller_has_left = done.send(());
            }
        }
    }

    /// Drops a link that failed.
    fn note(&mut self, sent: Option<io::Result<()>>) {
        if let Some(Err(error)) = sent {
            tracing::warn!(%error, "the holder does not answer");
            self.lose();
        }
    }

    fn lose(&mut self) {
        if let Some(link) = self.link.take() {
            link.end();
            self.start_at = Some(Instant::now());
        }
    }

    /// Sends the heartbeat, and starts a holder where there is none and something to hold.
    fn look_after(&mut self) {
        if self.link.as_ref().is_some_and(Link::is_closed) {
            tracing::warn!("the holder of the mounts has ended: starting another one");
            self.lose();
        }
        let now = Instant::now();
        if self.link.is_none() && !self.kept.is_empty() && self.start_at.is_none_or(|at| now >= at) {
            self.start();
        }
        if self.link.is_none() && self.kept.is_empty() {
            self.start_at = None;
        }
        if now.duration_since(self.beat) >= HEARTBEAT {
            self.beat = now;
            let sent = self.link.as_ref().map(|link| link.send(Operation::Alive));
            self.note(sent);
        }
    }

    fn start(&mut self) {
        match self.started() {
            Ok(link) => {
                self.link = Some(link);
                (self.pause, self.start_at) = (FIRST_PAUSE, None);
            }
            Err(error) => {
                tracing::warn!(%error, "no holder is started: if this process dies, its mounts die with it");
                self.start_at = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// A new holder that holds everything.
    fn started(&self) -> io::Result<Link> {
        let link = Link::start(&self.command)?;
        let filled = self.kept.iter().try_for_each(|(name, descriptor)| link.keep(name, descriptor.as_fd()));
        match filled.and_then(|()| link.flush()) {
            Ok(()) => Ok(link),
            Err(error) => {
                link.end();
                Err(error)
            }
        }
    }

    /// Replaces a holder that an earlier version of this program has started.
    fn replace_other_program(&mut self) {
        if self.link.as_ref().is_none_or(Link::runs_this_program) {
            return;
        }
        match self.started() {
            Ok(link) => {
                // Both hold everything until the old one ends.
                if let Some(old) = self.link.replace(link) {
                    old.dismiss();
                }
            }
            Err(error) => tracing::warn!(%error, "the holder of an earlier version stays"),
        }
    }

    fn dismiss(mut self, done: &Sender<()>) {
        if let Some(link) = self.link.take() {
            link.dismiss();
        }
        let _the_caller_has_left = done.send(());
    }
}
