//! The holder, in a thread, with servers that speak the protocol message by message.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use super::{Server, command, folder, names, pipe, read_some, roles, write_to};
use crate::HoldOptions;
use crate::hold::{Ended, Limits, SHORT_LIVES};
use crate::message::{MESSAGE_BYTES, Message};
use crate::socket;

/// A pause that is short, but no busy loop.
const SHORT: Duration = Duration::from_millis(20);
/// The limit of a successor in tests that reach it. It applies to the first server too, which is this process and would be killed.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(3);
/// Beyond the end of any test.
const NEVER: Duration = Duration::from_secs(3600);
/// No limit is reached by accident, however busy the machine is: the silent server to kill would be this process.
const PATIENT: Limits = Limits {
    successor: NEVER,
    failure_period: NEVER,
    short_life: NEVER,
    silence: NEVER,
    kill: NEVER,
    restart_pause: SHORT,
    hand_over: NEVER,
    stopped: NEVER,
};

struct Holding {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    first: Server,
    thread: JoinHandle<Ended>,
}

impl Holding {
    fn start(successor: impl FnOnce(&PathBuf) -> Vec<OsString>, limits: Limits) -> Self {
        Self::start_in(crate::hold::hold_in_thread, successor, limits)
    }

    /// With successors that may have the program of this process.
    fn start_with_program(successor: impl FnOnce(&PathBuf) -> Vec<OsString>, limits: Limits) -> Self {
        Self::start_in(crate::hold::hold_in_thread_with_program, successor, limits)
    }

    fn start_in(
        hold: fn(OwnedFd, HoldOptions, Limits) -> std::io::Result<Ended>,
        successor: impl FnOnce(&PathBuf) -> Vec<OsString>,
        limits: Limits,
    ) -> Self {
        let (folder, socket) = folder();
        let (ours, theirs) = socket::pair().unwrap();
        let successor = successor(&socket);
        let options = HoldOptions { socket: socket.clone(), successor, dead_mounts: Vec::new() };
        let thread = std::thread::spawn(move || hold(theirs, options, limits).unwrap());
        let first = Server(ours);
        first.attach();
        first.send(Message::Serving);
        Self { _folder: folder, socket, first, thread }
    }

    /// The first server dies.
    fn orphan(self) -> Orphaned {
        self.first.confirm();
        drop(self.first);
        Orphaned { _folder: self._folder, socket: self.socket, thread: self.thread }
    }
}

struct Orphaned {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    thread: JoinHandle<Ended>,
}

impl Orphaned {
    fn ended(self) -> Ended {
        let ended = self.thread.join().unwrap();
        assert!(!self.socket.exists(), "the socket is left");
        ended
    }
}

fn exits_cleanly(_: &PathBuf) -> Vec<OsString> {
    command(&["true"])
}

#[test]
fn descriptors_survive_the_death_of_the_server() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let ((mut objects, kept_objects), (mut image, kept_image)) = (pipe(), pipe());
    holding.first.keep("objects", &kept_objects);
    holding.first.keep("image", &kept_image);
    drop((kept_objects, kept_image));
    let orphaned = holding.orphan();
    let (successor, held) = Server::succeed(&orphaned.socket);
    assert_eq!(names(&held), ["image", "objects"]);
    write_to(&held[0].1, "to the image");
    write_to(&held[1].1, "to the objects");
    drop(held);
    assert_eq!(read_some(&mut image), "to the image");
    assert_eq!(read_some(&mut objects), "to the objects");
    successor.send(Message::Serving);
    successor.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
    assert_eq!(read_some(&mut image), "");
    assert_eq!(read_some(&mut objects), "");
}

