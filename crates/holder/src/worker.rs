//! [`Worker`]: the thread of a server that speaks with its holder.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::link::{HolderCommand, Link};
use crate::message::{MAX_HELD, Message, Name};
use crate::service_store::ServiceStore;
use crate::socket;

/// Interval of the signs of life. The holder kills a server after 15 seconds without one.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Silence of the holder after which another one takes its place: a stopped holder has descriptors, but no clock.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// Pause after a failed start of a holder. It doubles with each further one, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(crate) enum Command {
    Keep(Name, OwnedFd),
    Release(Name),
    Serving,
    HandOver(u32),
    /// Answered when the holder has everything.
    Flush(SyncSender<()>),
    /// Answered when the holder has ended.
    Dismiss(SyncSender<()>),
    /// The last [`Holder`](crate::Holder) was dropped.
    End,
}

pub(crate) struct Worker {
    command: HolderCommand,
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    link: Option<Link>,
    service: Option<ServiceStore>,
    /// Duplicates of everything that the holder has, for another holder.
    kept: BTreeMap<String, OwnedFd>,
    is_serving: bool,
    /// Whether another holder is to take the place of the attached one.
    is_outdated: bool,
    /// Calls of flush that wait for the confirmation with this number.
    flushes: Vec<(u32, SyncSender<()>)>,
    next_number: u32,
    next_alive: Instant,
    retry: Option<Instant>,
    pause: Duration,
    /// Holders that this process started and no longer needs.
    ended: Vec<Child>,
}

impl Worker {
    pub(crate) fn new(
        command: HolderCommand,
        commands: Receiver<Command>,
        wake: Arc<OwnedFd>,
        link: Option<Link>,
        service: Option<ServiceStore>,
        kept: BTreeMap<String, OwnedFd>,
    ) -> Self {
        Self {
            // A server that inherits nothing has no readers that wait.
            is_serving: link.is_none() && kept.is_empty(),
            command,
            commands,
            wake,
            is_outdated: link.as_ref().is_some_and(Link::is_outdated),
            link,
            service,
            kept,
            flushes: Vec::new(),
            next_number: 0,
            next_alive: Instant::now(),
            retry: None,
            pause: FIRST_PAUSE,
            ended: Vec::new(),
        }
    }

    /// Runs until it is dismissed.
    pub(crate) fn run(mut self) {
        while self.turn().is_continue() {
            self.wait();
        }
    }

