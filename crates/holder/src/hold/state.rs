//! [`Hold`]: the state of a holder, and its loop.
//!
//! *Served*: a server is attached, and its signs of life arrive. *Orphaned*: from the death of a server until the next one serves, with a
//! limit. Each turn of the loop does everything that can be done without waiting, in a fixed order: messages of the attached server come
//! before new connections, so that the end of the old one is noticed before its successor is refused; connections come before ended
//! processes, so that a successor that attached and died counts once.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::connections;
use super::dead_mounts;
use super::endpoint::{Endpoint, Owner};
use super::failures::Failures;
use super::options::{HoldOptions, Limits};
use super::peer::Peer;
use super::process::{Process, report};
use super::successor::Successor;
use super::table::Table;
use crate::message::Message;
use crate::socket::{self, Received};

/// Longest wait. A server sends a sign of life at the same interval.
const TICK: Duration = Duration::from_secs(2);
/// Messages that are read before the limits are checked again.
const MESSAGES_AT_ONCE: u32 = 1024;
/// Connections that are accepted before the limits are checked again.
const CONNECTIONS_AT_ONCE: u32 = 16;
/// Successors whose end is noticed at once. That of further ones is noticed after a [`TICK`].
const WATCHED: usize = 4;

/// Why a holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The server has ended cleanly.
    Dismissed,
    /// The server died, and there is nothing to do: it kept nothing, or another holder has replaced this one.
    Unneeded,
    /// No successor serves.
    GaveUp(&'static str),
}

type Flow = ControlFlow<Ended>;
const ON: Flow = Flow::Continue(());

pub(super) struct Hold {
    options: HoldOptions,
    limits: Limits,
    process: Process,
    endpoint: Endpoint,
    table: Table,
    attached: Option<Peer>,
    /// When the holder gives up. `None` while a server serves.
    deadline: Option<Instant>,
    failures: Failures,
    successors: Vec<Successor>,
    /// When another successor is started if none is attached.
    restart: Option<Instant>,
    /// The successor that the last server announced, until one attaches.
    announced: Option<OwnedFd>,
}

