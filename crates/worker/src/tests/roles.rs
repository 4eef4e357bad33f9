//! The processes that tests start.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::message::{Control, decode, encode};
use crate::packets;

/// The command of a role.
pub(super) fn command(role: &str) -> Vec<OsString> {
    let name = format!("tests::roles::{role}");
    let program = std::env::current_exe().unwrap().into_os_string();
    [program].into_iter().chain(["--ignored", "--exact", &name, "--nocapture"].map(OsString::from)).collect()
}

#[test]
#[ignore = "a role"]
fn ends_at_once() {}

/// Answers each channel with these bytes, once it was asked something.
fn answer_all(bytes: &[u8]) {
    let control = rustix::io::dup(rustix::stdio::stdin()).unwrap();
    packets::receive(&control).unwrap();
    let mut open = Vec::new();
    while let Some((packet, channel)) = packets::receive(&control).unwrap() {
        let kind: Control = decode(&packet).unwrap();
        let Some(mut channel) = channel.map(UnixStream::from) else { continue };
        if !matches!(kind, Control::Questions) {
            let _asked = channel.read(&mut [0; 1 << 10]).unwrap();
            let _user_is_gone = channel.write_all(bytes);
        }
        open.push(OwnedFd::from(channel));
    }
}

/// A frame of this tag.
fn frame(tag: u8, claimed: u32, bytes: &[u8]) -> Vec<u8> {
    [&[tag][..], &claimed.to_le_bytes(), bytes].concat()
}

/// A frame of this tag with totals.
fn totals(tag: u8) -> Vec<u8> {
    let totals = encode(&crate::message::Totals::default()).unwrap();
    frame(tag, u32::try_from(totals.len()).unwrap(), &totals)
}

/// A response with a body of these bytes, which claims to be so long.
fn body(claimed: u32, bytes: &[u8]) -> Vec<u8> {
    [totals(2), frame(3, claimed, bytes)].concat()
}

#[test]
#[ignore = "a role"]
fn sends_too_much() {
    answer_all(&body(5_000, &[7; 5_000]));
}

#[test]
#[ignore = "a role"]
fn reports_and_sends_nothing() {
    answer_all(&[vec![totals(2)], vec![totals(6); 1_000]].concat().concat());
}

#[test]
#[ignore = "a role"]
fn ends_too_early() {
    answer_all(&[body(10, &[7; 10]), totals(4)].concat());
}

#[test]
#[ignore = "a role"]
fn sends_unknown_frames() {
    answer_all(&frame(9, 0, &[]));
}

#[test]
#[ignore = "a role"]
fn claims_a_message_without_end() {
    answer_all(&frame(5, u32::MAX, &[]));
}

#[test]
#[ignore = "a role"]
fn sends_a_message_that_is_none() {
    answer_all(&frame(5, 4, &[0xff; 4]));
}

/// The response to a chunk, of the wrong size.
#[test]
#[ignore = "a role"]
fn decodes_to_another_size() {
    answer_all(&[&[0][..], &3_000_000_000_u32.to_le_bytes(), &[7; 100]].concat());
}
