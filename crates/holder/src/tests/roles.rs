//! What this test binary does when tests start it as a process. Each role is a test that is ignored otherwise.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::{Server, write_to};
use crate::hold::Limits;
use crate::message::Message;
use crate::socket;
use crate::{HoldOptions, Holder, HolderCommand};

/// A limit that is reached soon, after the server has attached.
const SHORT: Duration = Duration::from_secs(1);

/// The word before the parameters of a role. To the test runner they are names of tests that do not exist.
const PARAMETERS: &str = "parameters:";

/// The command of a role.
pub(super) fn command(role: &str, parameters: &[&Path]) -> Vec<OsString> {
    let mut command = vec![std::env::current_exe().unwrap().into_os_string()];
    let name = format!("tests::roles::{role}");
    command.extend(["--ignored", "--exact", &name, "--", PARAMETERS].map(OsString::from));
    command.extend(parameters.iter().map(|parameter| parameter.as_os_str().to_owned()));
    command
}

/// The parameters of the role that this process has; empty if it has none.
fn parameters() -> Vec<OsString> {
    std::env::args_os().skip_while(|argument| argument != PARAMETERS).skip(1).collect()
}

/// A holder: its socket, and the command of a successor.
#[test]
#[ignore = "a role"]
fn hold() {
    let mut parameters = parameters().into_iter();
    let Some(socket) = parameters.next() else { return };
    let options = HoldOptions { socket: socket.into(), successor: parameters.collect(), dead_mounts: Vec::new() };
    crate::hold::hold_without_program(crate::control().unwrap(), options).unwrap();
}

/// A successor: reports into each pipe that was kept, and ends cleanly.
#[test]
#[ignore = "a role"]
fn take_over() {
    let Some(socket) = parameters().into_iter().next() else { return };
    let (holder, held) = Holder::attach(HolderCommand { program: Vec::new(), socket: socket.into() }).unwrap();
    holder.serving();
    for held in held {
        write_to(&held.descriptor, &format!("taken over: {}", held.name));
    }
    holder.dismiss();
}

/// A successor that attaches and then does nothing.
#[test]
#[ignore = "a role"]
fn attach_and_hang() {
    let Some(socket) = parameters().into_iter().next() else { return };
    let _attached = Server::succeed(Path::new(&socket));
    hang();
}

/// A server that serves and falls silent. Its holder waits for a short time.
#[test]
#[ignore = "a role"]
fn serve_in_silence() {
    let Some(socket) = parameters().into_iter().next() else { return };
    hang_with("hold_in_silence_briefly", Path::new(&socket), true);
}

/// A server that never serves. Its holder waits for a short time.
#[test]
#[ignore = "a role"]
fn hang_before_it_serves() {
    let Some(socket) = parameters().into_iter().next() else { return };
    hang_with("hold_briefly", Path::new(&socket), false);
}

/// Starts a holder, lets it keep standard error, and hangs.
fn hang_with(holder: &str, socket: &Path, is_serving: bool) {
    let (ours, theirs) = socket::pair().unwrap();
    let mut holder = command(holder, &[socket]);
    holder.extend(command("take_over", &[socket]));
    let mut command = std::process::Command::new(&holder[0]);
    let mut holder = command.args(&holder[1..]).stdin(theirs).stdout(Stdio::null()).spawn().unwrap();
    drop(command);
    let server = Server(ours);
    server.attach();
    server.keep("standard error", &std::io::stderr().as_fd().try_clone_to_owned().unwrap());
    if is_serving {
        server.send(Message::Serving);
    }
    server.confirm();
    hang();
    holder.wait().unwrap();
}

/// As `hold`, with a server that may not be silent for long.
#[test]
#[ignore = "a role"]
fn hold_in_silence_briefly() {
    hold_within(Limits { silence: SHORT, ..Limits::default() });
}

/// As `hold`, with a server that has little time until it serves.
#[test]
#[ignore = "a role"]
fn hold_briefly() {
    hold_within(Limits { successor: SHORT, ..Limits::default() });
}

fn hold_within(limits: Limits) {
    let mut parameters = parameters().into_iter();
    let Some(socket) = parameters.next() else { return };
    let options = HoldOptions { socket: socket.into(), successor: parameters.collect(), dead_mounts: Vec::new() };
    crate::hold::hold_in_thread(crate::control().unwrap(), options, limits).unwrap();
}

/// Waits for a signal that ends this process.
fn hang() {
    let (read, _write) = rustix::pipe::pipe().unwrap();
    socket::wait(read.as_fd(), rustix::event::PollFlags::IN, super::far());
}