#[test]
fn a_descriptor_replaces_an_earlier_one_of_its_name() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let ((mut old, kept_old), (mut new, kept_new)) = (pipe(), pipe());
    holding.first.keep("mount", &kept_old);
    holding.first.keep("mount", &kept_new);
    drop((kept_old, kept_new));
    assert_eq!(read_some(&mut old), "");
    let orphaned = holding.orphan();
    let (successor, held) = Server::succeed(&orphaned.socket);
    assert_eq!(names(&held), ["mount"]);
    write_to(&held[0].1, "new");
    assert_eq!(read_some(&mut new), "new");
    successor.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
}

#[test]
fn a_released_descriptor_is_closed() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let ((mut released, first), (_left, second)) = (pipe(), pipe());
    holding.first.keep("first", &first);
    holding.first.keep("second", &second);
    holding.first.send(Message::Release(super::name("first")));
    holding.first.send(Message::Release(super::name("unknown")));
    drop(first);
    assert_eq!(read_some(&mut released), "");
    let orphaned = holding.orphan();
    let (successor, held) = Server::succeed(&orphaned.socket);
    assert_eq!(names(&held), ["second"]);
    successor.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
}

#[test]
fn more_descriptors_come_back_than_fit_into_the_socket() {
    const MANY: usize = 1000;
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (mut end, kept) = pipe();
    for number in 0..MANY {
        holding.first.keep(&format!("mount {number}"), &kept);
    }
    drop(kept);
    let orphaned = holding.orphan();
    let (successor, held) = Server::succeed(&orphaned.socket);
    assert_eq!(held.len(), MANY);
    drop(held);
    successor.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_second_server_is_refused_while_one_is_attached() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    holding.first.send(Message::Serving);
    holding.first.confirm();
    let second = Server::connect(&holding.socket);
    assert_eq!(second.receive().unwrap().0, Message::Busy);
    assert!(second.receive().is_none());
    holding.first.confirm();
    holding.first.send(Message::Dismiss);
    assert_eq!(holding.thread.join().unwrap(), Ended::Dismissed);
}

#[test]
fn signs_of_life_are_answered() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    holding.first.send(Message::Alive);
    assert_eq!(holding.first.receive().unwrap().0, Message::Alive);
    holding.first.send(Message::Dismiss);
    assert_eq!(holding.thread.join().unwrap(), Ended::Dismissed);
}

#[test]
fn three_successors_that_die_make_the_holder_give_up() {
    let holding = Holding::start(|_| command(&["false"]), PATIENT);
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    drop(kept);
    let orphaned = holding.orphan();
    assert!(matches!(orphaned.ended(), Ended::GaveUp(_)));
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_successor_that_attaches_and_dies_counts_once() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    drop(kept);
    let orphaned = holding.orphan();
    for _ in 0..3 {
        let (_successor, held) = Server::succeed(&orphaned.socket);
        assert_eq!(names(&held), ["mount"]);
    }
    assert!(matches!(orphaned.ended(), Ended::GaveUp(_)));
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_few_deaths_of_servers_that_served_do_not_count() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (_end, kept) = pipe();
    holding.first.keep("mount", &kept);
    let orphaned = holding.orphan();
    for _ in 0..5 {
        let (successor, held) = Server::succeed(&orphaned.socket);
        assert_eq!(names(&held), ["mount"]);
        successor.send(Message::Serving);
        successor.confirm();
    }
    let (last, _) = Server::succeed(&orphaned.socket);
    last.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
}

#[test]
fn servers_that_die_as_soon_as_they_serve_make_the_holder_give_up() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    drop(kept);
    let orphaned = holding.orphan();
    for _ in 1..SHORT_LIVES {
        let (successor, held) = Server::succeed(&orphaned.socket);
        assert_eq!(names(&held), ["mount"]);
        successor.send(Message::Serving);
        successor.confirm();
    }
    assert!(matches!(orphaned.ended(), Ended::GaveUp(_)));
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_first_server_that_never_serves_is_killed_at_the_limit() {
    let written = of_a_killed_server("hang_before_it_serves");
    assert!(written.contains("no server serves in time"), "{written}");
}