    fn turn(&mut self) -> ControlFlow<()> {
        let mut count = [0; 8];
        let _is_zero = rustix::io::read(&self.wake, &mut count);
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.apply(command)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return ControlFlow::Break(()),
            }
        }
        self.hear();
        self.renew_if_needed();
        self.send_alive();
        self.sync_service();
        self.ended.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        ControlFlow::Continue(())
    }

    fn apply(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Keep(name, descriptor) => self.keep(name, descriptor),
            Command::Release(name) => {
                if self.kept.remove(name.as_str()).is_some() {
                    self.service.iter_mut().for_each(|service| service.change(name.as_str()));
                    self.send(Message::Release(name), None);
                }
            }
            Command::Serving => {
                self.is_serving = true;
                self.send(Message::Serving, None);
            }
            Command::HandOver(successor) => {
                self.sync_service();
                self.send(Message::HandOver(successor), None);
            }
            Command::Flush(answer) => self.flush(answer),
            Command::Dismiss(answer) => {
                self.dismiss();
                let _waits_no_longer = answer.send(());
                return ControlFlow::Break(());
            }
            Command::End => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn keep(&mut self, name: Name, descriptor: OwnedFd) {
        if self.kept.len() >= MAX_HELD && !self.kept.contains_key(name.as_str()) {
            tracing::warn!(name = name.as_str(), "a descriptor is not held: {MAX_HELD} are the most");
            return;
        }
        if let Some(link) = &self.link {
            let sent = link.send(&Message::Keep(name), Some(descriptor.as_fd()));
            self.check(sent);
        }
        self.service.iter_mut().for_each(|service| service.change(name.as_str()));
        self.kept.insert(name.as_str().to_owned(), descriptor);
    }

    /// Not before this server serves: readers wait until then.
    fn sync_service(&mut self) {
        if self.is_serving {
            self.service.iter_mut().for_each(|service| service.sync(&self.kept));
        }
    }

    fn flush(&mut self, answer: SyncSender<()>) {
        self.sync_service();
        if self.kept.is_empty() && self.link.is_none() {
            let _waits_no_longer = answer.send(());
            return;
        }
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.flushes.push((number, answer));
        self.send(Message::Confirm(number), None);
    }

    fn dismiss(&mut self) {
        if let Some(mut child) = self.link.take().and_then(Link::dismiss) {
            let _is_still_there = child.try_wait();
        }
        let kept = std::mem::take(&mut self.kept);
        if let Some(service) = &mut self.service {
            kept.keys().for_each(|name| service.change(name));
            service.sync(&self.kept);
        }
    }

    /// Sends a message if there is a holder. If not, the next one gets it as a part of the whole.
    fn send(&mut self, message: Message, descriptor: Option<&OwnedFd>) {
        if let Some(link) = &self.link {
            let sent = link.send(&message, descriptor.map(AsFd::as_fd));
            self.check(sent);
        }
    }

    /// The link is lost if this is an error.
    fn check(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        if let Some(link) = self.link.take() {
            tracing::warn!(%error, "the holder of the store's descriptors is lost");
            // If it still runs, it is of no use: this server starts another.
            link.kill();
            self.ended.extend(link.into_child());
        }
    }

    /// Reads the holder's answers.
    fn hear(&mut self) {
        while let Some(link) = &mut self.link {
            match link.receive() {
                Ok(Some(Message::Confirmed(number))) => {
                    let (done, left) = std::mem::take(&mut self.flushes).into_iter().partition(|(n, _)| *n == number);
                    self.flushes = left;
                    answer(done);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => self.check(Err(error)),
            }
        }
    }

    fn is_silent(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.heard.elapsed() >= SILENCE_LIMIT)
    }

    /// Starts a holder where there is none, or one that cannot stay.
    fn renew_if_needed(&mut self) {
        let is_needed = match &self.link {
            None => !self.kept.is_empty(),
            Some(_) => self.is_outdated && self.is_serving || self.is_silent(),
        };
        if !is_needed {
            self.retry = None;
            return;
        }
        if self.retry.is_some_and(|retry| Instant::now() < retry) {
            return;
        }
        match self.start() {
            Ok(link) => self.replace(link),
            Err(error) => {
                let pause = self.pause.as_secs();
                tracing::warn!(%error, "cannot start a holder of the store's descriptors; trying again in {pause} s");
                self.retry = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// A new holder that has everything.
    fn start(&mut self) -> io::Result<Link> {
        let mut link = Link::start(&self.command)?;
        if let Err(error) = self.fill(&mut link) {
            link.kill();
            self.ended.extend(link.into_child());
            return Err(error);
        }
        Ok(link)
    }

    fn fill(&self, link: &mut Link) -> io::Result<()> {
        for (name, descriptor) in &self.kept {
            let Some(name) = Name::new(name) else { continue };
            link.send(&Message::Keep(name), Some(descriptor.as_fd()))?;
        }
        if self.is_serving {
            link.send(&Message::Serving, None)?;
        }
        link.confirm(self.next_number)
    }

    /// The new holder has everything. Only now the old one may end.
    fn replace(&mut self, link: Link) {
        let is_silent = self.is_silent();
        if let Some(old) = self.link.replace(link) {
            let child = if is_silent {
                old.kill();
                old.into_child()
            } else {
                old.dismiss()
            };
            self.ended.extend(child);
        }
        self.next_number = self.next_number.wrapping_add(1);
        answer(std::mem::take(&mut self.flushes));
        self.is_outdated = false;
        self.retry = None;
        self.pause = FIRST_PAUSE;
    }

    fn send_alive(&mut self) {
        if Instant::now() >= self.next_alive {
            self.next_alive = Instant::now() + ALIVE_INTERVAL;
            self.send(Message::Alive, None);
        }
    }

    /// Waits for a command, a message, or the time of the next sign of life.
    fn wait(&self) {
        let is_synced = self.service.as_ref().is_none_or(ServiceStore::is_synced);
        let is_idle = self.link.is_none() && self.retry.is_none() && self.ended.is_empty() && is_synced;
        let next = [Some(self.next_alive), self.retry].into_iter().flatten().min();
        let left = next.map(|next| socket::timespec(next.saturating_duration_since(Instant::now())));
        let mut polled = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.wake, PollFlags::empty())];
        if let Some(link) = &self.link {
            polled[1] = PollFd::from_borrowed_fd(link.socket(), PollFlags::IN);
        }
        // An error is a signal, or a lack of memory: the next turn finds out what there is to do.
        let _interrupted = poll(&mut polled, if is_idle { None } else { left.as_ref() });
    }
}

fn answer(flushes: Vec<(u32, SyncSender<()>)>) {
    for (_, flush) in flushes {
        let _waits_no_longer = flush.send(());
    }
}
