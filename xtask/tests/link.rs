//! The slow link, on the real kernel.

// Helpers of a test may do what tests may.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

/// Runs a shell line behind a link; `None`, with a printed note, if no link can be created.
fn behind_link(options: &[&str], line: &str) -> Option<Output> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        println!("skipped: needs root and /dev/net/tun");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["link", "--no-calibration"]).args(options).args(["--", "bash", "-c", line]);
    Some(command.output().unwrap())
}

#[test]
fn a_command_reaches_an_exposed_port_and_the_bytes_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    thread::spawn(move || listener.accept().unwrap().0.write_all(&[b'x'; 100_000]).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats.json");
    let line = format!("cat < /dev/tcp/$TARPON_LINK_HOST/{port} | wc -c");
    let options = ["--rate", "1gbit", "--rtt", "2ms", "--expose", &port, "--stats", stats.to_str().unwrap()];
    let Some(output) = behind_link(&options, &line) else { return };
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "100000\n", "{}", String::from_utf8_lossy(&output.stderr));
    let stats = std::fs::read_to_string(stats).unwrap();
    let to_command = stats.strip_prefix(r#"{"to_command":{"bytes":"#).and_then(|s| s.split(',').next()).unwrap();
    // The payload, and at least 40 bytes of headers per packet of at most 1460 bytes.
    assert!(to_command.parse::<u64>().unwrap() > 102_000, "{stats}");
}

#[test]
fn the_link_ends_as_its_command_did() {
    let Some(output) = behind_link(&[], "exit 7") else { return };
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_command_sees_nothing_but_the_link() {
    let Some(output) = behind_link(&[], "tail -n +3 /proc/self/net/dev | wc -l") else {
        return;
    };
    // Loopback and the link.
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\n", "{}", String::from_utf8_lossy(&output.stderr));
}