#[test]
fn an_announced_successor_attaches_and_no_other_is_started() {
    let holding =
        Holding::start(|socket| command(&["touch", &socket.with_extension("started").display().to_string()]), PATIENT);
    let (_end, kept) = pipe();
    holding.first.keep("mount", &kept);
    holding.first.send(Message::HandOver(0));
    let orphaned = holding.orphan();
    let (successor, held) = Server::succeed(&orphaned.socket);
    assert_eq!(names(&held), ["mount"]);
    successor.send(Message::Serving);
    successor.confirm();
    assert!(!orphaned.socket.with_extension("started").exists());
    successor.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
}

#[test]
fn an_announced_successor_that_does_not_attach_is_replaced() {
    let limits = Limits { hand_over: SHORT, failure_period: NEVER, ..PATIENT };
    let holding = Holding::start(|_| command(&["false"]), limits);
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    drop(kept);
    holding.first.send(Message::HandOver(0));
    let orphaned = holding.orphan();
    assert!(matches!(orphaned.ended(), Ended::GaveUp(_)), "others were started, and failed");
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn an_announced_successor_that_dies_is_replaced_at_once() {
    let limits = Limits { failure_period: NEVER, ..PATIENT };
    for dies_first in [true, false] {
        let holding = Holding::start(|_| command(&["false"]), limits);
        let (mut end, kept) = pipe();
        holding.first.keep("mount", &kept);
        drop(kept);
        let mut successor = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        if dies_first {
            successor.kill().unwrap();
        }
        holding.first.send(Message::HandOver(successor.id()));
        let orphaned = holding.orphan();
        successor.kill().unwrap();
        assert!(matches!(orphaned.ended(), Ended::GaveUp(_)), "others were started, and failed");
        assert_eq!(read_some(&mut end), "");
        successor.wait().unwrap();
    }
}

#[test]
fn without_a_successor_the_holder_gives_up_at_its_limit() {
    let holding = Holding::start(exits_cleanly, Limits { successor: SUCCESSOR_LIMIT, ..PATIENT });
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    drop(kept);
    let orphaned = holding.orphan();
    assert!(matches!(orphaned.ended(), Ended::GaveUp(_)));
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_successor_that_never_serves_is_killed_at_the_limit() {
    let limits = Limits { successor: SUCCESSOR_LIMIT, ..PATIENT };
    let holding = Holding::start(|socket| roles::command("attach_and_hang", &[socket]), limits);
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    drop(kept);
    let orphaned = holding.orphan();
    assert!(matches!(orphaned.ended(), Ended::GaveUp(_)));
    // Only the end of that process closes its duplicate.
    assert_eq!(read_some(&mut end), "");
}

/// Runs a server that its holder kills; returns what was written to standard error. It is no part of this process, which must not be killed.
fn of_a_killed_server(role: &str) -> String {
    let (_folder, socket) = folder();
    let server = roles::command(role, &[&socket]);
    let mut started = Command::new(&server[0]);
    started.args(&server[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = started.spawn().unwrap().wait_with_output().unwrap();
    let written = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.signal(), Some(Signal::KILL.as_raw()), "{written}");
    written
}

#[test]
fn a_silent_server_is_killed_and_has_a_successor() {
    let written = of_a_killed_server("serve_in_silence");
    assert!(written.contains("is silent"), "{written}");
    assert!(written.contains("taken over: standard error"), "{written}");
}

fn send_bytes(server: &Server, bytes: &[u8]) {
    assert_eq!(rustix::io::write(&server.0, bytes), Ok(bytes.len()));
}

#[test]
fn a_server_that_sends_rubbish_is_disconnected() {
    let (_end, kept) = pipe();
    let rubbish: [fn(&Server, &std::os::fd::OwnedFd); 5] = [
        |server, _| send_bytes(server, b"rubbish"),
        |server, _| send_bytes(server, &[255; MESSAGE_BYTES]),
        |server, _| send_bytes(server, &[4; MESSAGE_BYTES + 1]),
        |server, _| server.send(Message::Keep(super::name("without a descriptor"))),
        |server, kept| server.send_with(Message::Alive, Some(kept)),
    ];
    for send in rubbish {
        let holding = Holding::start(exits_cleanly, PATIENT);
        holding.first.keep("mount", &kept);
        holding.first.confirm();
        send(&holding.first, &kept);
        assert!(holding.first.receive().is_none());
        let (next, held) = Server::succeed(&holding.socket);
        assert_eq!(names(&held), ["mount"]);
        next.send(Message::Dismiss);
        assert_eq!(holding.thread.join().unwrap(), Ended::Dismissed);
    }
}

#[test]
fn a_server_that_does_not_attach_first_is_disconnected() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (_end, kept) = pipe();
    holding.first.keep("mount", &kept);
    let orphaned = holding.orphan();
    let (_hasty, answer) = Server::begin(&orphaned.socket, Message::Dismiss);
    assert_eq!(answer, None);
    let (next, held) = Server::succeed(&orphaned.socket);
    assert_eq!(names(&held), ["mount"]);
    next.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
}

#[test]
fn a_server_of_an_unknown_version_gets_no_descriptors() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (_end, kept) = pipe();
    holding.first.keep("mount", &kept);
    let orphaned = holding.orphan();
    let (old, answer) = Server::begin(&orphaned.socket, Message::Attach { version: 0 });
    assert!(matches!(answer, Some(Message::Hello { .. })));
    assert!(old.receive().is_none());
    let (next, _) = Server::succeed(&orphaned.socket);
    next.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
}

#[test]
fn a_program_that_was_deleted_or_does_not_work_is_replaced_by_that_of_the_holder() {
    for program in ["/deleted", "/dev/null", "/bin/false"] {
        let role = |socket: &PathBuf| {
            let mut command = roles::command("take_over", &[socket]);
            command[0] = program.into();
            command
        };
        let holding = Holding::start_with_program(role, PATIENT);
        let (mut end, kept) = pipe();
        holding.first.keep("mount", &kept);
        drop(kept);
        let orphaned = holding.orphan();
        assert_eq!(read_some(&mut end), "taken over: mount", "{program}");
        assert_eq!(orphaned.ended(), Ended::Dismissed);
    }
}

#[test]
fn a_holder_that_was_never_confirmed_ends_with_its_server() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    drop((kept, holding.first));
    assert_eq!(holding.thread.join().unwrap(), Ended::Unneeded);
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_holder_without_descriptors_ends_with_its_server() {
    let orphaned = Holding::start(exits_cleanly, PATIENT).orphan();
    assert_eq!(orphaned.ended(), Ended::Unneeded);
}

#[test]
fn a_holder_that_was_replaced_ends_with_its_server() {
    let holding = Holding::start(|_| command(&["false"]), PATIENT);
    let (mut end, kept) = pipe();
    holding.first.keep("mount", &kept);
    holding.first.confirm();
    std::fs::remove_file(&holding.socket).unwrap();
    std::fs::write(&holding.socket, "of another holder").unwrap();
    drop((kept, holding.first));
    assert_eq!(holding.thread.join().unwrap(), Ended::Unneeded);
    assert!(holding.socket.exists());
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_deleted_socket_is_created_again() {
    let holding = Holding::start(exits_cleanly, PATIENT);
    let (_end, kept) = pipe();
    holding.first.keep("mount", &kept);
    holding.first.confirm();
    std::fs::remove_file(&holding.socket).unwrap();
    let orphaned = holding.orphan();
    let (successor, held) = Server::succeed(&orphaned.socket);
    assert_eq!(names(&held), ["mount"]);
    successor.send(Message::Dismiss);
    assert_eq!(orphaned.ended(), Ended::Dismissed);
}