impl Hold {
    pub(super) fn new(control: OwnedFd, options: HoldOptions, limits: Limits, process: Process) -> io::Result<Self> {
        let endpoint = Endpoint::bind(&options.socket)?;
        let now = Instant::now();
        let first = Peer::new(control, true, now);
        let first = first.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, "a server of another user"))?;
        Ok(Self {
            // The first server may have descriptors of a dead one, which the service manager stored.
            deadline: Some(now + limits.successor),
            options,
            limits,
            process,
            endpoint,
            table: Table::new(),
            attached: Some(first),
            failures: Failures::NONE,
            successors: Vec::with_capacity(WATCHED),
            restart: None,
            announced: None,
        })
    }

    pub(super) fn run(mut self) -> io::Result<Ended> {
        let mut before = Instant::now();
        loop {
            let planned = self.timeout(before);
            self.wait(planned)?;
            let now = Instant::now();
            self.excuse(now.duration_since(before).saturating_sub(planned));
            if let Flow::Break(ended) = self.turn(now) {
                self.finish(ended);
                return Ok(ended);
            }
            before = Instant::now();
        }
    }

    fn turn(&mut self, now: Instant) -> Flow {
        self.hear(now)?;
        self.accept(now)?;
        self.reap(now)?;
        self.check_limits(now)
    }

    /// Time until the next limit.
    fn timeout(&self, now: Instant) -> Duration {
        let peer = self.attached.as_ref().map(|peer| self.peer_limit(peer));
        let restart = self.restart.filter(|_| self.attached.is_none());
        let next = [self.deadline, restart, peer].into_iter().flatten().min();
        next.map_or(TICK, |next| next.saturating_duration_since(now).min(TICK))
    }

    /// When an attached server is killed, or no longer waited for after that.
    fn peer_limit(&self, peer: &Peer) -> Instant {
        match peer.killed {
            Some(killed) => killed + self.limits.kill,
            None => peer.heard + self.limits.silence,
        }
    }

    fn wait(&self, timeout: Duration) -> io::Result<()> {
        // Without an allocation: places that are not needed stay empty.
        let mut polled: [PollFd<'_>; 4 + WATCHED] =
            std::array::from_fn(|_| PollFd::new(&self.endpoint, PollFlags::empty()));
        polled[0] = PollFd::new(&self.endpoint, PollFlags::IN);
        if let Some(peer) = &self.attached {
            let flags = if peer.is_receiving() { PollFlags::OUT } else { PollFlags::IN };
            polled[1] = PollFd::from_borrowed_fd(peer.socket(), flags);
            if let Some(process) = peer.process() {
                polled[2] = PollFd::from_borrowed_fd(process, PollFlags::IN);
            }
        }
        let processes = self.successors.iter().filter_map(Successor::process);
        let processes = self.announced.as_ref().map(AsFd::as_fd).into_iter().chain(processes);
        for (place, process) in polled[3..].iter_mut().zip(processes) {
            *place = PollFd::from_borrowed_fd(process, PollFlags::IN);
        }
        match poll(&mut polled, Some(&socket::timespec(timeout))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves all limits if this process was stopped for that time: its server may have been, too.
    fn excuse(&mut self, late: Duration) {
        if late < self.limits.stopped {
            return;
        }
        let peer = self.attached.as_mut();
        let heard = peer.map(|peer| &mut peer.heard);
        for time in heard.into_iter().chain(&mut self.deadline) {
            *time += late;
        }
    }

    /// Reads the messages of the attached server.
    fn hear(&mut self, now: Instant) -> Flow {
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(peer) = &mut self.attached else { return ON };
            if peer.is_receiving() {
                if !peer.send_on(&self.table) {
                    return self.lose(now);
                }
                if peer.is_receiving() {
                    return if peer.has_ended() { self.lose(now) } else { ON };
                }
            }
            match socket::receive(peer.socket()) {
                Received::Message(message, descriptor) => self.apply(message, descriptor, now)?,
                Received::Blocked if peer.has_ended() => return self.lose(now),
                Received::Blocked => return ON,
                Received::Closed | Received::Invalid => return self.lose(now),
            }
        }
        ON
    }

    fn apply(&mut self, message: Message, descriptor: Option<OwnedFd>, now: Instant) -> Flow {
        let Some(peer) = &mut self.attached else { return ON };
        peer.heard = now;
        let is_valid = match (peer.is_attached, message, descriptor) {
            (false, Message::Attach { version }, _) => peer.greet(version),
            (true, Message::Keep(name), Some(descriptor)) => {
                self.table.put(name, descriptor);
                true
            }
            (true, Message::Release(name), _) => {
                self.table.remove(name);
                true
            }
            (true, Message::Alive, _) => peer.answer(Message::Alive),
            (true, Message::Serving, _) => {
                peer.serving = Some(now);
                self.deadline = None;
                self.failures.serve();
                true
            }
            (true, Message::HandOver(successor), _) => {
                peer.announce(successor);
                true
            }
            (true, Message::Confirm(number), _) => match self.endpoint.publish() {
                Ok(()) => peer.answer(Message::Confirmed(number)),
                Err(error) => {
                    report(&format!("cannot create {}: {error}", self.options.socket.display()));
                    false
                }
            },
            (true, Message::Dismiss, _) => return Flow::Break(Ended::Dismissed),
            _ => false,
        };
        if is_valid { ON } else { self.lose(now) }
    }

    fn accept(&mut self, now: Instant) -> Flow {
        for _ in 0..CONNECTIONS_AT_ONCE {
            let Some(connection) = self.endpoint.accept() else { break };
            // Accepted first: if this is a successor, the end of the old server is visible by now.
            if self.attached.as_ref().is_some_and(Peer::is_hung_up) {
                self.hear(now)?;
            }
            if self.attached.is_some() {
                let _is_gone = socket::send(connection.as_fd(), &Message::Busy, None);
                continue;
            }
            let Some(peer) = Peer::new(connection, false, now) else { continue };
            for successor in &mut self.successors {
                successor.has_attached |= successor.is(peer.pid);
            }
            self.attached = Some(peer);
            (self.restart, self.announced) = (None, None);
            self.hear(now)?;
        }
        ON
    }

    /// The attached server is dead, or has broken the protocol.
    fn lose(&mut self, now: Instant) -> Flow {
        let Some(peer) = self.attached.take() else { return ON };
        // An earlier holder is still responsible for a server whose new holder has not everything.
        if !self.endpoint.is_published() || self.table.is_empty() {
            return Flow::Break(Ended::Unneeded);
        }
        self.check_endpoint()?;
        self.deadline.get_or_insert(now + self.limits.successor);
        match peer.serving {
            Some(_) if peer.has_successor => {}
            Some(since) => self.failures.add_death(now.duration_since(since) < self.limits.short_life),
            None if peer.is_first => {}
            None => self.failures.add(now),
        }
        self.check_failures(now)?;
        if peer.has_successor {
            self.restart = Some(now + self.limits.hand_over);
            self.announced = peer.successor;
        } else {
            self.start_successor(now);
        }
        ON
    }

    /// Whether successors still find this holder.
    fn check_endpoint(&mut self) -> Flow {
        match self.endpoint.owner() {
            Owner::This => {}
            Owner::Other => return Flow::Break(Ended::Unneeded),
            Owner::Missing => {
                let bound = Endpoint::bind(&self.options.socket).and_then(|mut endpoint| {
                    endpoint.publish()?;
                    Ok(endpoint)
                });
                match bound {
                    Ok(endpoint) => self.endpoint = endpoint,
                    Err(error) => report(&format!("cannot create {}: {error}", self.options.socket.display())),
                }
            }
        }
        ON
    }

    fn check_failures(&self, now: Instant) -> Flow {
        match self.failures.are_too_many(self.limits.failure_period, now) {
            Some(reason) => Flow::Break(Ended::GaveUp(reason)),
            None => ON,
        }
    }

    fn start_successor(&mut self, now: Instant) {
        (self.restart, self.announced) = (None, None);
        match Successor::start(&self.options.successor, &self.process, self.failures.avoid_program()) {
            Ok(successor) => self.successors.push(successor),
            Err(error) => {
                report(&format!("cannot start a successor: {error}"));
                self.restart = Some(now + self.limits.restart_pause);
            }
        }
    }

    /// Notices the end of successors.
    fn reap(&mut self, now: Instant) -> Flow {
        let mut at = 0;
        while at < self.successors.len() {
            let Some(status) = self.successors[at].ended() else {
                at += 1;
                continue;
            };
            let successor = self.successors.swap_remove(at);
            if successor.has_attached || self.attached.is_some() || self.deadline.is_none() {
                continue;
            }
            if status.success() {
                // Another server has won the race for the store. If it does not come, there will be another race.
                self.restart.get_or_insert(now + self.limits.restart_pause);
            } else {
                self.failures.add(now);
                self.check_failures(now)?;
                self.start_successor(now);
            }
        }
        ON
    }

    fn check_limits(&mut self, now: Instant) -> Flow {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Flow::Break(Ended::GaveUp("no server serves in time"));
        }
        if self.attached.as_ref().is_some_and(|peer| now >= self.peer_limit(peer)) {
            match &mut self.attached {
                Some(peer) if peer.killed.is_none() && peer.process().is_some() => {
                    report(&format!("server {} is silent, and is killed", peer.pid));
                    peer.kill(now);
                }
                _ => self.lose(now)?,
            }
        }
        if self.announced.as_ref().is_some_and(|process| socket::has_ended(process.as_fd())) {
            (self.restart, self.announced) = (Some(now), None);
        }
        if self.attached.is_none() && self.restart.is_some_and(|restart| now >= restart) {
            self.check_endpoint()?;
            self.start_successor(now);
        }
        ON
    }

    fn finish(mut self, ended: Ended) {
        let Ended::GaveUp(reason) = ended else {
            // The server waits for the end of its connection: then the descriptors are closed.
            let Self { endpoint, table, attached, .. } = self;
            drop((endpoint, table));
            drop(attached);
            return;
        };
        if self.endpoint.owner() != Owner::Other {
            report(&format!("{reason}: readers of its mounts get an error"));
            // A service manager may have duplicates of them.
            self.table.entries().for_each(|(name, descriptor)| connections::abort(name.as_str(), descriptor));
        }
        // A successor that does not serve has duplicates of everything. While it has them, readers wait.
        if let Some(mut peer) = self.attached.take() {
            peer.kill(Instant::now());
        }
        self.table.clear();
        drop(self.endpoint);
        dead_mounts::remove(self.options.dead_mounts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_do_not_count_the_time_in_which_this_process_was_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let options =
            HoldOptions { socket: folder.path().join("socket"), successor: Vec::new(), dead_mounts: Vec::new() };
        let (_server, control) = socket::pair().unwrap();
        let mut hold = Hold::new(control, options, Limits::default(), Process::default()).unwrap();
        let (now, stopped) = (Instant::now(), Duration::from_secs(60));
        hold.deadline = Some(now);
        let limit = hold.peer_limit(hold.attached.as_ref().unwrap());
        hold.excuse(Duration::from_secs(1));
        assert_eq!(hold.deadline, Some(now), "a busy machine is no excuse");
        hold.excuse(stopped);
        assert_eq!(hold.deadline, Some(now + stopped));
        assert_eq!(hold.peer_limit(hold.attached.as_ref().unwrap()), limit + stopped);
    }
}
