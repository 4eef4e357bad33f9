//! The server's side, with holders in processes of their own.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;

use super::{command, folder, holder_of, pipe, process, read_some, roles, wait_for_end, write_to};
use crate::{Holder, HolderCommand};

/// A holder whose successors have this command.
fn holder_command(socket: &Path, successor: Vec<OsString>) -> HolderCommand {
    let mut program = roles::command("hold", &[socket]);
    program.extend(successor);
    HolderCommand { program, socket: socket.to_owned() }
}

#[test]
fn a_successor_takes_over_what_a_server_kept() {
    let (_folder, socket) = folder();
    let command = holder_command(&socket, roles::command("take_over", &[&socket]));
    let (holder, held) = Holder::attach(command).unwrap();
    assert!(held.is_empty());
    let ((mut first, kept_first), (mut second, kept_second)) = (pipe(), pipe());
    holder.keep("first", kept_first.as_fd());
    holder.keep("second", kept_second.as_fd());
    holder.keep("released", kept_second.as_fd());
    holder.release("released");
    holder.serving();
    assert!(holder.flush());
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let process = process(holder_of(&socket));
    drop((kept_first, kept_second, holder));
    assert_eq!(read_some(&mut first), "taken over: first");
    assert_eq!(read_some(&mut second), "taken over: second");
    wait_for_end(&process);
    assert!(!socket.exists());
    assert_eq!(read_some(&mut first), "");
    assert_eq!(read_some(&mut second), "");
}

#[test]
fn a_dismissed_holder_has_ended_and_closed_everything() {
    let (_folder, socket) = folder();
    let (holder, _) = Holder::attach(holder_command(&socket, command(&["false"]))).unwrap();
    let (mut end, kept) = pipe();
    holder.keep("mount", kept.as_fd());
    assert!(holder.flush());
    let process = process(holder_of(&socket));
    drop(kept);
    holder.dismiss();
    assert!(crate::socket::has_ended(process.as_fd()));
    assert!(!socket.exists());
    assert_eq!(read_some(&mut end), "");
    holder.keep("later", process.as_fd());
    assert!(!holder.flush(), "nothing is held after the end");
    holder.dismiss();
}

#[test]
fn a_killed_holder_has_a_successor_that_has_everything() {
    let (_folder, socket) = folder();
    let command = holder_command(&socket, roles::command("take_over", &[&socket]));
    let (holder, _) = Holder::attach(command).unwrap();
    let ((mut first, kept_first), (mut second, kept_second)) = (pipe(), pipe());
    holder.keep("first", kept_first.as_fd());
    assert!(holder.flush());
    let pid = holder_of(&socket);
    let killed = process(pid);
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    wait_for_end(&killed);
    holder.keep("second", kept_second.as_fd());
    assert!(holder.flush());
    assert_ne!(holder_of(&socket), pid);
    drop((kept_first, kept_second, holder));
    assert_eq!(read_some(&mut first), "taken over: first");
    assert_eq!(read_some(&mut second), "taken over: second");
}

#[test]
fn a_server_attaches_to_the_holder_of_a_dead_one() {
    let (_folder, socket) = folder();
    let command = holder_command(&socket, command(&["true"]));
    let (dead, _) = Holder::attach(command.clone()).unwrap();
    let (mut end, kept) = pipe();
    dead.keep("mount", kept.as_fd());
    assert!(dead.flush());
    let pid = holder_of(&socket);
    assert_eq!(Holder::attach(command.clone()).unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop((kept, dead));
    let (holder, held) = Holder::attach(command).unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].name, "mount");
    write_to(&held[0].descriptor, "alive");
    assert_eq!(read_some(&mut end), "alive");
    holder.serving();
    assert!(holder.flush());
    assert_eq!(holder_of(&socket), pid, "a holder of the same program stays");
    drop(held);
    holder.dismiss();
    assert_eq!(read_some(&mut end), "");
}

#[test]
fn a_holder_of_another_program_is_replaced_when_the_server_serves() {
    let (_folder, socket) = folder();
    let command = holder_command(&socket, command(&["true"]));
    let mut older = command.clone();
    let copy = socket.with_file_name("older");
    std::fs::copy(&older.program[0], &copy).unwrap();
    older.program[0] = copy.into();
    let (dead, _) = Holder::attach(older).unwrap();
    let (mut end, kept) = pipe();
    dead.keep("mount", kept.as_fd());
    assert!(dead.flush());
    let old = holder_of(&socket);
    let old_process = process(old);
    drop((kept, dead));
    let (holder, held) = Holder::attach(command.clone()).unwrap();
    assert_eq!(held.len(), 1);
    drop(held);
    assert!(holder.flush());
    assert_eq!(holder_of(&socket), old, "nothing is replaced before the server serves");
    holder.serving();
    wait_for_end(&old_process);
    assert!(holder.flush());
    assert_ne!(holder_of(&socket), old);
    drop(holder);
    let (next, held) = Holder::attach(command).unwrap();
    assert_eq!(held.len(), 1);
    write_to(&held[0].descriptor, "alive");
    assert_eq!(read_some(&mut end), "alive");
    next.dismiss();
}

#[test]
fn a_holder_that_cannot_be_started_blocks_no_server() {
    let (_folder, socket) = folder();
    let command = HolderCommand { program: command(&["/nonexistent/holder"]), socket };
    let (holder, held) = Holder::attach(command).unwrap();
    assert!(held.is_empty());
    assert!(holder.flush(), "there is nothing to hold yet");
    let (_end, kept) = pipe();
    holder.keep("mount", kept.as_fd());
    holder.release("mount");
    holder.serving();
    assert!(holder.flush(), "there is nothing to hold any more");
    holder.dismiss();
}

#[test]
fn no_holder_does_nothing() {
    let holder = Holder::none();
    let (_end, kept) = pipe();
    holder.keep("mount", kept.as_fd());
    holder.serving();
    assert!(holder.flush());
    holder.dismiss();
}

#[test]
fn a_holder_needs_little_memory() {
    /// In KiB. It holds as many descriptors as a store has mounts at most times.
    const MOST: u64 = 2048;
    let (_folder, socket) = folder();
    let (holder, _) = Holder::attach(holder_command(&socket, command(&["false"]))).unwrap();
    let (_end, kept) = pipe();
    for number in 0..200 {
        holder.keep(&format!("mount {number}"), kept.as_fd());
    }
    assert!(holder.flush());
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", holder_of(&socket).as_raw_nonzero()));
    let rollup = rollup.unwrap();
    println!("{rollup}");
    let dirty = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")?.split_whitespace().next());
    assert!(dirty.unwrap().parse::<u64>().unwrap() <= MOST, "{rollup}");
    holder.dismiss();
}
